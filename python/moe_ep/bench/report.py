"""Results as rows: one flat record a case, for JSON lines and for tables."""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..traffic import count_bytes
from .timing import summarize

if TYPE_CHECKING:
    from .cases import Case
    from .worker import Effort, RankResult

__all__ = ["describe_run", "make_row"]

_PHASES = ("dispatch", "combine", "pair")
SCHEMA = 1
"""Raised when a field changes its meaning."""


def describe_run() -> dict[str, Any]:
    """What all rows of a run share: revision, machine, time."""
    from ..machine.cpu import cpu_model
    from ..version import version

    return {
        "schema": SCHEMA,
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "version": version(),
        "git": _git_revision(),
        "cpu": cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "gpu": None,
        "kernel": os.uname().release,
        "torch": _torch_version(),
    }


def _torch_version() -> str | None:
    try:
        return importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return None


def _git_revision() -> str | None:
    """Revision of the checkout around the package, '+' for local changes; None without one."""

    def git(*arguments: str) -> str:
        folder = str(Path(__file__).resolve().parent)
        command = ["git", "-C", folder, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=10)
        return done.stdout.strip()

    try:
        revision = git("rev-parse", "--short=12", "HEAD")
        return revision + ("+" if git("status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.SubprocessError):
        return None


def make_row(
    run: dict[str, Any], case: Case, effort: Effort, ranks: list[RankResult], *, is_pinned: bool
) -> dict[str, Any]:
    """The record of one case.

    Parameters
    ----------
    run
        `describe_run`.
    case
        What was measured.
    effort
        How long.
    ranks
        What each rank measured.
    is_pinned
        Whether each rank had cores of its own.
    """
    names = list(ranks[0].samples)
    timed = {name: _phases(name, ranks) for name in names}
    row = {
        **run,
        "backend": case.backend,
        "transport": ranks[0].transport,
        "model": case.model,
        "R": case.world_size,
        "T": case.num_tokens,
        "H": case.hidden_size,
        "K": case.top_k,
        "E": case.num_experts,
        "dispatch_dtype": case.format_name or case.dtype,
        "combine_dtype": case.dtype,
        "routing": case.routing.value,
        "seed": case.seed,
        "processes": case.world_size,
        "threads": case.threads,
        "pinned": is_pinned,
        "combine_input": "in_place" if case.is_in_place else "external",
        "mode": "eager",
        "cache": "warm",
        "pdl": None,
        "workspace_bytes": ranks[0].workspace_bytes,
        "checked": True,
        "iterations": {name: len(ranks[0].samples[name].dispatch) for name in names},
        **_with_rates(case, ranks, timed["library"]),
    }
    row["baselines"] = {name: timed[name] for name in names if name != "library"}
    row["ratios"] = _ratios(timed)
    return row


def _phases(name: str, ranks: list[RankResult]) -> dict[str, dict[str, float]]:
    """Statistics of each phase, in microseconds."""
    return {
        phase: {
            f"{key}_us": round(value, 3)
            for key, value in asdict(
                summarize([getattr(rank.samples[name], phase) for rank in ranks])
            ).items()
        }
        for phase in _PHASES
    }


def _with_rates(
    case: Case, ranks: list[RankResult], phases: dict[str, dict[str, float]]
) -> dict[str, dict[str, float]]:
    """Add bytes of a rank (mean over ranks) and GB/s at the median time to each phase."""
    sent = [
        count_bytes(rank.rows_to, index, case.row_bytes, case.combine_wire_bytes)
        for index, rank in enumerate(ranks)
    ]
    rated = {}
    for phase, times in phases.items():
        parts = ("dispatch", "combine") if phase == "pair" else (phase,)
        rates: dict[str, float] = dict(times)
        for kind in ("physical", "logical"):
            total = sum(getattr(own, f"{part}_{kind}") for own in sent for part in parts)
            rates[f"{kind}_bytes"] = round(total / len(ranks))
            rates[f"{kind}_gbps"] = round(total / len(ranks) / times["p50_us"] / 1e3, 3)
        rated[phase] = rates
    return rated


def _ratios(timed: dict[str, dict[str, dict[str, float]]]) -> dict[str, float]:
    """How the backend's medians compare with each baseline's: above 1 is slower than it."""
    own = timed["library"]
    return {
        f"{phase}_to_{name}": round(own[phase]["p50_us"] / phases[phase]["p50_us"], 4)
        for name, phases in timed.items()
        if name != "library"
        for phase in _PHASES
    }
