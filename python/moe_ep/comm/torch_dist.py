"""CommBackend over a torch.distributed process group."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from .._check import check_int
from .._groups import group_rank, group_size, resolve_group, wire_device
from .torch_dist_split import TorchDistSplit, group_failure, split, to_bytes, to_tensor
from .wire import decode, encode

__all__ = ["TorchDistBackend"]


class TorchDistBackend:
    """CommBackend over a process group of any kind: Gloo, NCCL, MPI, or several by device.

    All ranks are numbered within the group, whatever their global ranks are and in whatever order
    the group lists them. Messages are typed bytes in tensors; nothing is pickled. A group that
    moves CUDA tensors only uses the current device.

    Parameters
    ----------
    group
        The process group; None is the default group.

    Raises
    ------
    MoEEpError
        torch.distributed is not initialised.
    ValueError
        This process is not in the group.
    """

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        self._group: dist.ProcessGroup = resolve_group("TorchDistBackend", group)

    @property
    def group(self) -> dist.ProcessGroup:
        """The process group."""
        return self._group

    def Get_rank(self) -> int:
        """Rank of the caller within the group."""
        return group_rank(self._group)

    def Get_size(self) -> int:
        """Ranks of the group."""
        return group_size(self._group)

    def allgather(self, obj: Any) -> tuple[Any, ...]:
        """Every rank's `obj`, in rank order."""
        messages = self._allgather_bytes("allgather", encode(obj))
        return tuple(decode(message, source) for source, message in enumerate(messages))

    def bcast(self, obj: Any, root: int) -> Any:
        """Rank `root`'s `obj` on every rank."""
        check_int("bcast", "root", root, low=0, high=self.Get_size() - 1)
        is_root = self.Get_rank() == root
        message = encode(obj) if is_root else b""
        device = wire_device(self._group)
        # torch wants the root as a global rank.
        source = dist.get_global_rank(self._group, root)
        length = torch.tensor([len(message)], dtype=torch.int64, device=device)
        try:
            dist.broadcast(length, src=source, group=self._group)
            data = to_tensor(message, int(length), device)
            dist.broadcast(data, src=source, group=self._group)
        except RuntimeError as error:
            raise group_failure("bcast", error) from error
        return obj if is_root else decode(to_bytes(data), root)

    def barrier(self) -> None:
        """Return once every rank has called it."""
        self._allgather_bytes("barrier", b"")

    def Split(self, color: int, key: int) -> TorchDistSplit:
        """Group of all ranks that pass the same `color`, ordered by `key`, then by rank.

        It sends through this group; no process group is made, as torch would need every rank of the
        default group for that.
        """
        return split(self, self._group, color, key, range(group_size(self._group)))

    def _allgather_bytes(self, operation: str, message: bytes) -> list[bytes]:
        """Return every member's message, by group rank: lengths first, then one padded gather."""
        size = group_size(self._group)
        device = wire_device(self._group)
        length = torch.tensor([len(message)], dtype=torch.int64, device=device)
        lengths = [torch.empty_like(length) for _ in range(size)]
        try:
            dist.all_gather(lengths, length, group=self._group)
            counts = [int(count) for count in lengths]
            longest = max(counts)
            if longest == 0:
                return [b""] * size
            data = to_tensor(message, longest, device)
            received = [torch.empty_like(data) for _ in range(size)]
            dist.all_gather(received, data, group=self._group)
        except RuntimeError as error:
            raise group_failure(operation, error) from error
        return [to_bytes(row[:count]) for row, count in zip(received, counts, strict=True)]
