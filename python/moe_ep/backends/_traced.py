"""Steps of an instance in traced code: calls of the operators, which a compiled graph keeps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import torch

from ..config import MoEEpDispatchResult
from . import _operators

if TYPE_CHECKING:
    from .native import _NativeCommunication

__all__ = ["TracedSteps"]


class TracedSteps:
    """What one instance traces.

    Parameters
    ----------
    instance
        Whose steps the operators run.
    """

    def __init__(self, instance: _NativeCommunication) -> None:
        self.number = _operators.number_of(instance)
        self._world_size = instance.bootstrap.world_size
        self._capacity = instance.params.max_tokens_per_rank
        with torch.inference_mode(False):
            self._token = torch.zeros(1, dtype=torch.uint8, device=instance.device)
        # n and T of the last dispatch that was traced.
        self._num_tokens = self._tokens_per_rank = 0

    def dispatch(
        self,
        hidden_states: torch.Tensor,
        topk_ids: torch.Tensor,
        topk_weights: torch.Tensor | None,
        scale: torch.Tensor | None,
        tokens_per_rank: int | None,
        stats: torch.Tensor | None,
        mask: torch.Tensor | None,
        extras: dict[str, torch.Tensor],
    ) -> MoEEpDispatchResult:
        if tokens_per_rank is None:
            tokens_per_rank = self._capacity
        names = sorted(extras)
        self._num_tokens, self._tokens_per_rank = topk_ids.shape[0], tokens_per_rank
        tensors = torch.ops.moe_ep.dispatch(
            self._token,
            self.number,
            hidden_states,
            topk_ids,
            topk_weights,
            scale,
            tokens_per_rank,
            stats,
            mask,
            "".join(names),
            [len(name) for name in names],
            [extras[name] for name in names],
        )
        fields = _operators.unpack(
            tensors,
            has_weights=topk_weights is not None,
            has_scale=scale is not None,
            has_stats=stats is not None,
            extra_names=names,
            tokens_per_rank=tokens_per_rank,
        )
        return MoEEpDispatchResult(**cast("Any", fields))

    def combine(
        self, rows: torch.Tensor, output: torch.Tensor | None, mask: torch.Tensor | None
    ) -> torch.Tensor:
        if output is None:
            fresh = torch.ops.moe_ep.combine(self._token, self.number, rows, self._num_tokens, mask)
            return cast("torch.Tensor", fresh)
        torch.ops.moe_ep.combine_into(self._token, self.number, rows, output, mask)
        return output

    def combine_input(self, dtype: torch.dtype) -> torch.Tensor:
        num_rows = self._world_size * self._tokens_per_rank
        view = torch.ops.moe_ep.combine_input(self._token, self.number, num_rows, dtype)
        return cast("torch.Tensor", view)
