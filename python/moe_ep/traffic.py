"""Bytes that a step moves: counted from a routing, and expected of uniform random routing.

*Physical* bytes leave a rank; *logical* bytes also count the rows that a rank sends itself.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["StepBytes", "count_bytes", "dispatch_row_bytes", "expected_bytes", "ranks_per_token"]

_ID_BYTES = 4
_WEIGHT_BYTES = 4


@dataclass(frozen=True)
class StepBytes:
    """Bytes that one rank sends in a step, of rows and nothing else.

    Parameters
    ----------
    dispatch_logical, dispatch_physical
        Bytes of its tokens to all ranks, and to others.
    combine_logical, combine_physical
        Bytes of expert outputs for its tokens from all ranks, and from others. What comes back to a
        rank takes the way that its tokens went, so that over all ranks this is what they send.
    """

    dispatch_logical: float
    dispatch_physical: float
    combine_logical: float
    combine_physical: float


def dispatch_row_bytes(payload_bytes: int, top_k: int, *, has_weights: bool = True) -> int:
    """Bytes of one dispatched row with its expert ids (int32) and weights (float32).

    Parameters
    ----------
    payload_bytes
        Hidden state, scales and further payloads.
    top_k
        Picks of one token.
    has_weights
        Whether the step carries weights.
    """
    return payload_bytes + top_k * (_ID_BYTES + (_WEIGHT_BYTES if has_weights else 0))


def count_bytes(
    rows_to: Sequence[int], rank: int, row_bytes: int, combine_row_bytes: int
) -> StepBytes:
    """Bytes of a step whose routing is known.

    Parameters
    ----------
    rows_to
        [R] tokens that `rank` sends to each rank.
    rank
        The sender.
    row_bytes, combine_row_bytes
        Bytes of a dispatched and of a combined row.
    """
    rows = sum(rows_to)
    remote = rows - rows_to[rank]
    return StepBytes(
        rows * row_bytes, remote * row_bytes, rows * combine_row_bytes, remote * combine_row_bytes
    )


def ranks_per_token(num_experts: int, top_k: int, world_size: int) -> tuple[float, float]:
    """Ranks that a token visits on average: all, and all but its own (U and Ur).

    For picks drawn uniformly without repetition, where each rank owns E / R experts:
    ``P = 1 - C(E - E/R, K) / C(E, K)`` is the chance that a token visits a given rank, ``U = R P``
    and ``Ur = (R - 1) P``.

    Parameters
    ----------
    num_experts
        E, divisible by `world_size`.
    top_k
        K.
    world_size
        R.
    """
    others = num_experts - num_experts // world_size
    visited = 1.0 - math.comb(others, top_k) / math.comb(num_experts, top_k)
    return world_size * visited, (world_size - 1) * visited


def expected_bytes(
    num_experts: int,
    top_k: int,
    world_size: int,
    num_tokens: int,
    row_bytes: int,
    combine_row_bytes: int,
) -> StepBytes:
    """Bytes of a step under uniform random routing, on average.

    Parameters
    ----------
    num_experts, top_k, world_size
        As for `ranks_per_token`.
    num_tokens
        Tokens of one rank.
    row_bytes, combine_row_bytes
        Bytes of a dispatched and of a combined row.
    """
    everywhere, remote = ranks_per_token(num_experts, top_k, world_size)
    rows, remote_rows = num_tokens * everywhere, num_tokens * remote
    return StepBytes(
        rows * row_bytes,
        remote_rows * row_bytes,
        rows * combine_row_bytes,
        remote_rows * combine_row_bytes,
    )
