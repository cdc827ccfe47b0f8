"""TOPK: top-k, duplicates, void picks, id dtypes, ownership."""

import numpy as np
import pytest
import torch

import moe_ep
from support.cases import Case
from support.oracle import run_round, run_rounds


@pytest.mark.parametrize("top_k", [1, 2, 3, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 16, 18, 22, 32, 64])
def test_any_top_k(backend, top_k):
    """FR-023, FR-024, FR-026: no table of blessed values."""
    case = Case(tokens=(3, 2, 0, 4), num_experts=64, top_k=top_k)
    backend.run(4, run_rounds, [case])


@pytest.mark.parametrize("hidden_size", [1, 7, 64, 2880, 7168])
def test_any_hidden_size(backend, hidden_size):
    """FR-028: no caller pads."""
    case = Case(tokens=(3, 2), hidden_size=hidden_size)
    backend.run(2, run_rounds, [case, case.again(1)])


def test_many_experts(backend):
    """FR-044: more experts than a block has threads."""
    case = Case(tokens=(4, 2, 3, 1, 0, 4, 4, 2), num_experts=4096, top_k=8)
    backend.run(8, run_rounds, [case])


def test_all_picks_on_one_rank_arrive_once(backend):
    """FR-019: every token has all its picks on rank 0."""
    case = Case(tokens=(40, 64, 33, 50), num_experts=32, top_k=8, picks=0)
    backend.run(4, run_rounds, [case])


def test_duplicate_picks_send_a_token_once(backend):
    """FR-034: the row of picks arrives unchanged."""
    case = Case(tokens=(6, 5, 7, 4), num_experts=4, top_k=4, picks="duplicates")
    backend.run(4, run_rounds, [case.again(seed) for seed in range(4)])


@pytest.mark.parametrize("id_dtype", ["int32", "int64"])
@pytest.mark.parametrize("picks", ["void", "all_void"])
def test_void_picks_go_nowhere(backend, picks, id_dtype):
    """FR-033, FR-039, FR-041: no void id becomes an expert's, and nothing combines to +0."""
    case = Case(tokens=(6, 5, 7, 4), num_experts=8, top_k=4, picks=picks, id_dtype=id_dtype)
    backend.run(4, run_rounds, [case.again(seed) for seed in range(4)])


def ids_beyond_32_bits(rank):
    instance = rank.create(moe_ep.MoEEpCommParams(8, 2, 2, 4))
    ids = torch.tensor([[2**32 + 3, -(2**32) + 5], [2**40, 1]])
    result = instance.dispatch(torch.ones(2, 4, dtype=torch.bfloat16), ids)
    expected = [2, 2] if rank.rank == 0 else [0, 0]
    assert [int(count) for count in result.recv_counts] == [n // 2 for n in expected]
    arrived = result.topk_ids[result.topk_ids[:, 1] == 1]
    assert arrived[:, 0].tolist() == [-1] * len(arrived)
    combined = instance.combine(torch.ones(2 * 2, 4, dtype=torch.bfloat16))
    assert combined.tolist() == [[0.0] * 4, [1.0] * 4]


def test_wide_ids_are_not_truncated(backend):
    """FR-036: 2**32 + 3 is not expert 3."""
    backend.run(2, ids_beyond_32_bits)


def id_dtypes_agree(rank):
    case = Case(tokens=(5, 4), num_experts=8, top_k=3, picks="void")
    instance = rank.create(case.params)
    first = run_round(rank, instance, case)
    second = run_round(rank, instance, case.again(0, id_dtype="int64"))
    assert torch.equal(first.view(torch.int16), second.view(torch.int16))


def test_int32_and_int64_ids_mean_the_same(backend):
    """FR-036, FR-037: ids arrive as int32 whatever was sent."""
    backend.run(2, id_dtypes_agree)


@pytest.mark.parametrize("invalid", [-1, 8, 15, 2**31 - 1, -(2**31)])
def test_invalid_expert_id_marks_rows(backend, invalid):
    """FR-038: the configured id appears verbatim."""
    case = Case(tokens=(2, 0), capacity=3, invalid_expert_id=invalid)
    backend.run(2, run_rounds, [case, case.again(1, picks="void")])


def owner_of_each_expert(rank):
    experts, world_size = 12, rank.world_size
    instance = rank.create(moe_ep.MoEEpCommParams(experts, 1, experts, 4))
    ids = torch.arange(experts, dtype=torch.int32)[:, None]
    result = instance.dispatch(torch.zeros(experts, 4, dtype=torch.bfloat16), ids)
    mine = sorted({int(pick) for pick in result.topk_ids.flatten() if pick >= 0})
    instance.combine(torch.zeros(world_size * experts, 4, dtype=torch.bfloat16))
    return mine


def test_ownership_is_contiguous(backend):
    """FR-029: each expert has one owner, in blocks."""
    owned = backend.run(4, owner_of_each_expert)
    assert owned == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 10, 11]]


def construct_with(rank, num_experts):
    with pytest.raises(ValueError, match=f"num_experts.*{num_experts}"):
        rank.create(moe_ep.MoEEpCommParams(num_experts, 2, 4, 8))


@pytest.mark.parametrize(("num_experts", "world_size"), [(10, 4), (256, 3)])
def test_experts_that_do_not_divide_are_refused(backend, num_experts, world_size):
    """FR-029, FR-030: a clear error, on every rank."""
    backend.run(world_size, construct_with, num_experts)


def partial_sums(rank):
    instance = rank.create(moe_ep.MoEEpCommParams(4, 4, 1, 2))
    ids = torch.tensor([[0, 1, 2, 3]])
    instance.dispatch(torch.zeros(1, 2, dtype=torch.bfloat16), ids)
    rows = torch.full((rank.world_size, 2), float(2 ** (4 * rank.rank)), dtype=torch.bfloat16)
    combined = instance.combine(rows)
    expected = np.sum([2.0 ** (4 * r) for r in range(rank.world_size)])
    assert combined.tolist() == [[expected, expected]]


def test_combine_adds_each_rank_once(backend):
    """FR-073: the result is the sum of the ranks' partial results."""
    backend.run(2, partial_sums)
