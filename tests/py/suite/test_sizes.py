"""SIZE: tokens per rank, agreement of ranks, capacity."""

import pytest
import torch

import moe_ep
from support.cases import Case
from support.oracle import run_round, run_rounds, supported


def test_runtime_max_changes_every_step(backend):
    """FR-014: 1, then the capacity, then 3."""
    cases = [
        Case(tokens=(1, 0, 1, 1), capacity=8, runtime_max=1),
        Case(tokens=(8, 7, 2, 0), capacity=8),
        Case(tokens=(2, 3, 0, 1), capacity=8, runtime_max=3, seed=1),
        Case(tokens=(8, 8, 8, 8), capacity=8, runtime_max=8, seed=2),
        Case(tokens=(0, 1, 1, 0), capacity=8, runtime_max=1, seed=3),
    ]
    backend.run(4, run_rounds, cases)


def bad_runtime_max(rank):
    case = Case(tokens=(4, 4), capacity=4)
    instance = rank.create(case.params)
    arguments = case.tensors(rank.rank)
    for bad in (5, 0, -1):
        with pytest.raises(ValueError, match="runtime_max_tokens_per_rank"):
            instance.dispatch(**arguments, runtime_max_tokens_per_rank=bad)
    with pytest.raises(ValueError, match=r"3.*got.*4"):
        instance.dispatch(**arguments, runtime_max_tokens_per_rank=3)
    run_round(rank, instance, case.again(1, runtime_max=4))
    run_round(rank, instance, case.again(1))


def test_runtime_max_out_of_range_is_refused(backend):
    """FR-015: nothing is sent, and the next step is fine."""
    backend.run(2, bad_runtime_max)


def dispatch_and_wait(instance, arguments):
    """Failures of a step that is only enqueued come when it is waited for."""
    instance.dispatch(**arguments)
    instance.synchronize()


def disagree(rank, field, values):
    case = Case(tokens=(2,) * rank.world_size, num_experts=12, capacity=8)
    # Ranks that choose different transports find out by waiting.
    options = {"timeout_sec": 5} if rank.backend.has("timeout_sec") else {}
    instance = rank.create(case.params, **options)
    arguments = case.tensors(rank.rank)
    value = values[rank.rank]
    arguments[field] = value.to(rank.device) if isinstance(value, torch.Tensor) else value
    with pytest.raises(moe_ep.MoEEpError) as caught:
        dispatch_and_wait(instance, arguments)
    instance_refuses(instance, arguments)
    return type(caught.value).__name__, str(caught.value)


def instance_refuses(instance, arguments):
    with pytest.raises(moe_ep.MoEEpError):
        instance.check()
    with pytest.raises(moe_ep.MoEEpError):
        instance.dispatch(**arguments)


def test_ranks_that_disagree_on_the_step_are_told(backend):
    """FR-009: every rank raises and names both values."""
    field = "runtime_max_tokens_per_rank"
    for name, message in backend.run(2, disagree, field, [4, 8]):
        assert name in ("MoEEpMismatchError", "MoEEpTimeoutError")
        if name == "MoEEpMismatchError":
            assert field in message
            assert "4" in message
            assert "8" in message


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("topk_weights", [torch.ones(2, 2), None, torch.ones(2, 2)]),
        ("hidden_states", [torch.ones(2, 16, dtype=torch.bfloat16)] * 2 + [torch.ones(2, 3)]),
    ],
    ids=["weights", "width"],
)
def test_other_differences_of_a_step_are_told(backend, field, values):
    """FR-009: presence and width travel with the step."""
    for name, message in backend.run(3, disagree, field, values):
        assert name in ("MoEEpMismatchError", "MoEEpTimeoutError")
        if name == "MoEEpMismatchError":
            assert field in message


def recover_after_difference(rank):
    case = Case(tokens=(2, 2), capacity=8)
    instance = rank.create(case.params)
    arguments = case.tensors(rank.rank) | {"runtime_max_tokens_per_rank": 4 + rank.rank}
    with pytest.raises(moe_ep.MoEEpError):
        dispatch_and_wait(instance, arguments)
    instance.recover(range(rank.world_size), rank.comm)
    instance.check()
    run_round(rank, instance, case.again(1))


def test_recover_ends_the_refusal(backend):
    """FR-009: after `recover` with all ranks steps go on."""
    backend.run(2, recover_after_difference)


def construct_differently(rank, field, values):
    fields = {
        "num_experts": 12,
        "top_k": 2,
        "max_tokens_per_rank": 64,
        "hidden_size": 16,
        field: values[rank.rank],
    }
    with pytest.raises(ValueError, match=field) as caught:
        rank.create(moe_ep.MoEEpCommParams(**fields))
    return str(caught.value)


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("max_tokens_per_rank", [64, 65, 64]),
        ("hidden_size", [16, 16, 32]),
        ("top_k", [2, 3, 2]),
        ("num_experts", [9, 15, 9]),
        ("invalid_expert_id", [-1, -1, -2]),
        ("dtype", [torch.bfloat16, torch.float16, torch.bfloat16]),
        ("dispatch_format", [moe_ep.QuantFormat.MXFP8, None, moe_ep.QuantFormat.MXFP8]),
    ],
)
def test_parameters_that_differ_are_refused_on_every_rank(backend, field, values):
    """FR-018: the message has the field and the values."""
    messages = backend.run(3, construct_differently, field, values)
    for value in values:
        words = str(getattr(value, "name", value)).removeprefix("torch.")
        assert all(words.lower() in message.lower() for message in messages)


def alternate_instances(rank):
    quantised = Case(
        tokens=(4, 3), hidden_size=64, payload_dtype="uint8", payload_width=32, scale=("uint8", 4)
    )
    plain = Case(tokens=(4, 4), hidden_size=64, seed=5)
    first = rank.create(quantised.params, **supported(rank, [quantised]))
    second = rank.create(plain.params)
    for seed in range(3):
        run_round(rank, first, quantised.again(seed))
        run_round(rank, second, plain.again(seed), in_buffer=True)


def test_instances_of_different_layout_alternate(backend):
    """FR-010: neither writes outside its own memory."""
    backend.run(2, alternate_instances)


def too_many_bytes(rank, options):
    case = Case(tokens=(2, 2), scale=("uint8", 8))
    instance = rank.create(case.params, **options)
    with pytest.raises(ValueError, match="extra_payload_bytes_per_token") as caught:
        instance.dispatch(**case.tensors(rank.rank))
    assert "40" in str(caught.value)  # 16 * 2 + 8 bytes a token
    run_round(rank, instance, case.again(1, scale=None))


@pytest.mark.parametrize("reserved", [0, 7])
def test_undeclared_bytes_are_refused(backend, reserved):
    """FR-011: before anything is sent, naming needed and available bytes and the option."""
    if not backend.has("extra_payload_bytes_per_token"):
        pytest.skip("the backend reserves nothing")
    backend.run(2, too_many_bytes, {"extra_payload_bytes_per_token": reserved})


def combine_address(rank):
    addresses = set()
    case = Case(tokens=(1, 1), capacity=7, runtime_max=1)
    steps = [case, case.again(1, runtime_max=7), case.again(2, weights=None, runtime_max=3)]
    instance = rank.create(case.params)
    for step in steps:
        result = instance.dispatch(**step.tensors(rank.rank))
        buffer = instance.get_combine_input_buffer(torch.bfloat16)
        if buffer is not None:
            addresses.add(buffer.data_ptr())
        instance.combine(torch.zeros_like(result.hidden_states))
    assert len(addresses) <= 1


def test_the_combine_input_lies_at_one_place(backend):
    """FR-012: whatever T and payloads are."""
    backend.run(2, combine_address)


def same_objects(rank):
    case = Case(tokens=(2, 1), capacity=4, extras=(("a", "float32", 2),), eplb=4)
    other = case.again(9, runtime_max=2)
    instance = rank.create(case.params, **supported(rank, [case]))

    def tensors(step):
        result = instance.dispatch(**step.tensors(rank.rank))
        instance.combine(torch.zeros_like(result.hidden_states))
        return [
            result.hidden_states,
            result.topk_ids,
            result.topk_weights,
            result.recv_counts,
            result.eplb_gathered_stats,
            *result.extra_payloads.values(),
        ]

    first = tensors(case)
    tensors(other)
    again = tensors(case.again(1))
    assert all(one is two for one, two in zip(first, again, strict=True))


def test_equal_steps_return_the_same_tensors(backend):
    backend.run(2, same_objects)
