"""Results as rows: one flat record a case, for JSON lines and for tables."""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..traffic import count_bytes
from .timing import summarize

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .cases import Case
    from .worker import Effort, RankResult

__all__ = ["describe_case", "describe_run", "make_row", "mean_bytes"]

_PHASES = ("dispatch", "combine", "pair")
SCHEMA = 1
"""Raised when a field changes its meaning."""


def describe_run(revision: str | None = None) -> dict[str, Any]:
    """What all rows of a run share: revision, machine, time.

    Parameters
    ----------
    revision
        Of the sources, where they are no checkout; None asks git.
    """
    from ..machine.cpu import cpu_model
    from ..version import version

    return {
        "schema": SCHEMA,
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "version": version(),
        "git": revision or _git_revision(),
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


def describe_case(case: Case) -> dict[str, Any]:
    """What a record says of its case, wherever it was measured."""
    return {
        "backend": case.backend,
        "model": case.model,
        "R": case.world_size,
        "T": case.num_tokens,
        "H": case.hidden_size,
        "K": case.top_k,
        "E": case.num_experts,
        "dispatch_dtype": case.format_name or case.dtype,
        "combine_dtype": case.dtype,
        "combine_wire": "fp8" if case.is_fp8_combine else case.dtype,
        "combine_input": "in_place" if case.is_in_place else "external",
        "routing": case.routing.value,
        "seed": case.seed,
    }


def mean_bytes(case: Case, rows_to: Sequence[Sequence[int]]) -> dict[str, float]:
    """Bytes of a rank, mean over ranks, by phase and kind: 'dispatch_physical', 'pair_logical'.

    Parameters
    ----------
    case
        The case.
    rows_to
        [R, R] tokens that each rank sends to each rank.
    """
    sent = [
        count_bytes(rows, rank, case.row_bytes, case.combine_wire_bytes)
        for rank, rows in enumerate(rows_to)
    ]
    means = {
        f"{phase}_{kind}": sum(getattr(own, f"{phase}_{kind}") for own in sent) / len(sent)
        for phase in ("dispatch", "combine")
        for kind in ("physical", "logical")
    }
    for kind in ("physical", "logical"):
        means[f"pair_{kind}"] = means[f"dispatch_{kind}"] + means[f"combine_{kind}"]
    return means


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
        **describe_case(case),
        "transport": ranks[0].transport,
        "processes": case.world_size,
        "threads": case.threads,
        "pinned": is_pinned,
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
        phase: summarize([getattr(rank.samples[name], phase) for rank in ranks]).as_us()
        for phase in _PHASES
    }


def _with_rates(
    case: Case, ranks: list[RankResult], phases: dict[str, dict[str, float]]
) -> dict[str, dict[str, float]]:
    """Add bytes of a rank (mean over ranks) and GB/s at the median time to each phase."""
    sent = mean_bytes(case, [rank.rows_to for rank in ranks])
    rated = {}
    for phase, times in phases.items():
        rates: dict[str, float] = dict(times)
        for kind in ("physical", "logical"):
            num_bytes = sent[f"{phase}_{kind}"]
            rates[f"{kind}_bytes"] = round(num_bytes)
            rates[f"{kind}_gbps"] = round(num_bytes / times["p50_us"] / 1e3, 3)
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
