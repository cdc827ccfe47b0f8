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
        self._hidden_size = instance.params.hidden_size
        self._device = instance.device
        with torch.inference_mode(False):
            self._token = torch.zeros(1, dtype=torch.uint8, device=self._device)
        # n of the last dispatch, traced or not; T of the last traced one.
        self.num_tokens = 0
        self._tokens_per_rank = self._capacity

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
        if len(extras) > _operators.MAX_EXTRAS:
            raise ValueError(
                f"dispatch: extra_payloads must be at most {_operators.MAX_EXTRAS} tensors, "
                f"got {len(extras)}"
            )
        names = sorted(extras)
        self.num_tokens, self._tokens_per_rank = topk_ids.shape[0], tokens_per_rank
        tensors = torch.ops.moe_ep.dispatch(
            self._token,
            self.number,
            hidden_states.detach(),
            topk_ids,
            None if topk_weights is None else topk_weights.detach(),
            None if scale is None else scale.detach(),
            tokens_per_rank,
            stats,
            mask,
            "".join(names),
            [len(name) for name in names],
            [extras[name].detach() for name in names],
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
        rows = rows.detach()  # as in eager steps, no gradient passes
        if output is None:
            fresh = torch.ops.moe_ep.combine(self._token, self.number, rows, self.num_tokens, mask)
            return cast("torch.Tensor", fresh)
        torch.ops.moe_ep.combine_into(self._token, self.number, rows, output, mask)
        return output

    def combine_input(self, dtype: torch.dtype) -> torch.Tensor:
        """Rows of the caller's own: a graph may not write the workspace at its own pace."""
        num_rows = self._world_size * self._tokens_per_rank
        return torch.empty((num_rows, self._hidden_size), dtype=dtype, device=self._device)
