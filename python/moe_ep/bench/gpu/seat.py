"""A rank that measures: its GPU, its stream, and how it waits for the others."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from ...launch import Seat
from .objects import new_stream

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch
    import torch.distributed as dist

    from ...comm.protocol import CommBackend

__all__ = ["GPU_BACKENDS", "GpuSeat", "load_eagerly", "take_gpu", "take_shared_gpu"]

GPU_BACKENDS = frozenset({"nvlink_one_sided", "cake", "nvlink_two_sided"})
"""Backends that are measured here; the others run on CPUs."""

_Result = TypeVar("_Result")


@dataclass
class GpuSeat:
    """A rank with a GPU.

    Parameters
    ----------
    seat
        The rank among the others.
    device
        Its GPU.
    stream
        The one that everything of this rank runs on.
    is_threaded
        Whether other ranks are threads of this process.
    nccl
        NCCL group of the ranks, or None.
    """

    seat: Seat
    device: torch.device
    stream: torch.cuda.Stream
    is_threaded: bool = False
    nccl: dist.ProcessGroup | None = None

    @property
    def comm(self) -> CommBackend:
        """Collectives over the ranks, on the host."""
        return self.seat.comm

    def settle(self) -> None:
        """Return once every rank has finished what it had enqueued. Collective."""
        self.stream.synchronize()
        self.comm.barrier()

    def exclusively(self, work: Callable[[], _Result]) -> _Result:
        """Call `work`, alone in the process: only one thread may capture. Collective."""
        self.settle()
        if not self.is_threaded:
            return work()
        results: list[_Result] = []
        for rank in range(self.seat.world_size):
            if rank == self.seat.rank:
                results.append(work())
            self.comm.barrier()
        return results[0]


def load_eagerly() -> None:
    """Have CUDA load kernels when it starts, and give every stream a queue of its own.

    Ranks that share a GPU wait for each other in kernels: one that had to load a kernel first, or
    stood behind another rank in a queue, would not come. Takes effect before CUDA starts.
    """
    os.environ["CUDA_MODULE_LOADING"] = "EAGER"
    os.environ["CUDA_DEVICE_MAX_CONNECTIONS"] = "32"


def take_gpu(seat: Seat, *, wants_nccl: bool) -> GpuSeat:
    """Give the process of a rank its GPU. Collective; kept from one case to the next."""
    import torch
    import torch.distributed as dist

    if "gpu" not in seat.objects:
        seat.device = seat.rank
        torch.cuda.set_device(seat.device)
        nccl = None
        if wants_nccl and seat.world_size > 1 and dist.is_nccl_available():
            nccl = dist.new_group(backend="nccl")
        device = torch.device("cuda", seat.device)
        seat.objects["gpu"] = GpuSeat(seat, device, new_stream(device), nccl=nccl)
    found: GpuSeat = seat.objects["gpu"]
    return found


def take_shared_gpu(rank: int, world_size: int, comm: CommBackend) -> GpuSeat:
    """Give a rank that is a thread of this process a stream of GPU 0."""
    import torch

    torch.cuda.set_device(0)
    device = torch.device("cuda", 0)
    seat = Seat(rank, world_size, comm, device=0)
    return GpuSeat(seat, device, new_stream(device), is_threaded=True)
