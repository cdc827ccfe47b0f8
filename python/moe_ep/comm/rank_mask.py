"""Rank masks: which ranks take part in a step."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING

import torch

from .._check import check_int
from ..errors import TypeMismatchError
from ..limits import MAX_RANKS

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["MOE_A2A_RANK_MASK_WORDS", "moe_a2a_active_rank_mask"]

MOE_A2A_RANK_MASK_WORDS = MAX_RANKS // 64
"""Words of a rank mask."""


def moe_a2a_active_rank_mask(ranks: Iterable[int], ep_size: int) -> torch.Tensor:
    """Mask of the ranks that take part in a step.

    Parameters
    ----------
    ranks
        Ranks in 0..ep_size - 1, in any order.
    ep_size
        R, the ranks of the group, 1..256.

    Returns
    -------
    torch.Tensor
        [MOE_A2A_RANK_MASK_WORDS] uint64 on the CPU; bit i % 64 of word i // 64 stands for rank i.

    Raises
    ------
    ValueError
        A rank or size out of range.
    TypeMismatchError
        A rank or size that is no int.
    """
    name = "moe_a2a_active_rank_mask"
    check_int(name, "ep_size", ep_size, low=1, high=MAX_RANKS)
    words = [0] * MOE_A2A_RANK_MASK_WORDS
    try:
        listed = list(ranks)
    except TypeError:
        raise TypeMismatchError(
            f"{name}: ranks must be a sequence of ints, got {type(ranks).__name__}"
        ) from None
    for rank in listed:
        if hasattr(rank, "__index__") and not isinstance(rank, bool):
            rank = operator.index(rank)
        check_int(name, "ranks", rank, low=0, high=ep_size - 1)
        words[rank // 64] |= 1 << (rank % 64)
    return torch.tensor(words, dtype=torch.uint64, device="cpu")
