"""CommBackend over a torch.distributed store: TCPStore, FileStore, HashStore, PrefixStore."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from .._check import check_int
from ..errors import MoEEpTimeoutError, TypeMismatchError
from ..limits import MAX_RANKS, MAX_TIMEOUT_SEC
from .wire import decode, encode

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

__all__ = ["TCPStoreBackend"]

_LONGEST_PAUSE_SEC = 0.01


class TCPStoreBackend:
    """CommBackend over a key-value store that every rank can reach.

    Every operation has keys of its own under ``moe_ep/``, and the last reader deletes them. What
    stays behind is one counter for each rank: it gives every further backend on the same store a
    namespace of its own, also after a restart of the process. Several groups that share one store
    need a ``torch.distributed.PrefixStore`` each.

    Threads may share a store object: waiting polls and never holds it.

    Parameters
    ----------
    store
        The store.
    rank
        Rank of the caller.
    world_size
        Ranks of the group, 1..256.
    timeout_sec
        Longest wait of one operation, in seconds.

    Raises
    ------
    ValueError
        Rank, size or timeout out of range.
    TypeMismatchError
        `store` is no store.
    """

    def __init__(
        self,
        store: Store,
        rank: int,
        world_size: int,
        *,
        timeout_sec: float = 300,
    ) -> None:
        name = type(self).__name__
        check_int(name, "world_size", world_size, low=1, high=MAX_RANKS)
        check_int(name, "rank", rank, low=0, high=world_size - 1)
        if not 0 < timeout_sec <= MAX_TIMEOUT_SEC:
            raise ValueError(
                f"{name}: timeout_sec must lie in (0, {MAX_TIMEOUT_SEC}], got {timeout_sec}"
            )
        missing = [
            method
            for method in ("set", "get", "add", "check", "delete_key")
            if not callable(getattr(store, method, None))
        ]
        if missing:
            raise TypeMismatchError(
                f"{name}: store must be a torch.distributed store, got {type(store).__name__} "
                f"without {', '.join(missing)}"
            )
        self._store = store
        self._rank = rank
        self._size = world_size
        self._timeout_sec = timeout_sec
        self._epoch = 0
        instance = store.add(f"moe_ep/{world_size}/instances/{rank}", 1)
        self._namespace = f"moe_ep/{world_size}/{instance}"

    def Get_rank(self) -> int:
        """Rank of the caller."""
        return self._rank

    def Get_size(self) -> int:
        """Ranks of the group."""
        return self._size

    def allgather(self, obj: Any) -> tuple[Any, ...]:
        """Every rank's `obj`, in rank order."""
        message = encode(obj)
        prefix = self._next_prefix()
        self._put(f"{prefix}/{self._rank}", message)
        messages = self._collect("allgather", prefix, range(self._size))
        return tuple(decode(message, source) for source, message in enumerate(messages))

    def bcast(self, obj: Any, root: int) -> Any:
        """Rank `root`'s `obj` on every rank."""
        check_int("bcast", "root", root, low=0, high=self._size - 1)
        message = encode(obj) if self._rank == root else b""
        prefix = self._next_prefix()
        if self._rank == root:
            self._put(f"{prefix}/{root}", message)
        (message,) = self._collect("bcast", prefix, [root])
        return obj if self._rank == root else decode(message, root)

    def barrier(self) -> None:
        """Return once every rank has called it."""
        prefix = self._next_prefix()
        self._put(f"{prefix}/{self._rank}", b"\0")
        self._collect("barrier", prefix, range(self._size))

    def Split(self, color: int, key: int) -> TCPStoreBackend:
        """Group of all ranks that pass the same `color`, ordered by `key`, then by rank."""
        check_int("Split", "color", color)
        check_int("Split", "key", key)
        entries = self.allgather((color, key))
        members = sorted(
            (their_key, rank)
            for rank, (their_color, their_key) in enumerate(entries)
            if their_color == color
        )
        split = TCPStoreBackend.__new__(TCPStoreBackend)
        split._store = self._store
        split._rank = members.index((key, self._rank))
        split._size = len(members)
        split._timeout_sec = self._timeout_sec
        split._epoch = 0
        split._namespace = f"{self._namespace}/{self._epoch}.{color}"
        return split

    def _next_prefix(self) -> str:
        self._epoch += 1
        return f"{self._namespace}/{self._epoch}"

    def _put(self, key: str, message: bytes) -> None:
        self._store.set(key, message)  # type: ignore[arg-type]  # torch's stub knows str alone

    def _collect(self, operation: str, prefix: str, sources: range | list[int]) -> list[bytes]:
        """Messages of `sources`; the last rank to read them deletes the operation's keys."""
        keys = [f"{prefix}/{source}" for source in sources]
        self._wait(operation, keys, list(sources))
        messages = [bytes(self._store.get(key)) for key in keys]
        if self._store.add(f"{prefix}/readers", 1) == self._size:
            for key in [*keys, f"{prefix}/readers"]:
                self._store.delete_key(key)
        return messages

    def _wait(self, operation: str, keys: list[str], sources: list[int]) -> None:
        deadline = time.monotonic() + self._timeout_sec
        pause = 0.0002
        while not self._store.check(keys):
            if time.monotonic() >= deadline:
                present = [self._store.check([key]) for key in keys]
                missing = [
                    source for source, here in zip(sources, present, strict=True) if not here
                ]
                if not missing:
                    return
                raise MoEEpTimeoutError(
                    f"{operation}: every rank must take part within {self._timeout_sec} s, "
                    f"got nothing from ranks {missing} (operation {self._epoch} of "
                    f"{self._namespace} on rank {self._rank})",
                    missing,
                    "setup",
                )
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_SEC)
