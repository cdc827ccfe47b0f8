"""CommBackend over some ranks of a process group, by point-to-point messages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from .._check import check_int
from .._groups import wire_device
from ..errors import MoEEpError
from .wire import decode, encode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .protocol import CommBackend

__all__ = ["TorchDistSplit", "group_failure", "split", "to_bytes", "to_tensor"]


class TorchDistSplit:
    """CommBackend over some ranks of a process group; what `TorchDistBackend.Split` returns.

    Rank 0 collects and sends on.

    Parameters
    ----------
    group
        The process group.
    members
        Group ranks, in the order of their ranks here.
    rank
        Rank of the caller, its position in `members`.
    """

    def __init__(self, group: dist.ProcessGroup, members: Sequence[int], rank: int) -> None:
        self._group = group
        self._members = tuple(members)
        self._rank = rank
        self._device = wire_device(group)

    def Get_rank(self) -> int:
        """Rank of the caller."""
        return self._rank

    def Get_size(self) -> int:
        """Ranks of the group."""
        return len(self._members)

    def allgather(self, obj: Any) -> tuple[Any, ...]:
        """Every rank's `obj`, in rank order."""
        others = range(1, self.Get_size())
        messages: list[bytes] = []
        if self._rank == 0:
            messages = [encode(obj), *(self._receive("allgather", source) for source in others)]
        else:
            self._send("allgather", encode(obj), 0)
        messages = self._bcast("allgather", messages, 0)
        return tuple(decode(message, source) for source, message in enumerate(messages))

    def bcast(self, obj: Any, root: int) -> Any:
        """Rank `root`'s `obj` on every rank."""
        check_int("bcast", "root", root, low=0, high=self.Get_size() - 1)
        received = self._bcast("bcast", obj, root)
        return obj if self._rank == root else received

    def barrier(self) -> None:
        """Return once every rank has called it."""
        self.allgather(None)

    def Split(self, color: int, key: int) -> TorchDistSplit:
        """Group of all ranks that pass the same `color`, ordered by `key`, then by rank."""
        return split(self, self._group, color, key, self._members)

    def _bcast(self, operation: str, obj: Any, root: int) -> Any:
        if self._rank != root:
            return decode(self._receive(operation, root), root)
        message = encode(obj)
        for rank in range(self.Get_size()):
            if rank != root:
                self._send(operation, message, rank)
        return obj

    def _send(self, operation: str, message: bytes, rank: int) -> None:
        target = dist.get_global_rank(self._group, self._members[rank])
        length = torch.tensor([len(message)], dtype=torch.int64, device=self._device)
        try:
            dist.send(length, target, group=self._group)
            dist.send(to_tensor(message, len(message), self._device), target, group=self._group)
        except RuntimeError as error:
            raise group_failure(operation, error) from error

    def _receive(self, operation: str, rank: int) -> bytes:
        source = dist.get_global_rank(self._group, self._members[rank])
        length = torch.empty(1, dtype=torch.int64, device=self._device)
        try:
            dist.recv(length, source, group=self._group)
            data = torch.empty(int(length), dtype=torch.uint8, device=self._device)
            dist.recv(data, source, group=self._group)
        except RuntimeError as error:
            raise group_failure(operation, error) from error
        return to_bytes(data)


def split(
    comm: CommBackend, group: dist.ProcessGroup, color: int, key: int, members: Sequence[int]
) -> TorchDistSplit:
    """Split the ranks of `comm`, whose group ranks are `members`. Collective over `comm`."""
    check_int("Split", "color", color)
    check_int("Split", "key", key)
    entries = comm.allgather((color, key))
    chosen = sorted(
        (their_key, rank)
        for rank, (their_color, their_key) in enumerate(entries)
        if their_color == color
    )
    rank = chosen.index((key, comm.Get_rank()))
    return TorchDistSplit(group, [members[index] for _, index in chosen], rank)


def to_tensor(message: bytes, length: int, device: torch.device) -> torch.Tensor:
    """Return `message` as a uint8 tensor, padded with zeros to `length` bytes."""
    if length == 0:
        return torch.empty(0, dtype=torch.uint8, device=device)
    padded = bytearray(message.ljust(length, b"\0"))
    return torch.frombuffer(padded, dtype=torch.uint8).to(device)


def to_bytes(data: torch.Tensor) -> bytes:
    """Return the bytes of a uint8 tensor."""
    return bytes(data.cpu().numpy().tobytes())


def group_failure(operation: str, error: RuntimeError) -> MoEEpError:
    """Return what to raise when torch's exchange fails."""
    return MoEEpError(
        f"{operation}: every rank of the process group must take part, got "
        f"{type(error).__name__}: {error}"
    )
