"""Every CommBackend of the library."""

from __future__ import annotations

from .default import SingleRankBackend, default_comm_backend
from .mpi import MPIBackend
from .native import LocalGroup, NativeBackend, UnixSocketBackend
from .protocol import CommBackend
from .tcp_store import TCPStoreBackend
from .torch_dist import TorchDistBackend

__all__ = [
    "CommBackend",
    "LocalGroup",
    "MPIBackend",
    "NativeBackend",
    "SingleRankBackend",
    "TCPStoreBackend",
    "TorchDistBackend",
    "UnixSocketBackend",
    "default_comm_backend",
]
