"""ZERO: ranks that send nothing or receive nothing."""

import torch

from support.cases import Case
from support.oracle import run_rounds


def test_some_ranks_send_nothing(backend):
    """FR-001: three rounds in a row, one rank without tokens."""
    case = Case(tokens=(5, 0, 7, 3), top_k=8, num_experts=16, runtime_max=7, capacity=9)
    backend.run(4, run_rounds, [case.again(seed) for seed in range(3)])


def test_a_rank_without_tokens_passes_empty_quantised_tensors(backend):
    """FR-002: packed FP4 rows and their scales, nothing on rank 1."""
    case = Case(
        tokens=(3, 0, 2, 4),
        num_experts=16,
        top_k=4,
        hidden_size=64,
        payload_dtype="uint8",
        payload_width=32,
        scale=("float8_e4m3fn", 4),
    )
    backend.run(4, run_rounds, [case, case.again(1)])


def test_ranks_that_receive_nothing(backend):
    """FR-004: every token goes to one rank, the first and then the last."""
    case = Case(tokens=(4, 3, 5, 2), num_experts=16, top_k=3, picks=0)
    backend.run(4, run_rounds, [case, case.again(1, picks=3), case.again(2, picks=1)])


def test_a_step_without_any_token(backend):
    """FR-006: all ranks are empty; the next round is exact."""
    empty = Case(tokens=(0, 0, 0, 0), capacity=4, runtime_max=1)
    full = Case(tokens=(4, 1, 2, 3), capacity=4, seed=1)
    backend.run(4, run_rounds, [empty, full, empty, empty, full.again(2)])


def test_counts_alternate_between_none_and_capacity(backend):
    """FR-007: no count stands for "nothing arrived yet"."""
    cases = [
        Case(tokens=(0, 3) if seed % 2 else (3, 0), capacity=3, num_experts=4, seed=seed)
        for seed in range(30)
    ]
    backend.run(2, run_rounds, cases)


def empty_tensors_of_any_stride(rank):
    case = Case(tokens=(2, 0), capacity=2)
    instance = rank.create(case.params)
    arguments = case.tensors(rank.rank)
    if rank.rank == 1:
        arguments["hidden_states"] = torch.empty(16, 0, dtype=torch.bfloat16).t()
        arguments["topk_ids"] = torch.empty(2, 0, dtype=torch.int32).t()
        arguments["topk_weights"] = torch.empty(0).expand(2, 0).t()
    result = instance.dispatch(**arguments)
    combined = instance.combine(torch.zeros_like(result.hidden_states))
    assert tuple(combined.shape) == (case.tokens[rank.rank], 16)


def test_strides_of_empty_tensors_mean_nothing(backend):
    """FR-002: an empty tensor may have been made in any way."""
    backend.run(2, empty_tensors_of_any_stride)
