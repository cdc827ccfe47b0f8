"""The memcpy baseline: the bytes of a step, copied by the C library between buffers of its kind.

Each rank maps one shared segment with a slice for every rank, as the host backend does, and copies

- dispatch: for each destination, as many rows of each payload (hidden states, ids, weights, scales)
  as its tokens send there, from its own tensors into its block of the destination's slice, one
  memcpy a payload;
- combine: where the expert output lies outside the workspace, its received rows into its own
  combine region, one memcpy a source; then, for each rank that its tokens went to, their rows from
  that rank's combine region into an output-sized scratch buffer, one memcpy a rank.

No routing, no flags, no arithmetic. Ranks start each iteration together, by a counter that each
keeps in the segment; that is not timed.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import tempfile
import time
from typing import TYPE_CHECKING

from .checks import CheckError

if TYPE_CHECKING:
    import torch

    from ..comm.protocol import CommBackend
    from .checks import Expectation
    from .inputs import Inputs

__all__ = ["MemcpyStep"]

_PAGE = 4096
_SPINS = 1000

_Copy = tuple[int, int, int]  # destination, source, bytes


class MemcpyStep:
    """Copies what a step must move. Collective: every rank makes one, and closes it.

    Parameters
    ----------
    comm
        Spans the ranks.
    inputs
        What this rank sends.
    expected
        Who gets how much.
    """

    def __init__(self, comm: CommBackend, inputs: Inputs, expected: Expectation) -> None:
        case = expected.case
        self._inputs, self._expected = inputs, expected
        self._comm = comm
        rows = case.world_size * case.num_tokens
        payloads = inputs.payloads()
        widths = [tensor.shape[1] * tensor.itemsize for tensor in payloads]
        self._offsets = [_PAGE]
        for width in (*widths, case.combine_row_bytes):
            self._offsets.append(_round_up(self._offsets[-1] + rows * width))
        self._slice_bytes = self._offsets[-1]
        self._segment = _map_shared(comm, case.world_size * self._slice_bytes)
        self._base = _address(self._segment)
        # The first to touch a page has it near.
        ctypes.memset(self._base + self._start(expected.rank), 0, self._slice_bytes)
        self._scratch = _map_private(case.num_tokens * case.combine_row_bytes)
        self._external = _map_private(0 if case.is_in_place else rows * case.combine_row_bytes)
        self._dispatch_copies = self._list_dispatch(payloads, widths)
        self._combine_copies = self._list_combine()
        # One at the start of each slice.
        self._counters = [
            ctypes.c_longlong.from_address(self._base + self._start(rank))
            for rank in range(case.world_size)
        ]
        self._round = 0
        comm.barrier()

    def _start(self, rank: int) -> int:
        return rank * self._slice_bytes

    def _region(self, rank: int, index: int) -> int:
        """Address of a region of a rank's slice: payloads in order, then combine rows."""
        return self._base + self._start(rank) + self._offsets[index]

    def _list_dispatch(self, payloads: list[torch.Tensor], widths: list[int]) -> list[_Copy]:
        case, me = self._expected.case, self._expected.rank
        copies = []
        for dst, count in enumerate(self._expected.rows_to):
            for index, (tensor, width) in enumerate(zip(payloads, widths, strict=True)):
                block = self._region(dst, index) + me * case.num_tokens * width
                copies.append((block, tensor.data_ptr(), count * width))
        return [copy for copy in copies if copy[2]]

    def _list_combine(self) -> list[_Copy]:
        case, me = self._expected.case, self._expected.rank
        width = case.combine_row_bytes
        region = len(self._offsets) - 2
        copies = []
        if not case.is_in_place:
            external = _address(self._external)
            for src, count in enumerate(self._expected.rows_from):
                block = src * case.num_tokens * width
                copies.append((self._region(me, region) + block, external + block, count * width))
        scratch = _address(self._scratch)
        for dst, count in enumerate(self._expected.rows_to):
            block = self._region(dst, region) + me * case.num_tokens * width
            copies.append((scratch, block, count * width))
        return [copy for copy in copies if copy[2]]

    def wait(self) -> None:
        """Return once every rank has called it as often."""
        self._round += 1
        self._counters[self._expected.rank].value = self._round
        spins = 0
        while any(counter.value < self._round for counter in self._counters):
            spins += 1
            if spins > _SPINS:
                time.sleep(0)

    def dispatch(self) -> None:
        """Copy rows to their destinations."""
        for destination, source, num_bytes in self._dispatch_copies:
            ctypes.memmove(destination, source, num_bytes)

    def combine(self) -> None:
        """Copy contributions to the scratch buffer."""
        for destination, source, num_bytes in self._combine_copies:
            ctypes.memmove(destination, source, num_bytes)

    def check(self) -> None:
        """See that the rows of every source have arrived here.

        Raises
        ------
        CheckError
            They have not.
        """
        from .inputs import make_inputs

        self.wait()
        self.dispatch()
        self.combine()
        self.wait()
        case, me = self._expected.case, self._expected.rank
        for src, count in enumerate(self._expected.rows_from):
            sent = make_inputs(case, src)
            for index, tensor in enumerate(sent.payloads()):
                width = tensor.shape[1] * tensor.itemsize
                got = ctypes.string_at(
                    self._region(me, index) + src * case.num_tokens * width, count * width
                )
                if got != ctypes.string_at(tensor.data_ptr(), count * width):
                    raise CheckError(f"bench: memcpy must bring rows from rank {src}, got others")
        self.wait()

    def close(self) -> None:
        """Unmap the segment, once nobody copies any more."""
        self._comm.barrier()
        self._dispatch_copies, self._combine_copies, self._counters = [], [], []
        self._segment.close()


def _round_up(num_bytes: int) -> int:
    return -(-num_bytes // _PAGE) * _PAGE


def _address(memory: mmap.mmap) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))


def _map_private(num_bytes: int) -> mmap.mmap:
    """Memory of this process that has been written to: untouched pages would all be one."""
    memory = mmap.mmap(-1, _round_up(max(num_bytes, 1)))
    ctypes.memset(_address(memory), 1, len(memory))
    return memory


def _map_shared(comm: CommBackend, num_bytes: int) -> mmap.mmap:
    """Map one segment on every rank; its name is gone before this returns."""
    path = ""
    if comm.Get_rank() == 0:
        folder = "/dev/shm" if os.path.isdir("/dev/shm") else None
        fd, path = tempfile.mkstemp(prefix="moe_ep_bench_", dir=folder)
        os.ftruncate(fd, num_bytes)
    path = comm.bcast(path, 0)
    if comm.Get_rank() != 0:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    segment = mmap.mmap(fd, num_bytes)
    os.close(fd)
    comm.barrier()
    if comm.Get_rank() == 0:
        os.unlink(path)
    return segment
