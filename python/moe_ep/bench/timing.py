"""Timing of steps on one rank, and statistics over ranks."""

from __future__ import annotations

import gc
import time
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..comm.protocol import CommBackend

__all__ = [
    "Samples",
    "Step",
    "Summary",
    "agree_iterations",
    "summarize",
    "summarize_replays",
    "time_steps",
]

_MIN_ITERATIONS = 4


class Step(Protocol):
    """Something whose dispatch and combine are timed, one after the other."""

    def wait(self) -> None:
        """Let all ranks start together; for steps that do not wait for each other. Not timed."""

    def dispatch(self) -> object:
        """Bring rows to their ranks."""

    def combine(self) -> object:
        """Bring their outputs back."""


@dataclass
class Samples:
    """Nanoseconds of each iteration on one rank."""

    dispatch: list[int] = field(default_factory=list)
    combine: list[int] = field(default_factory=list)

    def extend(self, more: Samples) -> None:
        """Append another block."""
        self.dispatch += more.dispatch
        self.combine += more.combine

    @property
    def pair(self) -> list[int]:
        """Dispatch and combine together."""
        return [first + second for first, second in zip(self.dispatch, self.combine, strict=True)]


def time_steps(step: Step, iterations: int) -> Samples:
    """Run a step `iterations` times and once before, which does not count.

    Nothing stands between two phases but the clock, and `Step.wait` between two iterations.
    """
    wait, dispatch, combine, clock = step.wait, step.dispatch, step.combine, time.perf_counter_ns
    starts, middles, ends = ([0] * iterations for _ in range(3))
    was_collecting = gc.isenabled()
    gc.disable()
    try:
        wait()
        dispatch()
        combine()
        for index in range(iterations):
            wait()
            starts[index] = clock()
            dispatch()
            middles[index] = clock()
            combine()
            ends[index] = clock()
    finally:
        if was_collecting:
            gc.enable()
    return Samples(
        [middle - start for start, middle in zip(starts, middles, strict=True)],
        [end - middle for middle, end in zip(middles, ends, strict=True)],
    )


def agree_iterations(
    step: Step, comm: CommBackend, *, warmup: int, most: int, seconds: float
) -> int:
    """Warm up and choose how many iterations fit into `seconds`, the same on every rank.

    Parameters
    ----------
    step
        What will be timed.
    comm
        Spans the ranks.
    warmup
        Iterations to run first.
    most
        Upper limit.
    seconds
        Budget of all iterations.
    """
    probe = time_steps(step, 1).pair[0]
    # A step that takes seconds is warm after one.
    warm = min(warmup, max(1, int(seconds * 1e9 / max(comm.allgather(probe)))))
    pairs = sorted(time_steps(step, warm).pair)
    typical = max(comm.allgather(pairs[len(pairs) // 2]))
    return max(_MIN_ITERATIONS, min(most, int(seconds * 1e9 / max(typical, 1))))


@dataclass(frozen=True)
class Summary:
    """Microseconds of a phase.

    Parameters
    ----------
    p50, p90, p99
        Percentiles over all iterations of all ranks.
    rank_min, rank_max
        Smallest and largest median of a rank.
    """

    p50: float
    p90: float
    p99: float
    rank_min: float
    rank_max: float

    def as_us(self) -> dict[str, float]:
        """Fields of a record: 'p50_us' and so on."""
        return {f"{name}_us": round(value, 3) for name, value in asdict(self).items()}


def summarize(ranks: Sequence[Sequence[float]]) -> Summary:
    """Statistics of one phase from the nanoseconds of each rank."""
    return _summarize(ranks, [sample for samples in ranks for sample in samples])


def summarize_replays(ranks: Sequence[Sequence[float]]) -> Summary:
    """Statistics of replays that all ranks began together: each lasts as long as the slowest rank.

    Parameters
    ----------
    ranks
        [R, replays] nanoseconds; percentiles are over replays, of the maximum over ranks.
    """
    return _summarize(ranks, [max(replay) for replay in zip(*ranks, strict=True)])


def _summarize(ranks: Sequence[Sequence[float]], samples: list[float]) -> Summary:
    pooled = sorted(samples)
    medians = [_percentile(sorted(own), 0.5) for own in ranks]
    p50, p90, p99 = (_percentile(pooled, share) for share in (0.5, 0.9, 0.99))
    return Summary(p50, p90, p99, min(medians), max(medians))


def _percentile(ordered: Sequence[float], share: float) -> float:
    """Microseconds that `share` of the samples do not exceed, between samples by linear weights."""
    position = share * (len(ordered) - 1)
    below = int(position)
    above = min(below + 1, len(ordered) - 1)
    weight = position - below
    return (ordered[below] * (1 - weight) + ordered[above] * weight) / 1000.0
