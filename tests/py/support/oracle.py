"""One round on one rank, held against the reference."""

import math

import numpy as np
import torch

import moe_ep
from moe_ep.testing import equal_bits, reference_combine, reference_dispatch
from moe_ep.testing.tensors import to_numpy, to_torch

from .backends import Rank
from .cases import DTYPES, Case


def run_round(
    rank: Rank,
    instance: moe_ep.MoEEpCommunication,
    case: Case,
    *,
    in_buffer: bool = False,
    output: torch.Tensor | None = None,
    poison: bool = True,
    active: list[int] | None = None,
    by_argument: bool = True,
) -> torch.Tensor:
    """Dispatch, run the case's experts, combine; assert that every byte is right.

    Rows without a token hold NaN when they are combined. `active` are the ranks that take part,
    passed as a mask or, unless `by_argument`, the instance's default already.
    """
    arguments = case.tensors(rank.rank)
    if active is not None and by_argument:
        arguments["active_rank_mask"] = instance.active_rank_mask(active)
    result = instance.dispatch(**arguments)
    expected = reference_results(instance, case, active)
    check_dispatched(case, result, expected[rank.rank])
    rows = expert_output(case, rank.rank, expected[rank.rank].tokens, poison=poison)
    if in_buffer:
        buffer = instance.get_combine_input_buffer(DTYPES[case.dtype])
        if buffer is not None:
            assert tuple(buffer.shape) == tuple(rows.shape)
            buffer.copy_(rows)
            check_dispatched(case, result, expected[rank.rank])  # it overlaps no view
            rows = buffer
    combined = instance.combine(rows, output=output)
    check_combined(case, rank.rank, combined, expected)
    return combined


def reference_results(
    instance: moe_ep.MoEEpCommunication, case: Case, active: list[int] | None = None
) -> list:
    """Reference results with the placement of the transport that the step took."""
    return reference_dispatch(
        case.inputs,
        num_experts=case.num_experts,
        tokens_per_rank=case.tokens_per_rank,
        invalid_expert_id=case.invalid_expert_id,
        placement="by_token" if instance.last_transport == "lamport" else "compact",
        active_ranks=active,
    )


def check_dispatched(case: Case, result: moe_ep.MoEEpDispatchResult, expected) -> None:
    """Every row with a token is as it was sent; every other is marked."""
    num_rows = case.world_size * case.tokens_per_rank
    taken = expected.tokens >= 0
    assert result.tokens_per_rank == case.tokens_per_rank
    assert result.recv_counts.dtype == torch.int32
    assert result.recv_counts.tolist() == expected.recv_counts.tolist()
    assert result.topk_ids.dtype == torch.int32
    assert tuple(result.topk_ids.shape) == (num_rows, case.top_k)
    check_ids(case, to_numpy(result.topk_ids), expected, taken)
    check_rows("hidden_states", result.hidden_states, expected.hidden_states, taken)
    for name in ("topk_weights", "hidden_states_scale"):
        rows = getattr(expected, name)
        assert (getattr(result, name) is None) == (rows is None), name
        if rows is not None:
            check_rows(name, getattr(result, name), rows, taken)
    assert set(result.extra_payloads or {}) == set(expected.extra_payloads)  # in any order
    for name, rows in expected.extra_payloads.items():
        check_rows(name, result.extra_payloads[name], rows, taken)
    if case.eplb:
        assert result.eplb_gathered_stats.dtype == torch.int32
        np.testing.assert_array_equal(
            to_numpy(result.eplb_gathered_stats), expected.eplb_gathered_stats
        )
    else:
        assert result.eplb_gathered_stats is None


def check_ids(case: Case, ids: np.ndarray, expected, taken: np.ndarray) -> None:
    """Valid picks arrive as sent; void ones as sent or as invalid_expert_id."""
    assert (ids[~taken] == case.invalid_expert_id).all(), "row without a token is not marked"
    sent = expected.topk_ids[taken]
    is_void = (sent < 0) | (sent >= case.num_experts)
    arrived = ids[taken]
    assert ((arrived == sent) | (is_void & (arrived == case.invalid_expert_id))).all()


def check_rows(name: str, tensor: torch.Tensor, expected: np.ndarray, taken: np.ndarray) -> None:
    received = to_numpy(tensor)
    assert received.shape == expected.shape, name
    same = received[taken].view(np.uint8) == np.ascontiguousarray(expected[taken]).view(np.uint8)
    assert same.all(), f"{name}: {np.count_nonzero(~same)} bytes differ"


def expert_output(case: Case, rank: int, tokens: np.ndarray, *, poison: bool) -> torch.Tensor:
    """[R * T, hidden] the case's expert rows at the rows that hold tokens."""
    source = np.arange(len(tokens)) // case.tokens_per_rank
    rows = case.expert_rows(rank)[source, np.maximum(tokens, 0)]
    output = to_torch(rows, DTYPES[case.dtype])
    if poison:
        output[torch.from_numpy(tokens < 0)] = math.nan
    return output.to(torch.get_default_device())


def check_combined(case: Case, rank: int, combined: torch.Tensor, results: list) -> None:
    outputs = [
        None if result is None else to_numpy(expert_output(case, dst, result.tokens, poison=False))
        for dst, result in enumerate(results)
    ]
    expected = reference_combine(results, outputs, case.tokens, case.dtype)[rank]
    assert combined.dtype == DTYPES[case.dtype]
    assert tuple(combined.shape) == (case.tokens[rank], case.hidden_size)
    assert equal_bits(to_numpy(combined), expected, case.dtype), "combined bits differ"


def run_rounds(rank: Rank, cases: list[Case], **options: object) -> None:
    """Program: all rounds on one instance made for the first case."""
    instance = rank.create(cases[0].params, **supported(rank, cases))
    for index, case in enumerate(cases):
        run_round(rank, instance, case, in_buffer=index % 2 == 1, **options)


def supported(rank: Rank, cases: list[Case]) -> dict[str, int]:
    """Options that reserve enough for all cases, where the backend has them."""
    names = ("extra_payload_bytes_per_token", "eplb_stats_num_experts")
    return {
        name: max(case.options[name] for case in cases) for name in names if rank.backend.has(name)
    }
