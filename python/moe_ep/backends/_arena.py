"""Memory of received payloads: one block, cut anew for each shape of step."""

from __future__ import annotations

import torch

__all__ = ["Arena"]

_ALIGNMENT = 128


class Arena:
    """Receive memory that outlives a step and is reused by the next.

    A shape of step gets its tensors once and the same objects ever after. Memory grows to the
    largest capacity asked for; views handed out before keep the block they were cut from.
    """

    def __init__(self) -> None:
        self._block = torch.empty(0, dtype=torch.uint8)

    def cut(
        self, rows: int, capacity_rows: int, row_bytes: list[int], device: torch.device
    ) -> list[torch.Tensor]:
        """Disjoint [rows, bytes] uint8 views, one for each of `row_bytes`, 128-byte aligned.

        Parameters
        ----------
        rows
            Rows of this step.
        capacity_rows
            Rows of the largest step, which memory is taken for.
        row_bytes
            Bytes of a row of each payload.
        device
            Where the memory lies.
        """
        needed = sum(_round_up(rows * width) for width in row_bytes)
        if self._block.device != device or self._block.numel() < needed:
            capacity = sum(_round_up(capacity_rows * width) for width in row_bytes)
            self._block = torch.empty(capacity, dtype=torch.uint8, device=device)
        views, offset = [], 0
        for width in row_bytes:
            end = offset + rows * width
            views.append(self._block[offset:end].view(rows, width))
            offset = _round_up(end)
        return views


def _round_up(num_bytes: int) -> int:
    return -(-num_bytes // _ALIGNMENT) * _ALIGNMENT
