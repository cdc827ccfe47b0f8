"""A picture of a run: time of a pair and per cent of the link over T."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["has_matplotlib", "plot_rows", "series_of"]

_Points = dict[str, list[tuple[int, float]]]


def has_matplotlib() -> bool:
    """Whether pictures can be drawn."""
    return importlib.util.find_spec("matplotlib") is not None


def series_of(rows: list[dict[str, Any]]) -> tuple[_Points, _Points]:
    """Points of each line: microseconds of a pair, and per cent of the link, over T."""
    times: _Points = {}
    shares: _Points = {}
    for row in rows:
        tokens, label = row["T"], f"{row['model']} {row['backend']} {row['mode']}"
        times.setdefault(label, []).append((tokens, row["pair"]["p50_us"]))
        for name, phases in row["baselines"].items():
            key = f"{row['model']} {name} {row['mode']}"
            times.setdefault(key, []).append((tokens, phases["pair"]["p50_us"]))
        if row["mode"] == "graph":
            for key, name in (("floor_us", "floor"), ("copy_bound_us", "copy engines")):
                if row.get(key):
                    times.setdefault(f"{row['model']} {name}", []).append((tokens, row[key]))
        for phase in ("dispatch", "combine", "pair"):
            share = (row[phase] or {}).get("link_percent")
            if share is not None:
                shares.setdefault(f"{label} {phase}", []).append((tokens, share))
    return times, shares


def plot_rows(rows: list[dict[str, Any]], file: Path) -> None:
    """Draw the records of a run into a file; its suffix says the format.

    Raises
    ------
    ImportError
        There is no matplotlib.
    """
    from matplotlib.figure import Figure  # type: ignore[import-not-found,unused-ignore]

    times, shares = series_of(rows)
    figure: Any = Figure(figsize=(10, 9), layout="constrained")
    upper, lower = figure.subplots(2, 1, sharex=True)
    for axes, lines in ((upper, times), (lower, shares)):
        for label, points in lines.items():
            is_bound = label.endswith((" floor", " copy engines"))
            xs, ys = zip(*sorted(points), strict=True)
            axes.plot(xs, ys, "--" if is_bound else "o-", label=label, markersize=3)
        axes.set_xscale("log", base=2)
        axes.grid(visible=True, alpha=0.3)
        if lines:
            axes.legend(fontsize="x-small")
    upper.set_yscale("log")
    upper.set_ylabel("pair, us")
    lower.set_ylabel("physical bytes, % of the copy engines' two-way rate")
    lower.set_xlabel("tokens per rank")
    figure.savefig(file)
