"""PREC: the FP8 combine, where a backend has one."""

import math

import numpy as np
import pytest
import torch

from moe_ep.testing import reference_combine_bound
from moe_ep.testing.tensors import to_numpy
from support.cases import DTYPES, Case
from support.oracle import expert_output, reference_results


@pytest.fixture
def low_precision(backend):
    if not backend.has("use_low_precision_combine"):
        pytest.skip("the backend has no low-precision combine")
    return backend


def check_bound(rank, case, specials, in_buffer):
    """Combine the case's rows, some elements replaced, and hold them against the bound."""
    instance = rank.create(case.params, use_low_precision_combine=True)
    instance.dispatch(**case.tensors(rank.rank))
    results = reference_results(instance, case)
    outputs = []
    for dst, result in enumerate(results):
        rows = expert_output(case, dst, result.tokens, poison=False)
        for index, value in enumerate(specials):
            rows[dst::3, (7 * index + dst) % case.hidden_size] = value
        outputs.append(rows)
    mine = outputs[rank.rank].clone()
    mine[torch.from_numpy(results[rank.rank].tokens < 0)] = math.nan
    if in_buffer:
        buffer = instance.get_combine_input_buffer(DTYPES[case.dtype])
        buffer.copy_(mine)
        mine = buffer
    combined = to_numpy(instance.combine(mine).float()).astype(np.float64)
    bounds = reference_combine_bound(
        results, [to_numpy(rows) for rows in outputs], case.tokens, case.dtype
    )
    exact, bound = bounds[rank.rank]
    wanted_nan = np.isnan(exact)
    assert (np.isnan(combined) == wanted_nan).all(), "NaN in its own place only"
    error = np.abs(combined - exact)
    assert (error[~wanted_nan] <= bound[~wanted_nan]).all()
    return combined


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("hidden_size", [1, 100, 128, 300])
def test_the_error_is_bounded(low_precision, dtype, hidden_size):
    """FR-102: also beyond 448 and for odd hidden sizes."""
    case = Case(tokens=(9, 4, 7), num_experts=12, top_k=4, hidden_size=hidden_size, dtype=dtype)
    low_precision.run(3, check_bound, case, [2e4, -2e4], False)


def test_elements_that_are_not_finite(low_precision):
    """FR-102: NaN and infinities give NaN in their own place, and spoil no block."""
    case = Case(tokens=(9, 4, 7), num_experts=12, top_k=4, hidden_size=300)
    low_precision.run(3, check_bound, case, [math.nan, math.inf, -math.inf], False)


def test_rows_of_zeros(low_precision):
    case = Case(tokens=(2, 2), hidden_size=1)
    results = low_precision.run(2, check_bound, case, [0.0], False)
    assert np.isfinite(np.concatenate(results)).all()


def same_bits(rank, case):
    outside = check_bound(rank, case, [500.0], False)
    inside = check_bound(rank, case, [500.0], True)
    np.testing.assert_array_equal(outside, inside)


def test_the_buffer_gives_the_same_bits(low_precision):
    """FR-102: in place or from a tensor outside."""
    case = Case(tokens=(9, 4), num_experts=4, top_k=3, hidden_size=300)
    low_precision.run(2, same_bits, case)
