"""RankTeam: the processes."""

from __future__ import annotations

import os
import tempfile
from typing import TYPE_CHECKING, Any, cast

from .seat import JOIN_TIMEOUT_SEC, Meeting, Seat, join, leave

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Self

    from ..testing.pool import RankContext

__all__ = ["RankTeam", "assign_cores"]

# What the fork server imports once for all ranks; what is missing is left out.
_PRELOAD = ("numpy", "torch", "torch.distributed", "moe_ep.backends.torch_dist", "moe_ep._core")
_LEAVE_TIMEOUT_SEC = 20.0


def assign_cores(world_size: int, threads: int) -> list[tuple[int, ...] | None]:
    """Give each rank as many cores of its own as it has threads, where there are enough.

    Returns
    -------
    list
        Cores by rank; all None where this process may not use enough cores.
    """
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < world_size * threads:
        return [None] * world_size
    return [tuple(cores[rank * threads : (rank + 1) * threads]) for rank in range(world_size)]


class RankTeam:
    """Processes, one a rank, that have found each other. Started by the first `run`.

    Parameters
    ----------
    world_size
        Ranks.
    meeting
        'socket': `UnixSocketBackend`; 'gloo': a torch.distributed Gloo group.
    threads
        Threads of torch in a rank, and cores that a pinned rank gets.
    is_pinned
        Bind each rank to cores of its own where there are enough.
    timeout
        Seconds for one call, if the call gives no other.
    """

    def __init__(
        self,
        world_size: int,
        *,
        meeting: Meeting = "gloo",
        threads: int = 1,
        is_pinned: bool = False,
        timeout: float = 120.0,
    ) -> None:
        from ..testing.pool import RankPool

        self._folder = tempfile.TemporaryDirectory(prefix="moe_ep_team_")
        cores = assign_cores(world_size, threads) if is_pinned else [None] * world_size
        self._pool = RankPool(
            world_size,
            setup=_enter,
            setup_args=(self._folder.name, meeting, threads, cores),
            start_method="forkserver",
            preload=_PRELOAD,
            timeout=max(timeout, JOIN_TIMEOUT_SEC),
        )
        self._timeout = timeout
        self._is_started = False
        self.is_pinned = cores[0] is not None

    def run(self, fn: Callable[..., Any], *args: Any, timeout: float | None = None) -> list[Any]:
        """Call ``fn(seat, *args)`` on every rank at the same time; results in rank order.

        Parameters
        ----------
        fn
            A function of a module; arguments and result must pickle.
        *args
            Arguments after the `Seat`.
        timeout
            Seconds for the call.

        Raises
        ------
        RankError
            A rank raised, died, or did not return in time; the message names it.
        """
        from ..testing.functions import Call

        self._is_started = True
        return self._pool.run(
            _run_seated, Call.of(fn, args), timeout=self._timeout if timeout is None else timeout
        )

    def close(self) -> None:
        """Take leave of each other and end the processes."""
        try:
            if self._is_started and self._pool.pids():
                self._pool.run(_leave, timeout=_LEAVE_TIMEOUT_SEC)
        finally:
            self._pool.close()
            self._folder.cleanup()

    def abandon(self) -> None:
        """End the processes as they are."""
        self._pool.close()
        self._folder.cleanup()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *rest: object) -> None:
        if kind is None:
            self.close()
        else:
            self.abandon()


def _run_seated(context: RankContext, call: Callable[[Seat], Any]) -> Any:
    return call(cast("Seat", context.state))


def _enter(
    rank: int,
    world_size: int,
    folder: str,
    meeting: Meeting,
    threads: int,
    cores: list[tuple[int, ...] | None],
) -> Seat:
    return join(rank, world_size, folder, meeting, threads, cores[rank])


def _leave(context: RankContext) -> None:
    leave(cast("Seat", context.state))
