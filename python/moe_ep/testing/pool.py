"""RankPool: processes that stay, one a rank, and run one function after another."""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import os
import pickle
import sys
import threading
import time
import traceback
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from .failures import GRACE_SEC, Failure, RankError, describe_exit
from .functions import Call

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from multiprocessing.connection import Connection
    from typing import Self

__all__ = ["RankContext", "RankPool"]


@dataclass
class RankContext:
    """What a function in a pool knows of its rank.

    Parameters
    ----------
    rank, world_size
        Number of the process and of all processes in the pool.
    state
        What the pool's `setup` returned in this process.
    """

    rank: int
    world_size: int
    state: Any = None


@dataclass
class _Member:
    process: Any
    connection: Connection
    is_lost: bool = field(default=False)


class RankPool:
    """Processes that stay alive between calls, so that only the first call pays for their start.

    After a call in which a rank died or hung, all processes are replaced at the next call.

    Parameters
    ----------
    world_size
        Processes.
    setup
        ``setup(rank, world_size, *setup_args)``, run in each process at its start; what it returns
        is `RankContext.state`.
    setup_args
        Further arguments. A callable is called for each start of the processes, in the caller.
    start_method
        'spawn', or 'forkserver' to start faster. Plain 'fork' is not offered: it breaks with
        threads and CUDA.
    preload
        Modules that the fork server imports once for all.
    timeout
        Seconds for one call, if the call gives no other.
    start_timeout
        Seconds for the start of the processes, which the first call waits for besides.
    """

    def __init__(
        self,
        world_size: int,
        *,
        setup: Callable[..., Any] | None = None,
        setup_args: tuple[Any, ...] | Callable[[], tuple[Any, ...]] = (),
        start_method: str = "spawn",
        preload: Sequence[str] = (),
        timeout: float = 60.0,
        start_timeout: float = 100.0,
    ) -> None:
        if start_method not in ("spawn", "forkserver"):
            raise ValueError(
                f"RankPool: start_method must be spawn or forkserver, got {start_method!r}"
            )
        self._world_size = world_size
        self._setup = setup
        self._setup_args = setup_args
        self._context = multiprocessing.get_context(start_method)
        if preload:
            self._context.set_forkserver_preload(list(preload))
        self._timeout = timeout
        self._start_timeout = start_timeout
        self._members: list[_Member] = []

    @property
    def world_size(self) -> int:
        """Processes of the pool."""
        return self._world_size

    def pids(self) -> list[int]:
        """Process ids, by rank; empty before the first call."""
        return [member.process.pid for member in self._members]

    def run(
        self,
        fn: Callable[..., Any],
        *args: Any,
        ranks: Sequence[int] | None = None,
        timeout: float | None = None,
    ) -> list[Any]:
        """Call ``fn(context, *args)`` in the processes at the same time.

        Parameters
        ----------
        fn
            A function of a module; its arguments and result must pickle.
        *args
            Arguments after the `RankContext`.
        ranks
            Which processes; None is all.
        timeout
            Seconds for the call.

        Returns
        -------
        list
            Results in the order of `ranks`.

        Raises
        ------
        RankError
            A rank raised, died, or did not return in time.
        """
        call = pickle.dumps((list(sys.path), Call.of(fn, args)))
        if not self._members:
            self._start()
        deadline = time.monotonic() + (self._timeout if timeout is None else timeout)
        chosen = list(range(self._world_size) if ranks is None else ranks)
        for rank in chosen:
            self._send(self._members[rank], call)
        return self._collect(chosen, deadline)

    def close(self) -> None:
        """End the processes."""
        members, self._members = self._members, []
        for member in members:
            member.connection.close()  # an idle rank leaves at the end of its input
        for member in members:
            member.process.join(timeout=0.0 if member.is_lost else 2.0)
            if member.process.is_alive():
                member.process.kill()
                member.process.join()
            member.process.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    @staticmethod
    def _send(member: _Member, message: bytes) -> None:
        try:
            member.connection.send_bytes(message)
        except OSError:
            member.is_lost = True  # its end is found, and named, when its reply is waited for

    def _start(self) -> None:
        deadline = time.monotonic() + self._start_timeout
        arguments = self._setup_args() if callable(self._setup_args) else self._setup_args
        setup = None if self._setup is None else Call.of(self._setup, arguments)
        for rank in range(self._world_size):
            ours, theirs = self._context.Pipe()
            process = self._context.Process(  # type: ignore[attr-defined]
                target=_serve,
                args=(theirs, rank, self._world_size, list(sys.path), setup),
                name=f"rank {rank}",
                daemon=True,
            )
            process.start()
            theirs.close()
            self._members.append(_Member(process, ours))
        try:
            self._collect(list(range(self._world_size)), deadline)
        except RankError:
            self.close()
            raise

    def _collect(self, ranks: list[int], deadline: float) -> list[Any]:
        results: dict[int, Any] = {}
        failures: dict[int, Failure] = {}
        started = time.monotonic()
        waiting = {rank: self._members[rank] for rank in ranks}
        while waiting:
            limit = deadline - time.monotonic()
            handles = [member.connection for member in waiting.values()]
            ready = multiprocessing.connection.wait(handles, max(limit, 0.0))
            if not ready:
                break
            for rank, member in list(waiting.items()):
                if member.connection in ready:
                    del waiting[rank]
                    self._receive(rank, member, results, failures)
            if failures:
                deadline = min(deadline, time.monotonic() + GRACE_SEC)
        for rank, member in waiting.items():
            member.is_lost = True
            failures[rank] = Failure(
                f"did not return within {time.monotonic() - started:.1f} s (killed)"
            )
        if any(self._members[rank].is_lost for rank in ranks):
            for member in self._members:
                member.is_lost = True
            self.close()
        if failures:
            raise RankError(failures)
        return [results[rank] for rank in ranks]

    @staticmethod
    def _receive(
        rank: int, member: _Member, results: dict[int, Any], failures: dict[int, Failure]
    ) -> None:
        try:
            is_success, value = pickle.loads(member.connection.recv_bytes())
        except (EOFError, OSError):
            member.is_lost = True
            member.process.join(timeout=5.0)
            failures[rank] = Failure(f"{describe_exit(member.process.exitcode)} before it returned")
            return
        if is_success:
            results[rank] = value
        else:
            failures[rank] = value


def _serve(
    connection: Connection, rank: int, world_size: int, path: list[str], setup: Call | None
) -> None:
    """Body of a rank's process."""
    context = RankContext(rank, world_size)
    _leave_with_parent()

    def start() -> None:
        sys.path[:] = path
        if setup is not None:
            context.state = setup(rank, world_size)

    _reply(connection, start)
    while True:
        try:
            message = connection.recv_bytes()
        except (EOFError, OSError):
            return

        def work(message: bytes = message) -> Any:
            their_path, call = pickle.loads(message)
            sys.path[:] = their_path
            return call(context)

        _reply(connection, work)


def _reply(connection: Connection, work: Callable[[], Any]) -> None:
    try:
        reply = pickle.dumps((True, work()))
    except BaseException as error:
        text = "".join(traceback.format_exception(error))
        failure = Failure(f"{type(error).__name__}: {error}", text, error)
        try:
            reply = pickle.dumps((False, failure))
            pickle.loads(reply)
        except Exception:
            reply = pickle.dumps((False, Failure(failure.reason, text)))
    connection.send_bytes(reply)


def _leave_with_parent() -> None:
    """Do not outlive a parent that was killed."""
    parent = multiprocessing.parent_process()
    if parent is None:
        return

    def watch() -> None:
        multiprocessing.connection.wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
