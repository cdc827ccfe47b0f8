"""CommBackend: the few collectives that set-up, recovery and checkpoints need."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["CommBackend"]


@runtime_checkable
class CommBackend(Protocol):
    """Collectives over one group of ranks; never used while tokens move.

    Structural: any object with these methods serves. Every rank of the group issues the same
    sequence of calls, from one thread at a time. A failing operation raises; it never returns a
    part of the data. Ranks are numbered within the group.

    The objects that this library sends are None, bool, int, float, str, bytes, and lists, tuples
    and dicts of these.
    """

    def Get_rank(self) -> int:
        """Rank of the caller, 0..Get_size() - 1."""
        ...

    def Get_size(self) -> int:
        """Ranks of the group."""
        ...

    def allgather(self, obj: Any) -> Sequence[Any]:
        """Every rank's `obj`, in rank order. The library's own backends return a tuple."""
        ...

    def bcast(self, obj: Any, root: int) -> Any:
        """Rank `root`'s `obj` on every rank; the others' is ignored."""
        ...

    def barrier(self) -> None:
        """Return once every rank has called it."""
        ...

    def Split(self, color: int, key: int) -> CommBackend:
        """Group of all ranks that pass the same `color`, ordered by `key`, then by rank."""
        ...
