"""Who gets which token: destinations from expert ids, as tensor operations."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from .._check import INT32_MAX, INT32_MIN

__all__ = ["Routing", "block_rows", "route", "sent_ids"]


@dataclass(frozen=True)
class Routing:
    """Destinations of one rank's tokens.

    Parameters
    ----------
    tokens
        [S] int64 token of each sent row: ascending destination, then ascending token.
    counts
        [R] int64 rows for each destination.
    is_sent
        [n] bool, whether the token goes anywhere.
    """

    tokens: torch.Tensor
    counts: torch.Tensor
    is_sent: torch.Tensor


def route(topk_ids: torch.Tensor, num_experts: int, world_size: int) -> Routing:
    """Find the destinations of the tokens with these picks.

    A void pick goes nowhere; several picks on one rank send the token there once.

    Parameters
    ----------
    topk_ids
        [n, top_k] int32 or int64.
    num_experts
        E, divisible by `world_size`; rank r owns E / R experts from r * E / R on.
    world_size
        R.
    """
    is_valid = (topk_ids >= 0) & (topk_ids < num_experts)
    owners = torch.where(is_valid, topk_ids // (num_experts // world_size), world_size)
    # Column R takes the void picks.
    goes_to = topk_ids.new_zeros((topk_ids.shape[0], world_size + 1), dtype=torch.bool)
    goes_to.scatter_(1, owners.long(), True)
    goes_to = goes_to[:, :world_size]
    return Routing(
        tokens=goes_to.t().nonzero()[:, 1],
        counts=goes_to.sum(0),
        is_sent=goes_to.any(1),
    )


def sent_ids(topk_ids: torch.Tensor, invalid_expert_id: int) -> torch.Tensor:
    """Return the picks as int32. An int64 id that does not fit becomes `invalid_expert_id`."""
    if topk_ids.dtype == torch.int32:
        return topk_ids
    fits = (topk_ids >= INT32_MIN) & (topk_ids <= INT32_MAX)
    return torch.where(fits, topk_ids, invalid_expert_id).to(torch.int32)


def block_rows(counts: list[int], tokens_per_rank: int, device: torch.device) -> torch.Tensor:
    """[sum(counts)] int64 result row of each received row: block `src` is compact from src * T on.

    Parameters
    ----------
    counts
        Rows received from each rank.
    tokens_per_rank
        T, the rows of a block.
    device
        Where the result lies.
    """
    blocks = [
        torch.arange(src * tokens_per_rank, src * tokens_per_rank + count, device=device)
        for src, count in enumerate(counts)
    ]
    return torch.cat(blocks)
