"""ALIGN: row widths, strides, payload dtypes, scales."""

import pytest
import torch

import moe_ep
from support.cases import DTYPES, Case
from support.oracle import (
    check_combined,
    check_dispatched,
    expert_output,
    reference_results,
    run_round,
    run_rounds,
    supported,
)

WIDTHS = (1, 2, 3, 4, 6, 8, 12, 14, 16, 30, 36, 448, 3584)


@pytest.mark.parametrize("width", WIDTHS)
def test_any_row_bytes_in_any_order(backend, width):
    """FR-051: every width beside every other, byte for byte."""
    cases = [
        Case(
            tokens=(3, 2),
            hidden_size=224,
            top_k=1,
            payload_dtype="uint8",
            payload_width=width,
            scale=("uint8", other),
            extras=(("x", "uint8", WIDTHS[(index * 5) % len(WIDTHS)]),),
            seed=index,
        )
        for index, other in enumerate(WIDTHS)
    ]
    backend.run(2, run_rounds, cases)


def any_top_k(rank, case):
    for top_k in (1, 3, 5):
        run_rounds(rank, [case.again(seed, top_k=top_k) for seed in range(2)])


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("hidden_size", [1, 3, 5, 9, 17, 1023, 2881])
def test_odd_hidden_sizes(backend, dtype, hidden_size):
    """FR-052: dispatch and combine of rows that no vector width divides."""
    case = Case(tokens=(2, 3), hidden_size=hidden_size, dtype=dtype, capacity=3)
    backend.run(2, any_top_k, case)


FORMATS = {
    "BF16": ("bfloat16", 256, None),
    "FP16": ("float16", 256, None),
    "FP8PerTensor": ("float8_e4m3fn", 256, None),
    "DeepSeekFp8": ("float8_e4m3fn", 256, ("float32", 2)),
    "MXFP8": ("float8_e4m3fn", 256, ("float8_e8m0fnu", 8)),
    "NVFP4": ("uint8", 128, ("float8_e4m3fn", 16)),
    "MXFP4": ("float4_e2m1fn_x2", 128, ("uint8", 8)),
}


@pytest.mark.parametrize("name", FORMATS)
def test_every_dispatch_format(backend, name):
    """FR-056: what the format says fits without any further reservation."""
    dtype, width, scale = FORMATS[name]
    case = Case(
        tokens=(5, 4),
        hidden_size=256,
        dispatch_format=name,
        payload_dtype=dtype,
        payload_width=width,
        scale=scale,
    )
    assert case.options["extra_payload_bytes_per_token"] == 0
    backend.run(2, run_rounds, [case, case.again(1)])


@pytest.mark.parametrize("dtype", ["uint8", "float8_e4m3fn", "float8_e8m0fnu", "int32", "float32"])
def test_scales_travel_as_opaque_bytes(backend, dtype):
    """FR-055, FR-056, FR-058: next to their row, in the order they had, all byte values."""
    cases = [
        Case(
            tokens=(16, 9),
            hidden_size=256,
            payload_dtype="float8_e4m3fn",
            scale=(dtype, width),
            seed=width,
        )
        for width in (2, 8, 16)
    ]
    backend.run(2, run_rounds, cases)


@pytest.mark.parametrize("dtype", sorted(DTYPES))
def test_any_payload_dtype(backend, dtype):
    """FR-108: all bit patterns pass; hidden_states need not be of token_dtype."""
    case = Case(tokens=(20, 17), hidden_size=64, payload_dtype=dtype, payload_width=16)
    backend.run(2, run_rounds, [case, case.again(1)])


def all_patterns(rank, dtype):
    count = 2**16 // 64
    words = torch.arange(2**16, dtype=torch.int32).to(torch.int16).view(count, 64)
    params = moe_ep.MoEEpCommParams(2, 1, count, 64, dtype=DTYPES[dtype])
    instance = rank.create(params)
    ids = torch.full((count, 1), 1 - rank.rank, dtype=torch.int32)
    result = instance.dispatch(words.view(DTYPES[dtype]), ids)
    block = result.hidden_states.view(2, count, 64)[1 - rank.rank]
    assert torch.equal(block.contiguous().view(torch.int16), words)
    combined = instance.combine(result.hidden_states)
    # One contribution: nothing is added to it, so that -0.0 stays.
    nan = combined.isnan()
    assert torch.equal(nan, words.view(DTYPES[dtype]).isnan())
    assert torch.equal(combined.view(torch.int16)[~nan], words[~nan])


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_all_bit_patterns_pass(backend, dtype):
    """FR-108: NaN stays NaN, everything else keeps its bits, -0.0 and subnormals included."""
    backend.run(2, all_patterns, dtype)


def test_extra_payloads_up_to_the_limit(backend):
    """FR-059: four named tensors of any dtype and width."""
    case = Case(
        tokens=(3, 0, 2),
        num_experts=9,
        extras=(
            ("zeta", "float32", 3),
            ("alpha", "uint8", 5),
            ("mid", "int64", 1),
            ("beta", "bfloat16", 7),
        ),
    )
    backend.run(3, run_rounds, [case, case.again(1, extras=case.extras[:2]), case.again(2)])


def too_many_extras(rank):
    case = Case(tokens=(2, 1), extras=tuple((f"x{i}", "uint8", 1) for i in range(5)))
    instance = rank.create(case.params, **supported(rank, [case]))
    with pytest.raises(ValueError, match=r"extra_payloads.*4.*got 5"):
        instance.dispatch(**case.tensors(rank.rank))
    run_round(rank, instance, case.again(1, extras=case.extras[:4]))


def test_one_extra_payload_more_is_refused(backend):
    """FR-059: the limit is named."""
    backend.run(2, too_many_extras)


def strided_inputs(rank, offset):
    case = Case(tokens=(5, 4), hidden_size=24, scale=("float32", 3))
    instance = rank.create(case.params, **supported(rank, [case]))
    arguments = case.tensors(rank.rank)
    for name, tensor in arguments.items():
        # Rows further apart than they are long, starting off any alignment.
        wide = torch.zeros(tensor.shape[0], tensor.shape[1] + 7, dtype=tensor.dtype)
        view = wide[:, offset : offset + tensor.shape[1]]
        view.copy_(tensor)
        arguments[name] = view
    result = instance.dispatch(**arguments)
    expected = reference_results(instance, case)
    check_dispatched(case, result, expected[rank.rank])
    rows = expert_output(case, rank.rank, expected[rank.rank].tokens, poison=True)
    wide = torch.zeros(rows.shape[0], rows.shape[1] + 5, dtype=rows.dtype)
    wide[:, 1 : 1 + rows.shape[1]] = rows
    combined = instance.combine(wide[:, 1 : 1 + rows.shape[1]])
    check_combined(case, rank.rank, combined, expected)


@pytest.mark.parametrize("offset", [1, 2, 5])
def test_rows_at_any_stride_and_offset(backend, offset):
    """FR-051, FR-053: slices of wider tensors are exact."""
    backend.run(2, strided_inputs, offset)


def repeated_rows(rank):
    instance = rank.create(moe_ep.MoEEpCommParams(4, 2, 3, 8))
    hidden = torch.arange(8, dtype=torch.bfloat16).expand(3, 8)
    ids = torch.tensor([[0, 3]], dtype=torch.int32).expand(3, 2)
    result = instance.dispatch(hidden, ids, torch.ones(1, 2).expand(3, 2))
    assert torch.equal(result.hidden_states, hidden[:1].expand(6, 8))
    instance.combine(result.hidden_states)


def test_a_row_stride_of_zero_is_fine(backend):
    """FR-053: expanded rows."""
    backend.run(2, repeated_rows)


def refused_strides(rank):
    case = Case(tokens=(4, 4), hidden_size=4, top_k=2, scale=("float32", 2))
    instance = rank.create(case.params, **supported(rank, [case]))
    good = case.tensors(rank.rank)
    bad = {
        "hidden_states": torch.zeros(4, 8, dtype=torch.bfloat16)[:, ::2],
        "topk_ids": torch.zeros(2, 4, dtype=torch.int32).t(),
        "topk_weights": torch.ones(4, 1).expand(4, 2),
        "hidden_states_scale": torch.zeros(2, 4).t(),
    }
    for name, tensor in bad.items():
        with pytest.raises(ValueError, match=name):
            instance.dispatch(**{**good, name: tensor})
    run_round(rank, instance, case)


def test_scattered_rows_are_refused(backend):
    """FR-053: an error that names the argument, and nothing was sent."""
    backend.run(2, refused_strides)
