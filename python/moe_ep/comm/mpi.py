"""CommBackend over an MPI communicator of mpi4py."""

from __future__ import annotations

from typing import Any

from .._check import check_int
from ..errors import MoEEpError, TypeMismatchError
from .wire import decode, encode

__all__ = ["MPIBackend"]


class MPIBackend:
    """CommBackend over an mpi4py communicator.

    Messages are typed bytes; MPI moves them as buffers, nothing is pickled.

    Parameters
    ----------
    comm
        The communicator; None is ``MPI.COMM_WORLD``. It stays the caller's.

    Raises
    ------
    MoEEpError
        mpi4py cannot be imported.
    """

    def __init__(self, comm: Any = None) -> None:
        try:
            from mpi4py import MPI
        except ImportError as error:
            raise MoEEpError(
                f"MPIBackend: mpi4py must be importable, got {error} (pip install moe-ep[mpi])"
            ) from error
        if comm is None:
            comm = MPI.COMM_WORLD
        if not isinstance(comm, MPI.Intracomm):
            raise TypeMismatchError(
                f"MPIBackend: comm must be an mpi4py intracommunicator or None, "
                f"got {type(comm).__name__}"
            )
        self._comm = comm
        self._byte = MPI.BYTE

    @property
    def comm(self) -> Any:
        """The communicator."""
        return self._comm

    def Get_rank(self) -> int:
        """Rank of the caller."""
        return int(self._comm.Get_rank())

    def Get_size(self) -> int:
        """Ranks of the group."""
        return int(self._comm.Get_size())

    def allgather(self, obj: Any) -> tuple[Any, ...]:
        """Every rank's `obj`, in rank order."""
        import numpy as np

        message = np.frombuffer(encode(obj), dtype=np.uint8)
        counts = np.empty(self.Get_size(), dtype=np.int64)
        self._comm.Allgather(np.array([message.size], dtype=np.int64), counts)
        data = np.empty(int(counts.sum()), dtype=np.uint8)
        self._comm.Allgatherv(message, [data, counts.tolist(), self._byte])
        ends = np.cumsum(counts)
        return tuple(
            decode(data[end - count : end].tobytes(), source)
            for source, (count, end) in enumerate(zip(counts, ends, strict=True))
        )

    def bcast(self, obj: Any, root: int) -> Any:
        """Rank `root`'s `obj` on every rank."""
        import numpy as np

        check_int("bcast", "root", root, low=0, high=self.Get_size() - 1)
        is_root = self.Get_rank() == root
        message = encode(obj) if is_root else b""
        length = np.array([len(message)], dtype=np.int64)
        self._comm.Bcast(length, root=root)
        data = np.frombuffer(message, dtype=np.uint8).copy() if is_root else None
        if data is None:
            data = np.empty(int(length[0]), dtype=np.uint8)
        self._comm.Bcast([data, self._byte], root=root)
        return obj if is_root else decode(data.tobytes(), root)

    def barrier(self) -> None:
        """Return once every rank has called it."""
        self._comm.Barrier()

    def Split(self, color: int, key: int) -> MPIBackend:
        """Group of all ranks that pass the same `color`, ordered by `key`, then by rank."""
        check_int("Split", "color", color)
        check_int("Split", "key", key)
        # MPI allows no negative color, so the members' lowest rank stands for it.
        colors = [their_color for their_color, _ in self.allgather((color, key))]
        return MPIBackend(self._comm.Split(colors.index(color), key))
