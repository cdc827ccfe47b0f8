"""What a rank does for one case: check, then measure backend and baselines block by block."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..launch import open_communication
from .all_to_all import AllToAllStep, AllToAllWire
from .checks import Expectation
from .memcpy import MemcpyStep
from .steps import LibraryStep
from .timing import Samples, agree_iterations, time_steps

if TYPE_CHECKING:
    from ..launch import Seat
    from .cases import Case
    from .timing import Step

__all__ = ["Effort", "RankResult", "measure_case"]

_TIMEOUT_SEC = 60


@dataclass(frozen=True)
class Effort:
    """How long to measure.

    Parameters
    ----------
    iterations
        Most iterations of one thing that is measured.
    warmup
        Iterations before.
    seconds
        Budget of one thing that is measured.
    blocks
        Parts that the iterations are cut into. Backend and baselines take turns block by block, so
        that a slow spell of the machine falls on all of them.
    has_baselines
        Whether to measure baselines.
    """

    iterations: int = 200
    warmup: int = 20
    seconds: float = 1.0
    blocks: int = 5
    has_baselines: bool = True


@dataclass
class RankResult:
    """What one rank measured.

    Parameters
    ----------
    samples
        Of the backend ('library') and of each baseline.
    rows_to
        Tokens sent to each rank.
    transport
        That the backend took.
    workspace_bytes
        Of this rank's slice, or None.
    """

    samples: dict[str, Samples] = field(default_factory=dict)
    rows_to: list[int] = field(default_factory=list)
    transport: str | None = None
    workspace_bytes: int | None = None


def measure_case(seat: Seat, case: Case, effort: Effort) -> RankResult:
    """Measure one case. Collective.

    Parameters
    ----------
    seat
        This rank.
    case
        What to measure.
    effort
        How long.

    Raises
    ------
    CheckError
        Some step gave wrong results; nothing was timed.
    """
    expected = Expectation(case, seat.rank)
    comm = open_communication(
        seat, case.params(), case.backend, timeout_sec=_TIMEOUT_SEC, **case.options()
    )
    library = LibraryStep(comm, expected)
    steps: dict[str, Step] = {"library": library}
    memcpy = None
    try:
        library.check()
        if effort.has_baselines:
            memcpy = MemcpyStep(seat.comm, expected.inputs, expected)
            memcpy.check()
            steps["memcpy"] = memcpy
            if seat.group is not None:
                gloo = AllToAllStep(seat.group, expected)
                gloo.check()
                steps["gloo"] = gloo
                steps["gloo_wire"] = AllToAllWire(seat.group, expected)
        samples = _measure(seat, steps, effort)
        library.check_last()
        return RankResult(
            samples, expected.rows_to, comm.last_transport, getattr(comm, "workspace_bytes", None)
        )
    finally:
        if memcpy is not None:
            memcpy.close()
        comm.destroy()


def _measure(seat: Seat, steps: dict[str, Step], effort: Effort) -> dict[str, Samples]:
    plan = {
        name: agree_iterations(
            step,
            seat.comm,
            warmup=effort.warmup,
            most=effort.iterations,
            seconds=effort.seconds,
        )
        for name, step in steps.items()
    }
    samples = {name: Samples() for name in steps}
    for _ in range(effort.blocks):
        for name, step in steps.items():
            seat.comm.barrier()
            samples[name].extend(time_steps(step, -(-plan[name] // effort.blocks)))
    return samples
