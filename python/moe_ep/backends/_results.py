"""Results of dispatches: the same tensor objects for the same shape of step."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ..config import MoEEpDispatchResult
from ._arena import Arena
from ._validate import Payload

if TYPE_CHECKING:
    from collections.abc import Hashable

    from ._validate import DispatchStep

__all__ = ["Results", "packed_payloads", "write"]


class Results:
    """Receive memory of an instance and the views cut from it.

    Parameters
    ----------
    world_size
        R.
    max_tokens_per_rank
        Largest T, which memory is taken for.
    """

    def __init__(self, world_size: int, max_tokens_per_rank: int) -> None:
        self._world_size = world_size
        self._max_tokens_per_rank = max_tokens_per_rank
        self._arena = Arena()
        self._by_shape: dict[Hashable, MoEEpDispatchResult] = {}

    def get(self, step: DispatchStep, payloads: list[Payload]) -> MoEEpDispatchResult:
        """Return the views for this shape of step. What they hold is unspecified.

        Parameters
        ----------
        step
            The step.
        payloads
            Its `packed_payloads`.
        """
        stats_length = None if step.eplb_local_stats is None else step.eplb_local_stats.shape[0]
        key: Hashable = (
            step.device,
            step.tokens_per_rank,
            stats_length,
            tuple((p.name, p.tensor.dtype, tuple(p.tensor.shape[1:])) for p in payloads),
        )
        if key not in self._by_shape:
            # No inference tensors, whatever mode the caller is in: later steps write to them.
            with torch.inference_mode(False), torch.no_grad():
                self._by_shape[key] = self._make(step, payloads, stats_length)
        return self._by_shape[key]

    def _make(
        self, step: DispatchStep, payloads: list[Payload], stats_length: int | None
    ) -> MoEEpDispatchResult:
        rows = self._world_size * step.tokens_per_rank
        blocks = self._arena.cut(
            rows,
            self._world_size * self._max_tokens_per_rank,
            [payload.row_bytes for payload in payloads],
            step.device,
        )
        views = [
            block.view(payload.tensor.dtype).view(rows, *payload.tensor.shape[1:])
            for block, payload in zip(blocks, payloads, strict=True)
        ]
        counts = torch.zeros(self._world_size, dtype=torch.int32, device=step.device)
        stats = None
        if stats_length is not None:
            stats = counts.new_zeros((self._world_size, stats_length))
        return _arrange(step, views, counts, stats)


def packed_payloads(step: DispatchStep, ids: torch.Tensor) -> list[Payload]:
    """List all payloads of a step in the order they are packed in, the same on every rank."""
    optional = [step.topk_weights, step.hidden_states_scale]
    extras = sorted(step.extra_payloads, key=lambda payload: payload.name)
    return [
        step.hidden_states,
        Payload("topk_ids", ids),
        *(payload for payload in optional if payload is not None),
        *extras,
    ]


def write(
    result: MoEEpDispatchResult,
    rows: torch.Tensor,
    arrived: torch.Tensor,
    received_counts: list[int],
    invalid_expert_id: int,
) -> None:
    """Lay received rows out in a result.

    Parameters
    ----------
    result
        The views of the step's shape.
    rows
        [received] result row of each received row.
    arrived
        [received, *] uint8 rows, each all payloads in packed order.
    received_counts
        [R] rows received from each rank.
    invalid_expert_id
        Id of rows without a token.
    """
    assert result.recv_counts is not None
    result.topk_ids.fill_(invalid_expert_id)
    offset = 0
    for view in _packed_views(result):
        block = Payload("", view).rows()
        end = offset + block.shape[1]
        block.index_copy_(0, rows, arrived[:, offset:end])
        offset = end
    result.recv_counts.copy_(torch.tensor(received_counts, dtype=torch.int32))


def _arrange(
    step: DispatchStep,
    views: list[torch.Tensor],
    counts: torch.Tensor,
    stats: torch.Tensor | None,
) -> MoEEpDispatchResult:
    """Make the views in packed order the fields of a result."""
    remaining = iter(views)
    hidden, ids = next(remaining), next(remaining)
    weights = None if step.topk_weights is None else next(remaining)
    scale = None if step.hidden_states_scale is None else next(remaining)
    names = sorted(payload.name for payload in step.extra_payloads)
    by_name = dict(zip(names, remaining, strict=True))
    # In the caller's order.
    extras = {payload.name: by_name[payload.name] for payload in step.extra_payloads}
    return MoEEpDispatchResult(
        hidden_states=hidden,
        topk_ids=ids,
        topk_weights=weights,
        tokens_per_rank=step.tokens_per_rank,
        hidden_states_scale=scale,
        eplb_gathered_stats=stats,
        recv_counts=counts,
        extra_payloads=extras or None,
    )


def _packed_views(result: MoEEpDispatchResult) -> list[torch.Tensor]:
    """List the payload views in packed order."""
    optional = [result.topk_weights, result.hidden_states_scale]
    extras = result.extra_payloads or {}
    return [
        result.hidden_states,
        result.topk_ids,
        *(view for view in optional if view is not None),
        *(extras[name] for name in sorted(extras)),
    ]
