"""Records of cases on GPUs: one for each case and mode."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from ..floor import copy_bound_us, h200_floor_us
from ..report import describe_case, mean_bytes
from ..timing import summarize_replays
from .graph import pairs_of

if TYPE_CHECKING:
    from ..cases import Case
    from .worker import GpuResult

__all__ = ["make_gpu_rows"]

_PHASES = ("dispatch", "combine", "pair")


def make_gpu_rows(
    run: dict[str, Any],
    case: Case,
    limits: dict[str, Any],
    ranks: list[GpuResult],
    *,
    is_one_gpu: bool,
) -> list[dict[str, Any]]:
    """Records of one case, a mode each.

    Parameters
    ----------
    run
        `describe_run`.
    case
        What was measured.
    limits
        `measure_limits`.
    ranks
        What each rank measured.
    is_one_gpu
        Whether the ranks were threads on one GPU.
    """
    first = ranks[0]
    modes = dict.fromkeys(mode for mode, _, _ in first.samples)
    return [_make_row(run, case, limits, ranks, mode, is_one_gpu) for mode in modes]


def _make_row(
    run: dict[str, Any],
    case: Case,
    limits: dict[str, Any],
    ranks: list[GpuResult],
    mode: str,
    is_one_gpu: bool,
) -> dict[str, Any]:
    names = list(dict.fromkeys(name for each, name, _ in ranks[0].samples if each == mode))
    timed = {name: _times(mode, name, ranks) for name in names}
    sent = mean_bytes(case, [rank.rows_to for rank in ranks])
    link = None if is_one_gpu else limits["two_way_gbps"]
    own = {
        phase: {**times, **_rates(phase, times["p50_us"], sent, link)}
        for phase, times in timed["library"].items()
        if phase in _PHASES
    }
    pdl = case.pdl
    if pdl is None:
        pdl = tuple(limits["compute_capability"]) >= (9, 0)
    return {
        **run,
        **describe_case(case),
        "gpu": limits["gpu"],
        "cuda": limits["cuda"],
        "nccl": limits["nccl"],
        "nccl_options": {
            name: value for name, value in sorted(os.environ.items()) if name.startswith("NCCL_")
        },
        "transport": ranks[0].transport,
        "processes": 1 if is_one_gpu else case.world_size,
        "one_gpu": is_one_gpu,
        "mode": mode,
        "cache": "warm",
        "pdl": pdl,
        "max_sms": case.max_sms,
        "workspace_bytes": ranks[0].workspace_bytes,
        "checked": True,
        "iterations": {name: len(ranks[0].samples[mode, name, "pair"]) for name in names},
        "pairs_per_graph": pairs_of(case.num_tokens) if mode == "graph" else None,
        "dispatch": own.get("dispatch"),
        "combine": own.get("combine"),
        "pair": own["pair"],
        "host": timed["library"].get("host"),
        "floor_us": _floor(case, limits, sent["pair_physical"], is_one_gpu),
        "copy_bound_us": None if not link else round(copy_bound_us(sent["pair_physical"], link), 3),
        "limits": {name: limits[name] for name in limits if name.endswith(("_gbps", "_us"))},
        "baselines": {name: timed[name] for name in names if name != "library"},
        "ratios": {
            f"{phase}_to_{name}": round(
                timed["library"][phase]["p50_us"] / timed[name][phase]["p50_us"], 4
            )
            for name in names
            if name != "library"
            for phase in own
            if phase in timed[name]
        },
        "notes": list(dict.fromkeys(note for rank in ranks for note in rank.notes)),
    }


def _times(mode: str, name: str, ranks: list[GpuResult]) -> dict[str, dict[str, float]]:
    """Statistics of each phase of one step."""
    phases = [phase for each, step, phase in ranks[0].samples if (each, step) == (mode, name)]
    return {
        phase: summarize_replays([rank.samples[mode, name, phase] for rank in ranks]).as_us()
        for phase in phases
    }


def _rates(
    phase: str, microseconds: float, sent: dict[str, float], link: float | None
) -> dict[str, float | None]:
    rates: dict[str, float | None] = {}
    for kind in ("physical", "logical"):
        num_bytes = sent[f"{phase}_{kind}"]
        rates[f"{kind}_bytes"] = round(num_bytes)
        rates[f"{kind}_gbps"] = round(num_bytes / microseconds / 1e3, 3)
    gbps = sent[f"{phase}_physical"] / microseconds / 1e3
    rates["link_percent"] = round(100 * gbps / link, 2) if link else None
    return rates


def _floor(
    case: Case, limits: dict[str, Any], physical_bytes: float, is_one_gpu: bool
) -> float | None:
    """Floor of a pair where it was measured: two H200."""
    if is_one_gpu or case.world_size != 2 or "H200" not in limits["gpu"]:
        return None
    return round(h200_floor_us(physical_bytes), 3)
