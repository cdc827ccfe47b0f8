"""Baselines of a case: what of them runs here, and why the others do not."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..all_to_all import AllToAllStep, AllToAllWire
from .flashinfer import FlashInferStep, has_flashinfer
from .gather import GatherScatterStep

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import ExitStack

    from ..checks import Expectation
    from .seat import GpuSeat
    from .step import GpuStep
    from .worker import GpuEffort

__all__ = ["make_baselines"]


def make_baselines(
    gpu: GpuSeat,
    expected: Expectation,
    effort: GpuEffort,
    notes: list[str],
    stack: ExitStack,
) -> dict[str, GpuStep]:
    """Make and check the baselines. Collective.

    Parameters
    ----------
    gpu
        The rank.
    expected
        What it sends, and what must come of it.
    effort
        Which are wanted.
    notes
        Takes a line for each one that fails.
    stack
        Closes them.
    """
    made: dict[str, GpuStep] = {}
    nccl = gpu.nccl
    wanted: dict[str, Callable[[], GpuStep]] = {}
    if nccl is not None:
        group = nccl
        wanted["nccl_gather_scatter"] = lambda: GatherScatterStep(group, expected)
        wanted["nccl_all_to_all"] = lambda: AllToAllStep(group, expected)
        wanted["nccl_all_to_all_wire"] = lambda: AllToAllWire(group, expected)
    elif effort.has_baselines:
        notes.append("nccl: left out; it needs several ranks with a GPU each")
    if effort.has_flashinfer and not gpu.is_threaded and gpu.seat.group is not None:
        if all(gpu.comm.allgather(has_flashinfer())):
            wanted["flashinfer"] = lambda: _open_flashinfer(gpu, expected, stack)
        else:
            notes.append("flashinfer: left out; it does not import here")
    failed: set[str] = gpu.seat.objects.setdefault("failed_baselines", set())
    for name, make in wanted.items():
        if name in failed:
            continue
        reason = _first_reason(gpu, made, name, make)
        if reason:
            failed.add(name)
            notes.append(f"{name}: left out; {reason}")
    return made


def _open_flashinfer(gpu: GpuSeat, expected: Expectation, stack: ExitStack) -> GpuStep:
    step = FlashInferStep(gpu, expected)
    stack.callback(step.close)
    return step


def _first_reason(
    gpu: GpuSeat, made: dict[str, GpuStep], name: str, make: Callable[[], GpuStep]
) -> str:
    """Make and check one; why it failed on the first rank where it did, else an empty text."""
    reason = ""
    step = None
    try:
        step = make()
        step.check()
    except Exception as error:  # whatever another library raises is no reason to end the run
        reason = f"{type(error).__name__}: {error}"
    reasons = gpu.comm.allgather(reason)
    for rank, theirs in enumerate(reasons):
        if theirs:
            return f"rank {rank}: {theirs.splitlines()[0][:300]}"
    assert step is not None
    made[name] = step
    return ""
