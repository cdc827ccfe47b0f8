"""Dispatch and combine in numpy, straight from their definition: clear before fast.

Everything is computed for all ranks at once from the inputs of all ranks. Arrays may have any
dtype; payloads are moved, never looked at.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from .floats import FloatName, from_float32, half_ulp, storage_dtype, to_float32

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    import numpy.typing as npt

    Array = npt.NDArray[Any]

__all__ = [
    "Placement",
    "RankInput",
    "RankResult",
    "destinations",
    "expert_owner",
    "reference_combine",
    "reference_combine_bound",
    "reference_dispatch",
]

Placement = Literal["compact", "by_token"]

_FP8_BLOCK = 128
_FP8_MAX = 448.0


@dataclass(frozen=True)
class RankInput:
    """What one rank passes to a dispatch.

    Parameters
    ----------
    hidden_states
        [n, *].
    topk_ids
        [n, top_k] int32 or int64.
    topk_weights, hidden_states_scale
        [n, *] or None.
    eplb_local_stats
        [m] int32 or None.
    extra_payloads
        [n, *] by name.
    """

    hidden_states: Array
    topk_ids: Array
    topk_weights: Array | None = None
    hidden_states_scale: Array | None = None
    eplb_local_stats: Array | None = None
    extra_payloads: dict[str, Array] = field(default_factory=dict)


@dataclass(frozen=True)
class RankResult:
    """What one rank receives.

    Parameters
    ----------
    tokens
        [R * T] the source's token that each row holds, -1 for none. Where it is -1, payloads other
        than the ids are unspecified; here they are zero.
    hidden_states, topk_ids, topk_weights, hidden_states_scale, extra_payloads
        [R * T, *] received rows.
    recv_counts
        [R] int32 tokens received from each rank.
    eplb_gathered_stats
        [R, m] int32, zero for ranks that do not take part, or None.
    """

    tokens: Array
    hidden_states: Array
    topk_ids: Array
    topk_weights: Array | None
    hidden_states_scale: Array | None
    extra_payloads: dict[str, Array]
    recv_counts: Array
    eplb_gathered_stats: Array | None


def expert_owner(expert: int, num_experts: int, num_ranks: int) -> int:
    """Return the rank that owns an expert: contiguous blocks, the larger ones first."""
    base, remainder = divmod(num_experts, num_ranks)
    first = 0
    for rank in range(num_ranks):
        first += base + (1 if rank < remainder else 0)
        if expert < first:
            return rank
    raise ValueError(f"expert_owner: expert must be in 0..{num_experts - 1}, got {expert}")


def destinations(topk_ids: Array, num_experts: int, num_ranks: int) -> list[int]:
    """Return the ranks that one token goes to, ascending: void picks nowhere, each rank once."""
    valid = {int(pick) for pick in topk_ids if 0 <= int(pick) < num_experts}
    return sorted({expert_owner(expert, num_experts, num_ranks) for expert in valid})


def reference_dispatch(
    inputs: Sequence[RankInput],
    *,
    num_experts: int,
    tokens_per_rank: int,
    invalid_expert_id: int = -1,
    placement: Placement = "compact",
    active_ranks: Collection[int] | None = None,
) -> list[RankResult | None]:
    """Results of a dispatch on every rank.

    Parameters
    ----------
    inputs
        One for each rank.
    num_experts
        E, also one that the ranks do not divide.
    tokens_per_rank
        T.
    invalid_expert_id
        Id of rows without a token, and of picks that no int32 holds.
    placement
        'compact': block `src` holds rank src's tokens one after another from row src * T on.
        'by_token': token t of rank src lies at row src * T + t.
    active_ranks
        Ranks that take part; None is all of them.

    Returns
    -------
    list of RankResult
        In rank order; None for a rank that does not take part.
    """
    num_ranks = len(inputs)
    active = set(range(num_ranks)) if active_ranks is None else set(active_ranks)
    results: list[RankResult | None] = []
    for rank in range(num_ranks):
        if rank not in active:
            results.append(None)
            continue
        tokens = np.full(num_ranks * tokens_per_rank, -1, dtype=np.int64)
        for src in sorted(active):
            position = src * tokens_per_rank
            for token, picks in enumerate(inputs[src].topk_ids):
                if rank in destinations(picks, num_experts, num_ranks):
                    if placement == "by_token":
                        position = src * tokens_per_rank + token
                    tokens[position] = token
                    position += 1
        results.append(_receive(inputs, tokens, tokens_per_rank, invalid_expert_id, active))
    return results


def _receive(
    inputs: Sequence[RankInput],
    tokens: Array,
    tokens_per_rank: int,
    invalid_expert_id: int,
    active: set[int],
) -> RankResult:
    """Rows of one rank, given which token each row holds."""
    num_ranks = len(inputs)

    def rows_of(payloads: list[Array]) -> Array:
        received = np.zeros((len(tokens), *payloads[0].shape[1:]), dtype=payloads[0].dtype)
        for row, token in enumerate(tokens):
            if token >= 0:
                received[row] = payloads[row // tokens_per_rank][token]
        return received

    def optional_rows_of(payloads: list[Array | None]) -> Array | None:
        present = [payload for payload in payloads if payload is not None]
        return rows_of(present) if len(present) == num_ranks else None

    ids = rows_of([_as_int32(rank.topk_ids, invalid_expert_id) for rank in inputs])
    ids[tokens < 0] = invalid_expert_id
    blocks = tokens.reshape(num_ranks, tokens_per_rank)
    stats = None
    own_stats = [rank.eplb_local_stats for rank in inputs]
    if all(own is not None for own in own_stats):
        stats = np.array(own_stats, dtype=np.int32)
        stats[[rank not in active for rank in range(num_ranks)]] = 0
    return RankResult(
        tokens=tokens,
        hidden_states=rows_of([rank.hidden_states for rank in inputs]),
        topk_ids=ids,
        topk_weights=optional_rows_of([rank.topk_weights for rank in inputs]),
        hidden_states_scale=optional_rows_of([rank.hidden_states_scale for rank in inputs]),
        extra_payloads={
            name: rows_of([rank.extra_payloads[name] for rank in inputs])
            for name in inputs[0].extra_payloads
        },
        recv_counts=np.count_nonzero(blocks >= 0, axis=1).astype(np.int32),
        eplb_gathered_stats=stats,
    )


def _as_int32(topk_ids: Array, invalid_expert_id: int) -> Array:
    limits = np.iinfo(np.int32)
    fits = (topk_ids >= limits.min) & (topk_ids <= limits.max)
    return np.where(fits, topk_ids, invalid_expert_id).astype(np.int32)


def reference_combine(
    results: Sequence[RankResult | None],
    expert_outputs: Sequence[Array | None],
    num_tokens: Sequence[int],
    dtype: FloatName,
) -> list[Array]:
    """Results of a combine on every rank, to the bit.

    Float32 sum in ascending rank order, starting from the first contribution, rounded once to
    nearest even. A token without contributions gives +0.

    Parameters
    ----------
    results
        Of the dispatch.
    expert_outputs
        For each rank [R * T, hidden] in `dtype` (see `moe_ep.testing.floats`), or None for a rank
        that does not take part.
    num_tokens
        n of each rank.
    dtype
        Format of outputs and result.

    Returns
    -------
    list of ndarray
        [n, hidden] in `dtype`, in rank order.
    """
    hidden = next(rows.shape[1] for rows in expert_outputs if rows is not None)
    combined = []
    for src, count in enumerate(num_tokens):
        output = np.zeros((count, hidden), dtype=storage_dtype(dtype))
        for token in range(count):
            parts = _contributions(results, expert_outputs, src, token, dtype)
            if parts:
                total = parts[0]
                for part in parts[1:]:
                    with np.errstate(over="ignore", invalid="ignore"):
                        total = total + part
                output[token] = from_float32(total, dtype)
        combined.append(output)
    return combined


def reference_combine_bound(
    results: Sequence[RankResult | None],
    expert_outputs: Sequence[Array | None],
    num_tokens: Sequence[int],
    dtype: FloatName,
) -> list[tuple[Array, Array]]:
    """Exact sums and how far a low-precision combine may be off, on every rank.

    Parameters
    ----------
    results, expert_outputs, num_tokens, dtype
        As for `reference_combine`.

    Returns
    -------
    list of (ndarray, ndarray)
        Float64 [n, hidden] sums and bounds: ``|out - sum| <= bound``. An element with a
        contribution that is not finite is NaN in both: it must come out as NaN.
    """
    hidden = next(rows.shape[1] for rows in expert_outputs if rows is not None)
    bounds = []
    for src, count in enumerate(num_tokens):
        exact = np.zeros((count, hidden))
        bound = np.zeros((count, hidden))
        for token in range(count):
            for part in _contributions(results, expert_outputs, src, token, dtype):
                values = np.where(np.isfinite(part), part, np.nan).astype(np.float64)
                scale = np.empty(hidden)
                for first in range(0, hidden, _FP8_BLOCK):
                    block = np.abs(values[first : first + _FP8_BLOCK])
                    largest = np.max(block, initial=0.0, where=np.isfinite(block))
                    scale[first : first + _FP8_BLOCK] = largest / _FP8_MAX
                exact[token] += values
                bound[token] += 2.0**-4 * np.abs(values) + 2.0**-10 * scale
        with np.errstate(invalid="ignore"):
            bound += half_ulp(np.nan_to_num(np.abs(exact) + bound), dtype)
        bounds.append((exact, bound))
    return bounds


def _contributions(
    results: Sequence[RankResult | None],
    expert_outputs: Sequence[Array | None],
    src: int,
    token: int,
    dtype: FloatName,
) -> list[npt.NDArray[np.float32]]:
    """Return the expert outputs for one token as float32, by ascending rank."""
    parts = []
    for result, rows in zip(results, expert_outputs, strict=True):
        if result is None or rows is None:
            continue
        block = result.tokens.reshape(len(results), -1)[src]
        for position in np.flatnonzero(block == token):
            row = src * block.shape[0] + int(position)
            parts.append(to_float32(rows[row], dtype))
    return parts
