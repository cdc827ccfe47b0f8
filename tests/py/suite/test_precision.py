"""PREC: float32 sums in a fixed order, rounded once."""

import pytest
import torch

import moe_ep
from support.cases import DTYPES, Case
from support.oracle import run_round, run_rounds


def one_token_everywhere(rank, dtype, partials, expected):
    """Every rank sends one token to all ranks; rank r's expert returns partials[r]."""
    world_size = rank.world_size
    instance = rank.create(
        moe_ep.MoEEpCommParams(world_size, world_size, 1, len(partials[0]), dtype=DTYPES[dtype])
    )
    ids = torch.arange(world_size, dtype=torch.int32)[None]
    instance.dispatch(torch.zeros(1, len(partials[0]), dtype=DTYPES[dtype]), ids)
    rows = torch.tensor([partials[rank.rank]] * world_size, dtype=DTYPES[dtype])
    combined = instance.combine(rows)
    wanted = torch.tensor([expected], dtype=DTYPES[dtype])
    bits = {2: torch.int16, 4: torch.int32}[wanted.element_size()]
    assert torch.equal(combined.view(bits), wanted.view(bits)), combined


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_sums_are_taken_in_float32(backend, dtype):
    """FR-100: 1 + 2**-9 - 1."""
    partials = [[1.0], [2.0**-9], [-1.0]]
    backend.run(3, one_token_everywhere, dtype, partials, [2.0**-9])


def test_sums_go_by_ascending_rank(backend):
    """FR-107: an order in which float32 rounds as it does in no other."""
    partials = [[2.0**24, 1.0], [1.0, 2.0**24], [1.0, -(2.0**24)]]
    # (2**24 + 1) + 1 stays 2**24; (1 + 2**24) - 2**24 loses the 1.
    backend.run(3, one_token_everywhere, "float32", partials, [2.0**24, 0.0])


def test_signs_of_zero(backend):
    """FR-108: the sum starts from the first contribution, not from +0."""
    partials = [[-0.0, -0.0, 0.0, 1.0], [-0.0, 0.0, -0.0, -1.0]]
    backend.run(2, one_token_everywhere, "bfloat16", partials, [-0.0, 0.0, 0.0, 0.0])


def test_rounding_is_to_nearest_even(backend):
    """FR-015: ties, and just beside them."""
    ulp = 2.0**-7
    partials = [
        [1.0, 1.0 + ulp, 1.0, 3.0e38],
        [ulp / 2, ulp / 2, ulp / 2, 3.0e38],
        [0.0, 0.0, 2.0**-30, 0.0],
    ]
    # 2**-30 is lost in float32 already: the sum is a tie and goes to the even neighbour.
    expected = [1.0, 1.0 + 2 * ulp, 1.0, float("inf")]
    backend.run(3, one_token_everywhere, "bfloat16", partials, expected)


def test_subnormal_sums_are_kept(backend):
    """FR-108: nothing is flushed to zero."""
    tiny = 2.0**-133
    backend.run(
        2, one_token_everywhere, "bfloat16", [[tiny, -tiny], [tiny, -tiny]], [2 * tiny, -2 * tiny]
    )


def repeated(rank):
    case = Case(tokens=(6, 5, 7, 4), num_experts=16, top_k=6)
    instance = rank.create(case.params)
    first = run_round(rank, instance, case)
    for _ in range(20):
        again = run_round(rank, instance, case)
        assert torch.equal(first.view(torch.int16), again.view(torch.int16))
    wider = run_round(
        rank, rank.create(case.again(0, capacity=19).params), case.again(0, capacity=19)
    )
    assert torch.equal(first.view(torch.int16), wider.view(torch.int16))


def test_results_repeat_to_the_bit(backend):
    """FR-105, FR-107: whatever the capacity and however often."""
    backend.run(4, repeated)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_every_dtype_is_exact(backend, dtype):
    case = Case(tokens=(9, 8, 7), num_experts=12, top_k=6, dtype=dtype, hidden_size=96)
    backend.run(3, run_rounds, [case.again(seed) for seed in range(3)])
