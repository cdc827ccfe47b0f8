"""The table of ``moe-ep bench``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["LEGEND", "make_table", "make_title"]

LEGEND = (
    "Medians in us (k: thousand); p90, p99 and ranks (smallest and largest median of a rank) are "
    "the pair's. "
    "GB/s: physical bytes out of a rank in a pair. /memcpy: pair over a memcpy of the same bytes. "
    "Gloo/, wire/: the same step over all_to_all_single, and its exchanges alone, over the pair."
)


def make_table(rows: list[dict[str, Any]]) -> Table:
    """Make the table of the rows of one model.

    Parameters
    ----------
    rows
        Of `moe_ep.bench.report.make_row`.
    """
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD)
    columns = ["T", "dispatch", "combine", "pair", "p90", "p99", "ranks", "GB/s"]
    baselines = rows[0]["baselines"]
    if "memcpy" in baselines:
        columns += ["memcpy", "/memcpy"]
    if "gloo" in baselines:
        columns += ["Gloo", "Gloo/", "wire/"]
    for name in columns:
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        pair, others = row["pair"], row["baselines"]
        own = pair["p50_us"]
        cells = [
            str(row["T"]),
            _us(row["dispatch"]["p50_us"]),
            _us(row["combine"]["p50_us"]),
            f"[bold]{_us(own)}[/]",
            _us(pair["p90_us"]),
            _us(pair["p99_us"]),
            f"{_us(pair['rank_min_us'])}-{_us(pair['rank_max_us'])}",
            f"{pair['physical_gbps']:.2f}",
        ]
        if "memcpy" in baselines:
            copied = others["memcpy"]["pair"]["p50_us"]
            cells += [_us(copied), f"{own / copied:.2f}"]
        if "gloo" in baselines:
            step, wire = (others[name]["pair"]["p50_us"] for name in ("gloo", "gloo_wire"))
            cells += [_us(step), f"{step / own:.1f}", f"{wire / own:.1f}"]
        table.add_row(*cells)
    return table


def make_title(row: dict[str, Any]) -> str:
    """Describe what all rows of a table share."""
    pinned = "pinned" if row["pinned"] else "not pinned"
    revision = row["git"] or f"version {row['version']}"
    return (
        f"[bold]{row['backend']} ({row['transport']})[/], {row['model']}: R {row['R']}, "
        f"H {row['H']}, K {row['K']}, E {row['E']}, {row['dispatch_dtype']} dispatch, "
        f"{row['combine_dtype']} combine {row['combine_input'].replace('_', ' ')}, "
        f"{row['routing']} routing; {row['threads']} thread(s) a rank, {pinned}; {row['cpu']}, "
        f"{revision}"
    )


def _us(microseconds: float) -> str:
    if microseconds < 100:
        return f"{microseconds:.1f}"
    return f"{microseconds:.0f}" if microseconds < 1e4 else f"{microseconds / 1000:.0f}k"
