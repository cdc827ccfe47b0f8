"""A run on GPUs: limits first, then one case after another."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from ...errors import MoEEpError
from .limits import measure_limits
from .report import make_gpu_rows
from .seat import load_eagerly
from .worker import measure_case, measure_case_on_one_gpu

if TYPE_CHECKING:
    from ...launch import RankTeam, Seat
    from ..cases import Case
    from .worker import GpuEffort, GpuResult

__all__ = ["GpuRun", "count_gpus"]

_LIMITS_TIMEOUT_SEC = 120.0
_CASE_TIMEOUT_SEC = 240.0
# Share of a GPU's free memory that a case may take.
_MEMORY_SHARE = 0.9


def count_gpus() -> int:
    """GPUs that torch sees; 0 where it has no CUDA."""
    import torch

    return torch.cuda.device_count() if torch.cuda.is_available() else 0


class GpuRun:
    """Processes that measure on GPUs.

    Parameters
    ----------
    world_size
        Ranks.
    is_one_gpu
        Whether they are threads of one process on one GPU, instead of processes with one each.
    """

    def __init__(self, world_size: int, *, is_one_gpu: bool) -> None:
        self._world_size = world_size
        self._is_one_gpu = is_one_gpu
        self._limits: dict[str, Any] = {}
        self._team: RankTeam | None = None

    def start(self) -> dict[str, Any]:
        """Measure the limits of the machine, in a process of their own; return them."""
        from ...launch import RankTeam

        with RankTeam(1, timeout=_LIMITS_TIMEOUT_SEC) as team:
            self._limits = team.run(measure_limits)[0]
        processes = 1 if self._is_one_gpu else self._world_size
        threads = max(1, len(os.sched_getaffinity(0)) // self._world_size)
        self._team = RankTeam(processes, threads=min(threads, 16))
        if self._is_one_gpu:
            self._team.run(_load_eagerly)
        return self._limits

    def leave_out(self, case: Case) -> str:
        """Why a case cannot be measured, or an empty text."""
        share = self._limits["memory_bytes"] * _MEMORY_SHARE
        needed = case.memory_bytes / (1 if self._is_one_gpu else case.world_size)
        if needed <= share:
            return ""
        return f"would take {needed / 2**30:.1f} GiB of a GPU, and {share / 2**30:.1f} may be taken"

    def measure(self, run: dict[str, Any], case: Case, effort: GpuEffort) -> list[dict[str, Any]]:
        """Measure one case; its records.

        Raises
        ------
        RankError
            A rank failed a check, raised, died or did not return.
        """
        if self._team is None:
            raise MoEEpError("GpuRun.measure: start must come first, got none")
        results: list[GpuResult]
        if self._is_one_gpu:
            timeout = 2 * _CASE_TIMEOUT_SEC
            (results,) = self._team.run(measure_case_on_one_gpu, case, effort, timeout=timeout)
        else:
            results = self._team.run(measure_case, case, effort, timeout=_CASE_TIMEOUT_SEC)
        return make_gpu_rows(run, case, self._limits, results, is_one_gpu=self._is_one_gpu)

    def close(self, *, is_failed: bool = False) -> None:
        """End the processes."""
        if self._team is None:
            return
        if is_failed:
            self._team.abandon()
        else:
            self._team.close()
        self._team = None


def _load_eagerly(_seat: Seat) -> None:
    load_eagerly()
