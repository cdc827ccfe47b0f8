"""Rank masks under the path that users of the reference interface import."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moe_ep.comm.rank_mask import moe_a2a_active_rank_mask

if TYPE_CHECKING:
    from collections.abc import Iterable

    import torch

__all__ = ["active_rank_mask"]


def active_rank_mask(active_ranks: Iterable[int], ep_size: int) -> torch.Tensor:
    """Return `moe_a2a_active_rank_mask` of these ranks."""
    return moe_a2a_active_rank_mask(active_ranks, ep_size)
