"""All-to-alls of one process group, on whatever device it can carry."""

from __future__ import annotations

import torch
import torch.distributed as dist

from .._groups import wire_device

__all__ = ["Exchange"]


class Exchange:
    """Moves rows between the ranks of a group; a group of one copies.

    Parameters
    ----------
    group
        The process group, or None for a group of one.
    world_size
        R, its ranks.
    """

    def __init__(self, group: dist.ProcessGroup | None, world_size: int) -> None:
        self._group = group
        self._world_size = world_size

    def words(self, rows: torch.Tensor) -> list[list[int]]:
        """Row `src` as rank `src` sent it here, from [R, *] int64 `rows`, row d for rank d."""
        if self._group is None:
            return _to_lists(rows)
        sent = rows.to(wire_device(self._group, rows.device))
        received = torch.empty_like(sent)
        dist.all_to_all_single(received, sent, group=self._group)
        return _to_lists(received)

    def rows(
        self, rows: torch.Tensor, sent_counts: list[int], received_counts: list[int]
    ) -> torch.Tensor:
        """Rows received, in order of their source.

        Parameters
        ----------
        rows
            [sum(sent_counts), *] rows in order of their destination.
        sent_counts, received_counts
            [R] rows for and from each rank.
        """
        if self._group is None:
            return rows
        sent = rows.contiguous().to(wire_device(self._group, rows.device))
        received = sent.new_empty((sum(received_counts), *sent.shape[1:]))
        dist.all_to_all_single(received, sent, received_counts, sent_counts, group=self._group)
        return received.to(rows.device)

    def gather(self, row: torch.Tensor) -> torch.Tensor:
        """[R, *] every rank's `row`."""
        if self._group is None:
            return row.unsqueeze(0)
        sent = row.to(wire_device(self._group, row.device))
        received = [torch.empty_like(sent) for _ in range(self._world_size)]
        dist.all_gather(received, sent, group=self._group)
        return torch.stack(received).to(row.device)


def _to_lists(rows: torch.Tensor) -> list[list[int]]:
    lists: list[list[int]] = rows.tolist()
    return lists
