"""Arguments out of contract, and calls in the wrong order."""

import pytest
import torch

import moe_ep
from support.cases import Case
from support.oracle import run_round


def bad_dispatch_arguments(rank):
    case = Case(tokens=(2, 2), hidden_size=8, top_k=2)
    instance = rank.create(case.params)
    good = case.tensors(rank.rank)
    bf16 = torch.bfloat16
    bad = [
        ("topk_ids", torch.zeros(2, 2), (ValueError, TypeError)),
        ("topk_ids", torch.zeros(2, 2, dtype=torch.int16), (ValueError, TypeError)),
        ("topk_ids", torch.zeros(2, 3, dtype=torch.int32), ValueError),
        ("topk_ids", torch.zeros(2, dtype=torch.int32), ValueError),
        ("topk_ids", [[0, 1], [2, 3]], TypeError),
        ("topk_ids", None, TypeError),
        ("topk_weights", torch.zeros(2, 3), ValueError),
        ("topk_weights", torch.zeros(1, 2), ValueError),
        ("topk_weights", torch.zeros(2, 2, dtype=torch.float64), (ValueError, TypeError)),
        ("topk_weights", 1.0, TypeError),
        ("hidden_states", torch.zeros(8, dtype=bf16), ValueError),
        ("hidden_states", torch.zeros(2, 2, 4, dtype=bf16), ValueError),
        ("hidden_states", torch.zeros(2, 0, dtype=bf16), ValueError),
        ("hidden_states", "x", TypeError),
        ("hidden_states_scale", torch.zeros(3, 1), ValueError),
        ("hidden_states_scale", 3, TypeError),
        ("extra_payloads", {"a": torch.zeros(3, 1)}, ValueError),
        ("extra_payloads", {"a": 5}, TypeError),
        ("extra_payloads", [torch.zeros(2, 1)], TypeError),
    ]
    for name, value, error in bad:
        with pytest.raises(error, match=r"dispatch: .*got"):
            instance.dispatch(**{**good, name: value})
    for value in (True, 1.0, "2"):
        with pytest.raises((TypeError, ValueError)):
            instance.dispatch(**good, runtime_max_tokens_per_rank=value)
    run_round(rank, instance, case)


def test_bad_dispatch_arguments_send_nothing(backend):
    """FR-036: errors read `operation: requirement, got value`, and the next step is exact."""
    backend.run(2, bad_dispatch_arguments)


def bad_combine_arguments(rank):
    case = Case(tokens=(2, 1), hidden_size=8, capacity=3)
    instance = rank.create(case.params)
    instance.dispatch(**case.tensors(rank.rank))
    count, bf16 = case.tokens[rank.rank], torch.bfloat16
    good = torch.zeros(6, 8, dtype=bf16)
    bad = [
        ({"expert_output": torch.zeros(6, 8)}, (ValueError, TypeError)),
        ({"expert_output": torch.zeros(5, 8, dtype=bf16)}, ValueError),
        ({"expert_output": torch.zeros(3, 2, 8, dtype=bf16)}, ValueError),
        ({"expert_output": torch.zeros(6, 16, dtype=bf16)[:, ::2]}, ValueError),
        ({"expert_output": None}, TypeError),
        ({"output": torch.zeros(count + 1, 8, dtype=bf16)}, ValueError),
        ({"output": torch.zeros(count, 8)}, (ValueError, TypeError)),
        ({"output": torch.zeros(8, count, dtype=bf16).t()}, ValueError),
        ({"output": 1}, TypeError),
    ]
    for changes, error in bad:
        if rank.rank == 1 and "output" in changes and changes["output"] is bad[7][0]["output"]:
            continue  # one row is contiguous however it was made
        with pytest.raises(error, match=r"combine: .*got"):
            instance.combine(**{"expert_output": good, **changes})
    combined = instance.combine(good.view(2, 3, 8))
    assert combined.tolist() == [[0.0] * 8] * count


def test_bad_combine_arguments_leave_the_round_open(backend):
    """FR-141: wrong shape, dtype or stride raises before anything is sent."""
    backend.run(2, bad_combine_arguments)


def output_given(rank):
    case = Case(tokens=(3, 2), hidden_size=8)
    instance = rank.create(case.params)
    count = case.tokens[rank.rank]
    large = torch.full((count + 4, 8), 7.0, dtype=torch.bfloat16)
    output = large[2 : 2 + count]
    combined = run_round(rank, instance, case, output=output)
    assert combined.data_ptr() == output.data_ptr()
    assert (large[:2] == 7).all()
    assert (large[2 + count :] == 7).all()
    fresh = run_round(rank, instance, case)
    assert fresh.data_ptr() != output.data_ptr()
    assert torch.equal(fresh.view(torch.int16), output.view(torch.int16))


def test_combine_writes_into_a_given_output(backend):
    """FR-141: a slice of a larger tensor will do, and its surroundings stay."""
    backend.run(2, output_given)


def wrong_order(rank):
    case = Case(tokens=(2, 2))
    instance = rank.create(case.params)
    arguments = case.tensors(rank.rank)
    rows = torch.zeros(4, 16, dtype=torch.bfloat16)
    assert instance.last_transport is None
    with pytest.raises(RuntimeError, match="combine"):
        instance.combine(rows)
    with pytest.raises(RuntimeError, match="get_combine_input_buffer"):
        instance.get_combine_input_buffer(torch.bfloat16)
    instance.dispatch(**arguments)
    with pytest.raises(RuntimeError, match="dispatch"):
        instance.dispatch(**arguments)
    with pytest.raises((ValueError, TypeError), match="get_combine_input_buffer"):
        instance.get_combine_input_buffer(torch.float64)
    instance.combine(rows)
    with pytest.raises(RuntimeError, match="combine"):
        instance.combine(rows)
    assert instance.last_transport in ("fence", "lamport", "counted")
    run_round(rank, instance, case.again(1))


def test_calls_in_the_wrong_order_raise_at_once(backend):
    """FR-070: the second dispatch does not wait for anybody, and the round goes on."""
    backend.run(2, wrong_order)


def after_destroy(rank):
    case = Case(tokens=(2, 2))
    instance = rank.create(case.params)
    run_round(rank, instance, case)
    instance.dispatch(**case.again(1).tensors(rank.rank))
    instance.destroy()
    instance.destroy()
    for call in (
        lambda: instance.dispatch(**case.tensors(rank.rank)),
        lambda: instance.combine(torch.zeros(4, 16, dtype=torch.bfloat16)),
        lambda: instance.get_combine_input_buffer(torch.bfloat16),
    ):
        with pytest.raises(RuntimeError, match="destroy") as caught:
            call()
        assert not isinstance(caught.value, moe_ep.MoEEpError)


def test_use_after_destroy_raises(backend):
    """FR-132: destroy is idempotent and abandons the open round."""
    backend.run(2, after_destroy)


def round_that_fails(rank, case):
    instance = rank.create(case.params)
    instance.dispatch(**case.tensors(rank.rank))
    try:
        return 1 / (rank.rank * 0)
    finally:
        instance.destroy()


def exception_in_round(rank):
    case = Case(tokens=(2, 2))
    with pytest.raises(ZeroDivisionError):
        round_that_fails(rank, case)
    run_round(rank, rank.create(case.params), case)


def test_an_exception_between_dispatch_and_combine(backend):
    """FR-132: destroy waits for nobody; a new instance works."""
    backend.run(2, exception_in_round)


def inference_mode(rank):
    case = Case(tokens=(2, 3), capacity=3, eplb=4)
    options = {"eplb_stats_num_experts": 4} if rank.backend.has("eplb_stats_num_experts") else {}
    with torch.inference_mode():
        instance = rank.create(case.params, **options)
        run_round(rank, instance, case)
    run_round(rank, instance, case.again(1), in_buffer=True)
    other = rank.create(case.params, **options)
    run_round(rank, other, case.again(2), in_buffer=True)
    with torch.inference_mode():
        run_round(rank, other, case.again(3), in_buffer=True)
    assert torch.is_grad_enabled()
    arguments = case.tensors(rank.rank)
    arguments["hidden_states"].requires_grad_()
    result = other.dispatch(**arguments)
    assert not result.hidden_states.requires_grad
    rows = torch.zeros(6, 16, dtype=torch.bfloat16, requires_grad=True)
    assert not other.combine(rows).requires_grad


def test_inference_mode_may_come_and_go(backend):
    """FR-139: construct in it and use outside, and the reverse."""
    backend.run(2, inference_mode)


def inputs_are_left_alone(rank):
    case = Case(tokens=(3, 2), id_dtype="int64", picks="void")
    instance = rank.create(case.params)
    arguments = case.tensors(rank.rank)
    copies = {name: tensor.clone() for name, tensor in arguments.items()}
    instance.dispatch(**arguments)
    for name, tensor in arguments.items():
        assert torch.equal(tensor.view(torch.uint8), copies[name].view(torch.uint8)), name
        tensor.fill_(1)  # FR-079: what was sent is what was there at the call
    rows = torch.ones(6, 16, dtype=torch.bfloat16)
    instance.combine(rows)
    assert (rows == 1).all()


def test_inputs_are_only_read(backend):
    backend.run(2, inputs_are_left_alone)
