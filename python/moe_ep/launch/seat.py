"""What a rank of a team knows, and how it joins the others and leaves them."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

if TYPE_CHECKING:
    import torch.distributed

    from ..comm.protocol import CommBackend
    from ..communication import MoEEpCommunication
    from ..config import BootstrapConfig, MoEEpCommParams

__all__ = [
    "JOIN_TIMEOUT_SEC",
    "Meeting",
    "Seat",
    "join",
    "leave",
    "meeting_of",
    "open_communication",
]

Meeting = Literal["socket", "gloo"]
JOIN_TIMEOUT_SEC = 60.0
"""Longest wait for the others, at the start and in a collective."""


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
    device
        CUDA ordinal of instances on this rank; None leaves it to `BootstrapConfig`.
    objects
        What functions of the team keep from one call to the next.
    """

    rank: int
    world_size: int
    comm: CommBackend
    group: torch.distributed.ProcessGroup | None = None
    cores: tuple[int, ...] | None = None
    device: int | None = None
    objects: dict[str, Any] = field(default_factory=dict)

    @property
    def bootstrap(self) -> BootstrapConfig:
        """Bootstrap of instances on this rank."""
        from ..config import BootstrapConfig

        return BootstrapConfig(
            self.world_size, self.rank, process_group=self.group, device=self.device
        )


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

    from .. import create_communication
    from ..auto import BACKEND_CONFIGS

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


def join(
    rank: int,
    world_size: int,
    folder: str,
    meeting: Meeting,
    threads: int,
    cores: tuple[int, ...] | None,
) -> Seat:
    """Bind this process to its cores and join the others.

    Parameters
    ----------
    rank, world_size
        Who this process is.
    folder
        Private folder of the team.
    meeting
        How the ranks meet: by `UnixSocketBackend`, or in a Gloo group.
    threads
        Threads of torch.
    cores
        Cores to bind to, or None.
    """
    if cores is not None:
        os.sched_setaffinity(0, cores)
    import torch

    torch.set_num_threads(threads)
    if meeting == "socket":
        from ..comm.native import UnixSocketBackend

        path = Path(folder) / "socket"
        comm = UnixSocketBackend(path, rank, world_size, timeout_sec=JOIN_TIMEOUT_SEC)
        return Seat(rank, world_size, comm, cores=cores)
    from datetime import timedelta

    import torch.distributed as dist

    from ..comm.torch_dist import TorchDistBackend

    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/store",
        rank=rank,
        world_size=world_size,
        timeout=timedelta(seconds=JOIN_TIMEOUT_SEC),
    )
    return Seat(rank, world_size, TorchDistBackend(), dist.group.WORLD, cores)


def leave(seat: Seat) -> None:
    """Drop what holds the process group, then the group: torch dislikes exits with a live one."""
    seat.objects.clear()
    if seat.group is not None:
        import torch.distributed as dist

        seat.group = None
        seat.comm = cast("CommBackend", None)
        dist.destroy_process_group()
