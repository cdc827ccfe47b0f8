"""CommBackends of the C++ library: threads of one process, and processes of one host.

The compiled classes move bytes; here objects become bytes and back.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Protocol

from .._check import check_int
from ..limits import MAX_RANKS
from .wire import decode, encode

if TYPE_CHECKING:
    import os

__all__ = ["LocalGroup", "NativeBackend", "UnixSocketBackend"]


class _CoreBackend(Protocol):
    """What the compiled module's backends offer."""

    def get_rank(self) -> int: ...
    def get_size(self) -> int: ...
    def allgather(self, message: bytes) -> list[bytes]: ...
    def bcast(self, message: bytes, root: int) -> bytes: ...
    def barrier(self) -> None: ...
    def split(self, color: int, key: int) -> _CoreBackend: ...


def _core() -> Any:
    from .. import _core  # type: ignore[attr-defined, unused-ignore]

    return _core


class NativeBackend:
    """CommBackend over a backend of the compiled module.

    Parameters
    ----------
    core
        The compiled object. The library's C++ classes take it as it is, so that their set-up does
        not pass through Python.
    """

    def __init__(self, core: _CoreBackend) -> None:
        self._core = core

    @property
    def core(self) -> _CoreBackend:
        """The compiled object."""
        return self._core

    def Get_rank(self) -> int:
        """Rank of the caller."""
        return self._core.get_rank()

    def Get_size(self) -> int:
        """Ranks of the group."""
        return self._core.get_size()

    def allgather(self, obj: Any) -> tuple[Any, ...]:
        """Every rank's `obj`, in rank order."""
        messages = self._core.allgather(encode(obj))
        return tuple(decode(message, source) for source, message in enumerate(messages))

    def bcast(self, obj: Any, root: int) -> Any:
        """Rank `root`'s `obj` on every rank."""
        check_int("bcast", "root", root, low=0, high=self.Get_size() - 1)
        is_root = self.Get_rank() == root
        message = self._core.bcast(encode(obj) if is_root else b"", root)
        return obj if is_root else decode(message, root)

    def barrier(self) -> None:
        """Return once every rank has called it."""
        self._core.barrier()

    def Split(self, color: int, key: int) -> NativeBackend:
        """Group of all ranks that pass the same `color`, ordered by `key`, then by rank."""
        check_int("Split", "color", color)
        check_int("Split", "key", key)
        return NativeBackend(self._core.split(color, key))


class LocalGroup:
    """Ranks that are threads of one process.

    Parameters
    ----------
    size
        Ranks of the group, 1..256.
    timeout_sec
        An operation that some rank has not entered by then raises MoEEpTimeoutError naming it.

    Examples
    --------
    >>> group = LocalGroup(4)  # doctest: +SKIP
    >>> comm = group.backend(rank)  # in the thread of `rank`  # doctest: +SKIP
    """

    def __init__(self, size: int, *, timeout_sec: float = 300) -> None:
        check_int(type(self).__name__, "size", size, low=1, high=MAX_RANKS)
        self._size = size
        self._group = _core().LocalGroup(size, timeout_sec)
        self._backends: dict[int, NativeBackend] = {}
        self._lock = threading.Lock()

    @property
    def size(self) -> int:
        """Ranks of the group."""
        return self._size

    def backend(self, rank: int) -> NativeBackend:
        """Member `rank` of the group: the same object at every call; one thread uses it."""
        check_int("LocalGroup.backend", "rank", rank, low=0, high=self._size - 1)
        with self._lock:
            if rank not in self._backends:
                self._backends[rank] = NativeBackend(self._group.backend(rank))
            return self._backends[rank]


class UnixSocketBackend(NativeBackend):
    """Ranks that are processes of one user on one host, joined through a Unix socket.

    Rank 0 listens at `path` and relays; the others connect. The socket has mode 0600 and its name
    goes away once everybody has connected.

    Parameters
    ----------
    path
        Path of the socket, the same on every rank; at most 107 bytes, as the kernel has it.
    rank
        Rank of the caller.
    world_size
        Ranks of the group, 1..256.
    timeout_sec
        Longest wait of one operation, in seconds.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        rank: int,
        world_size: int,
        *,
        timeout_sec: float = 300,
    ) -> None:
        name = type(self).__name__
        check_int(name, "world_size", world_size, low=1, high=MAX_RANKS)
        check_int(name, "rank", rank, low=0, high=world_size - 1)
        super().__init__(_core().UnixSocketBackend(str(path), rank, world_size, timeout_sec))
