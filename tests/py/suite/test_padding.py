"""PAD: rows without a token are marked and never read."""

import math

import torch

from support.cases import Case
from support.oracle import run_round, run_rounds


def test_rows_left_by_a_larger_step_are_marked(backend):
    """FR-045: a full step first, then fewer tokens over the same memory."""
    cases = [
        Case(tokens=(8, 8), capacity=8, top_k=4),
        Case(tokens=(1, 0), capacity=8, top_k=4, seed=1),
        Case(tokens=(0, 3), capacity=8, top_k=4, seed=2, runtime_max=5),
    ]
    backend.run(2, run_rounds, cases)


def poison_everything(rank):
    case = Case(tokens=(3, 1, 0, 2), capacity=5, num_experts=16, picks="void")
    instance = rank.create(case.params)
    for seed in range(4):
        step = case.again(seed)
        result = instance.dispatch(**step.tensors(rank.rank))
        buffer = instance.get_combine_input_buffer(torch.bfloat16)
        if buffer is not None:
            buffer.fill_(math.nan)
        # Views of padding rows are the caller's to scribble on, too.
        result.hidden_states.fill_(math.nan)
        instance.combine(torch.zeros(20, 16, dtype=torch.bfloat16))
        run_round(rank, instance, step, in_buffer=seed % 2 == 0)


def test_rows_without_a_token_are_never_read(backend):
    """FR-046, FR-047: NaN in them reaches no result, nor does an earlier round's."""
    backend.run(4, poison_everything)


def with_fill(rank):
    case = Case(tokens=(3, 2), capacity=4)
    torch.use_deterministic_algorithms(True)
    try:
        instance = rank.create(case.params)
        for seed in range(5):
            run_round(rank, instance, case.again(seed), in_buffer=seed % 2 == 1)
    finally:
        torch.use_deterministic_algorithms(False)


def test_fill_of_uninitialised_memory_does_no_harm(backend):
    """FR-048: torch fills what it allocates with NaN in deterministic mode."""
    backend.run(2, with_fill)


def readable_rows(rank):
    case = Case(tokens=(1, 0), capacity=4, scale=("float32", 2))
    options = {"extra_payload_bytes_per_token": 8}
    instance = rank.create(
        case.params, **{name: value for name, value in options.items() if rank.backend.has(name)}
    )
    result = instance.dispatch(**case.tensors(rank.rank))
    for tensor in (result.hidden_states, result.topk_weights, result.hidden_states_scale):
        assert tensor.clone().shape[0] == 8
    instance.combine(torch.zeros_like(result.hidden_states))


def test_all_rows_can_be_read(backend):
    backend.run(2, readable_rows)
