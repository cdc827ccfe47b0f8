"""The numpy reference, against values worked out by hand and by other means."""

import fractions

import numpy as np
import pytest
import torch

from moe_ep.testing import (
    RankInput,
    destinations,
    equal_bits,
    expert_owner,
    from_float32,
    half_ulp,
    reference_combine,
    reference_combine_bound,
    reference_dispatch,
    to_float32,
)
from moe_ep.testing.tensors import to_numpy, to_torch


def test_owners_of_divisible_experts():
    assert [expert_owner(e, 8, 4) for e in range(8)] == [0, 0, 1, 1, 2, 2, 3, 3]


def test_owners_of_indivisible_experts():
    """FR-029, FR-030: the first ranks own one more."""
    assert [expert_owner(e, 10, 4) for e in range(10)] == [0, 0, 0, 1, 1, 1, 2, 2, 3, 3]
    owners = [expert_owner(e, 256, 3) for e in range(256)]
    assert [owners.count(rank) for rank in range(3)] == [86, 85, 85]
    assert owners == sorted(owners)
    assert [expert_owner(e, 2, 4) for e in range(2)] == [0, 1]
    with pytest.raises(ValueError, match="expert must be in"):
        expert_owner(8, 8, 4)


@pytest.mark.parametrize(
    ("picks", "expected"),
    [
        ([0, 1], [0]),
        ([7, 0], [0, 3]),
        ([3, 3, 5, 5], [1, 2]),
        ([-1, 3], [1]),
        ([8, -7, 2**31 - 1], []),
        ([2**32 + 3, -(2**40)], []),
    ],
)
def test_destinations(picks, expected):
    """FR-033, FR-034, FR-036, FR-041."""
    assert destinations(np.array(picks, dtype=np.int64), 8, 4) == expected


def two_ranks():
    """Four experts on two ranks; rank 0 has three tokens, rank 1 has two."""
    return [
        RankInput(
            hidden_states=np.array([[10], [11], [12]], np.uint8),
            topk_ids=np.array([[0, 2], [3, 3], [-1, 9]]),
            topk_weights=np.array([[1, 2], [3, 4], [5, 6]], np.float32),
            eplb_local_stats=np.array([1, 2], np.int32),
            extra_payloads={"x": np.array([[1, 1], [2, 2], [3, 3]], np.int16)},
        ),
        RankInput(
            hidden_states=np.array([[20], [21]], np.uint8),
            topk_ids=np.array([[2, 3], [1, 3]]),
            topk_weights=np.array([[7, 8], [9, 10]], np.float32),
            eplb_local_stats=np.array([3, 4], np.int32),
            extra_payloads={"x": np.array([[4, 4], [5, 5]], np.int16)},
        ),
    ]


def test_compact_placement():
    first, second = reference_dispatch(
        two_ranks(), num_experts=4, tokens_per_rank=3, invalid_expert_id=99
    )
    assert first.tokens.tolist() == [0, -1, -1, 1, -1, -1]
    assert first.hidden_states[[0, 3], 0].tolist() == [10, 21]
    assert first.topk_ids.tolist() == [[0, 2], [99, 99], [99, 99], [1, 3], [99, 99], [99, 99]]
    assert first.topk_weights[[0, 3]].tolist() == [[1, 2], [9, 10]]
    assert first.recv_counts.tolist() == [1, 1]
    assert second.tokens.tolist() == [0, 1, -1, 0, 1, -1]
    assert second.hidden_states[[0, 1, 3, 4], 0].tolist() == [10, 11, 20, 21]
    assert second.topk_ids.tolist() == [[0, 2], [3, 3], [99, 99], [2, 3], [1, 3], [99, 99]]
    assert second.extra_payloads["x"][[0, 1, 3, 4], 0].tolist() == [1, 2, 4, 5]
    assert second.recv_counts.dtype == np.int32
    assert second.recv_counts.tolist() == [2, 2]
    for result in (first, second):
        assert result.eplb_gathered_stats.tolist() == [[1, 2], [3, 4]]
        assert result.hidden_states_scale is None


def test_placement_by_token():
    first, second = reference_dispatch(
        two_ranks(), num_experts=4, tokens_per_rank=3, placement="by_token"
    )
    assert first.tokens.tolist() == [0, -1, -1, -1, 1, -1]
    assert second.tokens.tolist() == [0, 1, -1, 0, 1, -1]
    assert first.topk_ids.tolist()[4] == [1, 3]
    assert first.recv_counts.tolist() == [1, 1]


def test_ranks_that_do_not_take_part():
    """FR-094: they send nothing and get nothing; their statistics are zero."""
    first, second = reference_dispatch(
        two_ranks(), num_experts=4, tokens_per_rank=3, active_ranks=[1]
    )
    assert first is None
    assert second.tokens.tolist() == [-1, -1, -1, 0, 1, -1]
    assert second.recv_counts.tolist() == [0, 2]
    assert second.eplb_gathered_stats.tolist() == [[0, 0], [3, 4]]
    rows = np.arange(6, dtype=np.float32)[:, None]
    combined = reference_combine([first, second], [None, rows], [3, 2], "float32")
    assert combined[1].tolist() == [[3.0], [4.0]]


def test_wide_ids_become_invalid():
    """FR-036."""
    inputs = [RankInput(np.zeros((1, 1), np.uint8), np.array([[2**32 + 3, 1]]))]
    (result,) = reference_dispatch(inputs, num_experts=4, tokens_per_rank=1)
    assert result.topk_ids.tolist() == [[-1, 1]]


def test_combine_by_hand():
    results = reference_dispatch(two_ranks(), num_experts=4, tokens_per_rank=3)
    nan = np.nan
    first = np.array([[1], [nan], [nan], [2], [nan], [nan]], np.float32)
    second = np.array([[10], [20], [nan], [30], [40], [nan]], np.float32)
    zero, one = reference_combine(results, [first, second], [3, 2], "float32")
    assert zero.tolist() == [[11.0], [20.0], [0.0]]
    assert not np.signbit(zero[2, 0])
    assert one.tolist() == [[30.0], [42.0]]


def sum_of(parts, dtype):
    """The combine of one token that every rank received, rank r returning parts[r]."""
    count = len(parts)
    inputs = [RankInput(np.zeros((1, 1), np.uint8), np.arange(count)[None]) for _ in range(count)]
    results = reference_dispatch(inputs, num_experts=count, tokens_per_rank=1)
    outputs = [from_float32(np.full((count, 1), part, np.float32), dtype) for part in parts]
    combined = reference_combine(results, outputs, [1] * count, dtype)[0]
    return float(to_float32(combined, dtype)[0, 0])


def test_sums_start_from_the_first_contribution():
    """FR-108: the sign of zero."""
    for parts, negative in [([-0.0], True), ([-0.0, -0.0], True), ([-0.0, 0.0], False)]:
        total = sum_of(parts, "bfloat16")
        assert total == 0
        assert np.signbit(total) == negative


def test_sums_are_float32_in_rank_order():
    """FR-100, FR-107."""
    assert sum_of([1.0, 2.0**-9, -1.0], "bfloat16") == 2.0**-9
    assert sum_of([2.0**24, 1.0, 1.0], "float32") == 2.0**24
    assert sum_of([1.0, 1.0, 2.0**24], "float32") == 2.0**24 + 2


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_rounding_agrees_with_torch_everywhere(dtype):
    """All values, all ties between neighbours, and just beside the ties."""
    kind = getattr(torch, dtype)
    patterns = torch.arange(2**16, dtype=torch.int32).to(torch.int16).view(kind)
    values = patterns.float().numpy()
    finite = values[np.isfinite(values)]
    with np.errstate(over="ignore"):
        ties = ((finite.astype(np.float64) + np.sort(finite)[::-1]) / 2).astype(np.float32)
        neighbours = np.sort(finite)
        ties = ((neighbours[:-1].astype(np.float64) + neighbours[1:]) / 2).astype(np.float32)
    inputs = np.concatenate(
        [
            values,
            ties,
            np.nextafter(ties, np.float32(np.inf)),
            np.nextafter(ties, np.float32(-np.inf)),
            np.array([np.finfo(np.float32).max, -np.finfo(np.float32).max, 1e-45], np.float32),
        ]
    )
    ours = from_float32(inputs, dtype)
    theirs = to_numpy(torch.from_numpy(inputs).to(kind))
    assert equal_bits(ours, theirs, dtype)
    back = to_float32(to_numpy(patterns), dtype)
    np.testing.assert_array_equal(back, values)


def test_rounding_of_nan_stays_nan():
    payloads = np.array([0x7F800001, 0xFF800001, 0x7FFFFFFF], np.uint32).view(np.float32)
    for dtype in ("bfloat16", "float16", "float32"):
        assert np.isnan(to_float32(from_float32(payloads, dtype), dtype)).all()


def test_equal_bits():
    one = np.array([0.0, np.nan], np.float32)
    assert equal_bits(one, -np.abs(np.array([-0.0, np.nan], np.float32)) * -1, "float32")
    assert not equal_bits(one, np.array([-0.0, np.nan], np.float32), "float32")
    assert not equal_bits(one, one[:1], "float32")


def test_half_ulp():
    values = np.array([1.0, 1.5, 2.0, 0.75, 0.0])
    expected = np.array([2.0**-8, 2.0**-8, 2.0**-7, 2.0**-9, 2.0**-134])
    np.testing.assert_array_equal(half_ulp(values, "bfloat16"), expected)
    assert half_ulp(np.array([1.0]), "float16") == 2.0**-11
    assert half_ulp(np.array([1.0]), "float32") == 2.0**-24


def test_bound_of_a_low_precision_combine():
    """FR-102: exact sums, and the bound of one contribution by hand."""
    inputs = [RankInput(np.zeros((1, 1), np.uint8), np.array([[0]]))]
    results = reference_dispatch(inputs, num_experts=1, tokens_per_rank=1)
    values = np.zeros((1, 130), np.float32)
    values[0, 0], values[0, 1], values[0, 129] = 448.0, np.inf, 4.48
    ((exact, bound),) = reference_combine_bound(results, [values], [1], "float32")
    assert exact[0, 0] == 448.0
    assert np.isnan(exact[0, 1])
    assert np.isnan(bound[0, 1])
    assert bound[0, 0] == pytest.approx(28.0 + 2.0**-10, rel=1e-4)
    assert bound[0, 2] == pytest.approx(2.0**-10, rel=1e-4)  # s = 448 / 448
    assert bound[0, 129] == pytest.approx(4.48 / 16 + 2.0**-10 * 0.01, rel=1e-4)


@pytest.mark.parametrize("seed", range(4))
def test_sums_agree_with_exact_arithmetic(seed):
    """Two contributions: one rounding, so the exact sum rounded is the answer."""
    rng = np.random.default_rng(seed)
    inputs = [RankInput(np.zeros((6, 1), np.uint8), np.tile([0, 1], (6, 1)))] * 2
    results = reference_dispatch(inputs, num_experts=2, tokens_per_rank=6)
    rows = [rng.standard_normal((12, 5), np.float32) * 2.0 ** rng.integers(-9, 9) for _ in "ab"]
    rows = [row.astype(np.float32) for row in rows]
    combined = reference_combine(results, rows, [6, 6], "float32")
    for src in range(2):
        for token in range(6):
            for column in range(5):
                parts = [fractions.Fraction(float(row[src * 6 + token, column])) for row in rows]
                assert combined[src][token, column] == np.float32(float(sum(parts)))


def test_tensors_go_there_and_back():
    for dtype in (torch.bfloat16, torch.float8_e4m3fn, torch.float4_e2m1fn_x2, torch.int64):
        bits = torch.arange(32, dtype=torch.uint8).view(dtype)
        array = to_numpy(bits)
        assert array.tobytes() == bytes(range(32))
        assert torch.equal(to_torch(array, dtype).view(torch.uint8), bits.view(torch.uint8))
    strided = torch.arange(12.0).view(3, 4).bfloat16().t()
    assert to_torch(to_numpy(strided), torch.bfloat16).tolist() == strided.tolist()
