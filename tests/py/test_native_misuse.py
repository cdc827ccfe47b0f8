"""What callers get wrong with the native backends is refused and breaks nothing."""

from __future__ import annotations

import threading

import pytest
import torch

import moe_ep
from moe_ep.comm import LocalGroup
from moe_ep.testing import spawn_ranks

R, K, C, H = 2, 2, 8, 16
PARAMS = moe_ep.MoEEpCommParams(4, K, C, H)


def create(group: LocalGroup, rank: int, **options: object) -> moe_ep.MoEEpCommunication:
    config = moe_ep.HostAlltoAllConfig(comm_backend=group.backend(rank), **options)
    return moe_ep.create_communication(moe_ep.BootstrapConfig(R, rank), PARAMS, config)


def run(program, **options: object) -> None:
    group = LocalGroup(R)

    def rank_program(rank: int) -> None:
        program(rank, create(group, rank, **options))

    spawn_ranks(rank_program, R, mode="threads", timeout=60)


def tensors(n: int = 3) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.arange(n * H, dtype=torch.float32).view(n, H).bfloat16()
    return x, torch.tensor([[0, 3]] * n)


def test_destroy_while_another_thread_waits_in_a_step_is_safe() -> None:
    def program(rank: int, instance: moe_ep.MoEEpCommunication) -> None:
        if rank == 1:
            return  # never dispatches
        caught: list[BaseException] = []
        entered = threading.Event()

        def step() -> None:
            entered.set()
            with pytest.raises(RuntimeError) as error:
                instance.dispatch(*tensors())
            caught.append(error.value)

        thread = threading.Thread(target=step)
        thread.start()
        entered.wait()
        instance.destroy()
        thread.join()
        assert caught
        with pytest.raises(RuntimeError, match="destroy"):
            instance.dispatch(*tensors())

    run(program, timeout_sec=1)


def test_a_second_thread_is_refused_while_one_is_in_a_call() -> None:
    def program(rank: int, instance: moe_ep.MoEEpCommunication) -> None:
        if rank == 1:
            return

        def step() -> None:
            while True:
                try:
                    instance.dispatch(*tensors())
                except moe_ep.MoEEpTimeoutError:
                    return  # it waited for rank 1 in vain
                except RuntimeError as error:  # the other one was in a call
                    if "one thread at a time" not in str(error):
                        raise

        rows = torch.zeros(R * C, H, dtype=torch.bfloat16)
        thread = threading.Thread(target=step)
        thread.start()
        refused = False
        while thread.is_alive() and not refused:
            try:
                instance.combine(rows, output=rows[:3])
            except RuntimeError as error:
                refused = "one thread at a time" in str(error)
        thread.join()
        assert refused

    run(program, timeout_sec=1)


def test_output_within_the_combine_buffer_is_refused() -> None:
    def program(rank: int, instance: moe_ep.MoEEpCommunication) -> None:
        x, ids = tensors()
        received = instance.dispatch(x, ids)
        rows = instance.get_combine_input_buffer(torch.bfloat16)
        rows.copy_(received.hidden_states)
        with pytest.raises(ValueError, match=r"combine: output must lie outside"):
            instance.combine(rows, output=rows[:3])
        assert torch.equal(instance.combine(rows), x * 2)

    run(program)


def test_lazily_negated_tensors_are_refused() -> None:
    def program(rank: int, instance: moe_ep.MoEEpCommunication) -> None:
        x, ids = tensors()
        with pytest.raises(ValueError, match=r"dispatch: hidden_states must hold its values"):
            instance.dispatch(torch._neg_view(x), ids)
        instance.dispatch(x, ids)
        with pytest.raises(ValueError, match=r"combine: expert_output must hold its values"):
            instance.combine(torch._neg_view(torch.zeros(R * C, H, dtype=torch.bfloat16)))

    run(program)


def test_extra_payloads_go_by_name_not_by_order() -> None:
    def program(rank: int, instance: moe_ep.MoEEpCommunication) -> None:
        x, ids = tensors()
        a, b = torch.full((3, 4), 1, dtype=torch.uint8), torch.full((3, 4), 2, dtype=torch.uint8)
        extras = {"a": a, "b": b} if rank == 0 else {"b": b, "a": a}
        received = instance.dispatch(x, ids, extra_payloads=extras)
        for source in range(R):
            rows = slice(source * C, source * C + 3)
            assert (received.extra_payloads["a"][rows] == 1).all()
            assert (received.extra_payloads["b"][rows] == 2).all()
        instance.combine(torch.zeros(R * C, H, dtype=torch.bfloat16))
        with pytest.raises(moe_ep.MoEEpMismatchError, match="extra payloads' names"):
            instance.dispatch(x, ids, extra_payloads={"ab"[rank]: a})

    run(program, extra_payload_bytes_per_token=8)


@pytest.mark.filterwarnings("ignore:ComplexHalf support")
def test_half_complex_payloads_travel() -> None:
    def program(rank: int, instance: moe_ep.MoEEpCommunication) -> None:
        x, ids = tensors()
        extra = torch.ones(3, 2, dtype=torch.complex32)
        received = instance.dispatch(x, ids, extra_payloads={"z": extra})
        assert received.extra_payloads["z"].dtype == torch.complex32
        instance.combine(torch.zeros(R * C, H, dtype=torch.bfloat16))

    run(program, extra_payload_bytes_per_token=8)
