"""What a rank does for one case on GPUs: check, capture, check again, then measure in turns."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from ...launch import open_communication
from ..checks import Expectation
from ..steps import LibraryStep
from .baselines import make_baselines
from .eager import EagerTimer
from .graph import PHASES_FROM_TOKENS, TimedGraph, check_in_graph, pairs_of
from .seat import take_gpu, take_shared_gpu

if TYPE_CHECKING:
    from ...comm.protocol import CommBackend
    from ...launch import Seat
    from ..cases import Case
    from .seat import GpuSeat
    from .step import GpuStep

__all__ = ["GpuEffort", "GpuResult", "measure_case", "measure_case_on_one_gpu"]

_TIMEOUT_SEC = 60


@dataclass(frozen=True)
class GpuEffort:
    """How long to measure, and what.

    Parameters
    ----------
    modes
        Some of 'graph' and 'eager'.
    replays
        Of a graph; of a loop of eager pairs half as many.
    blocks
        Parts that the replays are cut into; backend and baselines take turns part by part.
    warmup_ms
        Replays before, so that clocks have risen.
    has_baselines, has_flashinfer
        Whether to measure NCCL, and FlashInfer.
    """

    modes: tuple[str, ...] = ("graph", "eager")
    replays: int = 24
    blocks: int = 4
    warmup_ms: float = 50.0
    has_baselines: bool = True
    has_flashinfer: bool = True


@dataclass
class GpuResult:
    """What one rank measured.

    Parameters
    ----------
    samples
        Nanoseconds of each replay by (mode, step, phase), such as ('graph', 'library', 'pair').
    rows_to
        Tokens sent to each rank.
    transport
        That the backend took.
    workspace_bytes
        Of this rank's slice, or None.
    notes
        What could not be measured, and why.
    """

    samples: dict[tuple[str, str, str], list[float]] = field(default_factory=dict)
    rows_to: list[int] = field(default_factory=list)
    transport: str | None = None
    workspace_bytes: int | None = None
    notes: list[str] = field(default_factory=list)


class _Timer(Protocol):
    def replay(self) -> dict[str, float]: ...
    def close(self) -> None: ...


def measure_case(seat: Seat, case: Case, effort: GpuEffort) -> GpuResult:
    """Measure one case, this process being one rank with a GPU of its own. Collective.

    Raises
    ------
    CheckError
        Some step of the backend gave wrong results; nothing was timed.
    """
    gpu = take_gpu(seat, wants_nccl=effort.has_baselines)
    return _measure(gpu, case, effort)


def measure_case_on_one_gpu(_seat: Seat, case: Case, effort: GpuEffort) -> list[GpuResult]:
    """Measure one case, the ranks being threads of this process on GPU 0; results in rank order.

    Raises
    ------
    RankError
        A rank raised, or did not return.
    """
    from ...comm.native import LocalGroup
    from ...testing.spawn import spawn_ranks

    group = LocalGroup(case.world_size, timeout_sec=4 * _TIMEOUT_SEC)

    def work(rank: int) -> GpuResult:
        comm: CommBackend = group.backend(rank)
        return _measure(take_shared_gpu(rank, case.world_size, comm), case, effort)

    return spawn_ranks(work, case.world_size, mode="threads", timeout=8 * _TIMEOUT_SEC)


def _measure(gpu: GpuSeat, case: Case, effort: GpuEffort) -> GpuResult:
    import torch

    with torch.cuda.stream(gpu.stream), ExitStack() as stack:
        expected = Expectation(case, gpu.seat.rank, gpu.device)
        gpu.settle()
        comm = open_communication(
            gpu.seat, case.params(), case.backend, timeout_sec=_TIMEOUT_SEC, **case.options()
        )
        stack.callback(comm.destroy)
        library = LibraryStep(comm, expected, gpu.settle)
        library.check()
        result = GpuResult(
            rows_to=expected.rows_to,
            transport=comm.last_transport,
            workspace_bytes=getattr(comm, "workspace_bytes", None),
        )
        steps: dict[str, GpuStep] = {"library": library}
        steps.update(make_baselines(gpu, expected, effort, result.notes, stack))
        for mode in effort.modes:
            timers = _make_timers(gpu, case, mode, steps, stack)
            for (name, phase_set), timer in timers.items():
                _warm_up(gpu, timer, effort.warmup_ms)
                steps[name].check_last()
                result.samples.update({(mode, name, phase): [] for phase in phase_set})
            replays = effort.replays if mode == "graph" else -(-effort.replays // 2)
            for _ in range(effort.blocks):
                for (name, _), timer in timers.items():
                    for _ in range(-(-replays // effort.blocks)):
                        for phase, value in timer.replay().items():
                            result.samples[mode, name, phase].append(value)
            for name in steps:
                steps[name].check_last()
            gpu.settle()
            for timer in timers.values():
                timer.close()
        comm.synchronize()
        gpu.settle()
    return result


def _make_timers(
    gpu: GpuSeat, case: Case, mode: str, steps: dict[str, GpuStep], stack: ExitStack
) -> dict[tuple[str, tuple[str, ...]], _Timer]:
    """Timers by step and by what each times; a graph is checked before."""
    timers: dict[tuple[str, tuple[str, ...]], _Timer] = {}
    for name, step in steps.items():
        if mode == "eager":
            timers[name, ("pair", "host")] = EagerTimer(gpu, step)
            continue
        check_in_graph(gpu, step)
        num_pairs = pairs_of(case.num_tokens)
        timers[name, ("pair",)] = TimedGraph(gpu, step, num_pairs)
        if case.num_tokens >= PHASES_FROM_TOKENS:
            timers[name, ("dispatch", "combine")] = TimedGraph(
                gpu, step, num_pairs, has_phases=True
            )
    return timers


def _warm_up(gpu: GpuSeat, timer: _Timer, milliseconds: float) -> None:
    """Replay for about as long, equally often on every rank."""
    import time

    timer.replay()
    begin = time.perf_counter()
    timer.replay()
    slowest = max(gpu.comm.allgather(time.perf_counter() - begin))
    for _ in range(min(200, int(milliseconds / 1e3 / max(slowest, 1e-6)))):
        timer.replay()
