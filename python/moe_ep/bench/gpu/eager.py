"""Eager pairs: the time of one when they are called back to back, and the host's part of it."""

from __future__ import annotations

import gc
import time
from typing import TYPE_CHECKING

from .objects import new_event

if TYPE_CHECKING:
    from .seat import GpuSeat
    from .step import GpuStep

__all__ = ["EAGER_PAIRS", "EagerTimer"]

EAGER_PAIRS = 50
"""Pairs that are enqueued before anybody waits."""


class EagerTimer:
    """Enqueues pairs one after another.

    Parameters
    ----------
    gpu
        The rank.
    step
        What to call.
    """

    def __init__(self, gpu: GpuSeat, step: GpuStep) -> None:
        self._gpu, self._step = gpu, step
        self._start, self._end = (new_event() for _ in range(2))

    def replay(self) -> dict[str, float]:
        """Time `EAGER_PAIRS` pairs on all ranks at the same time.

        Returns
        -------
        dict
            Nanoseconds of a pair: 'pair' between events of the stream, after a first pair that
            brings the ranks together; 'host' until the calls had returned, without waiting for the
            GPU.
        """
        stream = self._gpu.stream
        dispatch, combine = self._step.dispatch, self._step.combine
        was_collecting = gc.isenabled()
        gc.disable()
        try:
            self._gpu.settle()
            dispatch()
            combine()
            self._start.record(stream)
            begin = time.perf_counter_ns()
            for _ in range(EAGER_PAIRS):
                dispatch()
                combine()
            end = time.perf_counter_ns()
            self._end.record(stream)
            stream.synchronize()
        finally:
            if was_collecting:
                gc.enable()
        period = self._start.elapsed_time(self._end) * 1e6 / EAGER_PAIRS
        return {"pair": period, "host": (end - begin) / EAGER_PAIRS}

    def close(self) -> None:
        """Nothing: events go with it."""
