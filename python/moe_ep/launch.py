"""Ranks as processes of this host: started, pinned and joined to a group, for the command line.

A `RankTeam` keeps one process a rank. Every call of `RankTeam.run` has a deadline; a rank that
raises, dies or hangs ends the call with an error that names it.
"""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch.distributed
    from typing_extensions import Self

    from .comm.protocol import CommBackend
    from .communication import MoEEpCommunication
    from .config import BootstrapConfig, MoEEpCommParams
    from .testing.pool import RankContext

__all__ = ["Meeting", "RankTeam", "Seat", "assign_cores", "meeting_of", "open_communication"]

Meeting = Literal["socket", "gloo"]

# What the fork server imports once for all ranks; what is missing is left out.
_PRELOAD = ("numpy", "torch", "torch.distributed", "moe_ep.backends.torch_dist", "moe_ep._core")
_ENTER_TIMEOUT_SEC = 60.0
_LEAVE_TIMEOUT_SEC = 20.0


@dataclass
class Seat:
    """A rank's place in its team.

    Parameters
    ----------
    rank, world_size
        Who this process is.
    comm
        Collectives over the team.
    group
        Gloo process group of the team, or None.
    cores
        Cores this process is bound to, or None.
    objects
        What functions of the team keep from one call to the next.
    """

    rank: int
    world_size: int
    comm: CommBackend
    group: torch.distributed.ProcessGroup | None = None
    cores: tuple[int, ...] | None = None
    objects: dict[str, Any] = field(default_factory=dict)

    @property
    def bootstrap(self) -> BootstrapConfig:
        """Bootstrap of instances on this rank."""
        from .config import BootstrapConfig

        return BootstrapConfig(self.world_size, self.rank, process_group=self.group)


def meeting_of(backend: str) -> Meeting:
    """How ranks should meet for a backend: those that may need a process group get one."""
    return "socket" if backend == "host" else "gloo"


def open_communication(
    seat: Seat, params: MoEEpCommParams, backend: str, **options: Any
) -> MoEEpCommunication:
    """Make the rank's instance of a backend. Collective.

    Parameters
    ----------
    seat
        The rank.
    params
        Sizes and formats.
    backend
        Name of a backend, or 'auto'.
    **options
        Fields of configs; those that the backend's config lacks are left out, and with 'auto' all
        of them.
    """
    from dataclasses import fields

    from . import create_communication
    from .auto import BACKEND_CONFIGS

    if backend == "auto":
        return create_communication(seat.bootstrap, params, "auto")
    config = BACKEND_CONFIGS.get(backend)
    if config is None:
        return create_communication(seat.bootstrap, params, backend)
    known = {each.name for each in fields(cast("Any", config))}
    chosen = {name: value for name, value in options.items() if name in known}
    if seat.group is None and "comm_backend" in known:
        chosen["comm_backend"] = seat.comm
    return create_communication(seat.bootstrap, params, config(**chosen))


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
        from .testing.pool import RankPool

        self._folder = tempfile.TemporaryDirectory(prefix="moe_ep_team_")
        cores = assign_cores(world_size, threads) if is_pinned else [None] * world_size
        self._pool = RankPool(
            world_size,
            setup=_enter,
            setup_args=(self._folder.name, meeting, threads, cores),
            start_method="forkserver",
            preload=_PRELOAD,
            timeout=max(timeout, _ENTER_TIMEOUT_SEC),
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
        from .testing.functions import Call

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
    """Bind the process to its cores and join the others."""
    own = cores[rank]
    if own is not None:
        os.sched_setaffinity(0, own)
    import torch

    torch.set_num_threads(threads)
    if meeting == "socket":
        from .comm.native import UnixSocketBackend

        path = Path(folder) / "socket"
        comm = UnixSocketBackend(path, rank, world_size, timeout_sec=_ENTER_TIMEOUT_SEC)
        return Seat(rank, world_size, comm, cores=own)
    from datetime import timedelta

    import torch.distributed as dist

    from .comm.torch_dist import TorchDistBackend

    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/store",
        rank=rank,
        world_size=world_size,
        timeout=timedelta(seconds=_ENTER_TIMEOUT_SEC),
    )
    return Seat(rank, world_size, TorchDistBackend(), dist.group.WORLD, own)


def _leave(context: RankContext) -> None:
    """Drop what holds the process group, then the group: torch dislikes exits with a live one."""
    seat = cast("Seat", context.state)
    seat.objects.clear()
    if seat.group is not None:
        import torch.distributed as dist

        seat.group = None
        seat.comm = cast("CommBackend", None)
        dist.destroy_process_group()
