"""spawn_ranks: one function on every rank, as processes or threads, with a deadline."""

from __future__ import annotations

import threading
import time
import traceback
from typing import TYPE_CHECKING, Any, Literal

from .failures import GRACE_SEC, Failure, RankError
from .functions import Call
from .pool import RankContext, RankPool

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["spawn_ranks"]


def spawn_ranks(
    fn: Callable[..., Any],
    world_size: int,
    *,
    mode: Literal["processes", "threads"] = "processes",
    timeout: float = 60.0,
    args: tuple[Any, ...] = (),
) -> list[Any]:
    """Call ``fn(rank, *args)`` once for each rank, all at the same time.

    Parameters
    ----------
    fn
        What a rank does. In processes it must be a function of a module, and arguments and result
        must pickle.
    world_size
        Ranks.
    mode
        'processes' are spawned anew and ended; 'threads' share this process.
    timeout
        Seconds for all of it.
    args
        Arguments after the rank.

    Returns
    -------
    list
        Results in rank order.

    Raises
    ------
    RankError
        A rank raised, died or did not return in time; the message has all tracebacks.
    """
    if mode == "threads":
        return _run_threads(fn, world_size, timeout, args)
    if mode != "processes":
        raise ValueError(f"spawn_ranks: mode must be processes or threads, got {mode!r}")
    with RankPool(world_size, timeout=timeout) as pool:
        return pool.run(_call_with_rank, Call.of(fn, args))


def _call_with_rank(context: RankContext, call: Call) -> Any:
    return call(context.rank)


def _run_threads(
    fn: Callable[..., Any], world_size: int, timeout: float, args: tuple[Any, ...]
) -> list[Any]:
    results: dict[int, Any] = {}
    failures: dict[int, Failure] = {}

    def work(rank: int) -> None:
        try:
            results[rank] = fn(rank, *args)
        except BaseException as error:
            text = "".join(traceback.format_exception(error))
            failures[rank] = Failure(f"{type(error).__name__}: {error}", text, error)

    started = time.monotonic()
    deadline = started + timeout
    threads = [
        # Daemons, so that one that hangs does not keep the process alive.
        threading.Thread(target=work, args=(rank,), name=f"rank {rank}", daemon=True)
        for rank in range(world_size)
    ]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads) and time.monotonic() < deadline:
        time.sleep(0.001)
        if failures:
            deadline = min(deadline, time.monotonic() + GRACE_SEC)
    for rank, thread in enumerate(threads):
        if thread.is_alive():
            elapsed = time.monotonic() - started
            failures.setdefault(rank, Failure(f"did not return within {elapsed:.1f} s"))
    if failures:
        raise RankError(failures)
    return [results[rank] for rank in range(world_size)]
