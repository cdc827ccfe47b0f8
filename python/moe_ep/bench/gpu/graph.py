"""Pairs in a CUDA graph, with the events that time them inside it.

A graph holds 1 + N pairs. The first brings the ranks together; events stand after it and after the
last, so that neither the launch nor the ranks' different starts count. Events between the phases
cost some microseconds each: a graph of its own has them, for steps that are long enough.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from .objects import new_event

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch

    from .seat import GpuSeat
    from .step import GpuStep

__all__ = ["PHASES_FROM_TOKENS", "TimedGraph", "check_in_graph", "pairs_of", "phase_times"]

PHASES_FROM_TOKENS = 1024
"""Smallest T whose phases are timed one by one."""


def pairs_of(num_tokens: int) -> int:
    """Pairs of a graph that are timed."""
    return 20 if num_tokens < 2048 else 6


def phase_times(marks: Sequence[float]) -> dict[str, float]:
    """Mean time of each phase, from the times of the marks: dispatch, combine, in turns.

    Parameters
    ----------
    marks
        [1 + 2 N] times since the first mark, which is 0.
    """
    num_pairs = len(marks) // 2
    spans = [end - start for start, end in pairwise(marks)]
    return {"dispatch": sum(spans[::2]) / num_pairs, "combine": sum(spans[1::2]) / num_pairs}


def _capture(gpu: GpuSeat, body: Callable[[], None]) -> torch.cuda.CUDAGraph:
    import torch

    def work() -> torch.cuda.CUDAGraph:
        graph = torch.cuda.CUDAGraph()
        # Other threads (NCCL's watchdog, other ranks) may use CUDA meanwhile.
        with torch.cuda.graph(graph, stream=gpu.stream, capture_error_mode="thread_local"):
            body()
        return graph

    return gpu.exclusively(work)


class TimedGraph:
    """A graph of pairs. Collective; the step has run eagerly before.

    Parameters
    ----------
    gpu
        The rank.
    step
        What to capture.
    num_pairs
        N.
    has_phases
        Whether to time the phases instead of the pairs.
    """

    def __init__(
        self, gpu: GpuSeat, step: GpuStep, num_pairs: int, *, has_phases: bool = False
    ) -> None:
        self._gpu, self._step = gpu, step
        self._num_pairs, self._has_phases = num_pairs, has_phases
        self._marks: list[torch.cuda.Event] = []
        self._graph = _capture(gpu, self._enqueue)

    def _enqueue(self) -> None:
        step = self._step
        step.dispatch()
        step.combine()
        self._mark()
        for _ in range(self._num_pairs):
            step.dispatch()
            if self._has_phases:
                self._mark()
            step.combine()
            if self._has_phases:
                self._mark()
        if not self._has_phases:
            self._mark()

    def _mark(self) -> None:
        # External: a node of the graph, that a replay records anew.
        event = new_event(is_external=True)
        event.record(self._gpu.stream)
        self._marks.append(event)

    def replay(self) -> dict[str, float]:
        """Replay it on all ranks at the same time; nanoseconds of a pair or of each phase."""
        self._gpu.comm.barrier()
        self._graph.replay()
        self._gpu.stream.synchronize()
        first = self._marks[0]
        times = [first.elapsed_time(mark) * 1e6 for mark in self._marks[1:]]
        if self._has_phases:
            return phase_times([0.0, *times])
        return {"pair": times[-1] / self._num_pairs}

    def close(self) -> None:
        """Free it."""
        self._gpu.stream.synchronize()
        self._graph.reset()


def check_in_graph(gpu: GpuSeat, step: GpuStep) -> None:
    """See that one captured pair gives what it must. Collective.

    Raises
    ------
    CheckError
        It does not.
    """
    graph = _capture(gpu, step.probe)
    step.prepare()
    gpu.settle()
    graph.replay()
    gpu.settle()
    step.check_probe()
    gpu.settle()
    graph.reset()
