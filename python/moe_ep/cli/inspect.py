"""``moe-ep inspect``: where each rank of a running workspace is, and who is behind."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from ._console import console, fail, failures_reported
from ._options import JsonOption

if TYPE_CHECKING:
    from rich.console import Console

    from ..inspection import SliceReport, WorkspaceReport

__all__ = ["inspect"]


def inspect(
    pids: Annotated[
        list[int] | None,
        typer.Argument(help="Ranks' process ids; peers are found. None: all of this user."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Look into the shared memory of running ranks of the host backend. Reads only."""
    from ..inspection import inspect_processes

    with failures_reported():
        reports = inspect_processes(pids or [])
    if as_json:
        import dataclasses
        import json

        print(json.dumps([dataclasses.asdict(report) for report in reports], indent=2))
        return
    if not reports:
        where = "these processes" if pids else "the processes of this user"
        fail(f"inspect: a rank of the host backend must be running, got none among {where}")
    for number, report in enumerate(reports):
        _print(console(), number, report)


def _print(out: Console, number: int, report: WorkspaceReport) -> None:
    from rich.table import Table

    title = f"Workspace {number}: {report.num_ranks} ranks, {report.max_tokens} tokens a rank"
    table = Table(title=title, title_justify="left")
    for name in ("rank", "pid", "step", "state", "waits for"):
        table.add_column(name, justify="left" if name == "state" else "right")
    for entry in report.slices:
        waits_for = ", ".join(str(rank) for rank in entry.waits_for)
        table.add_row(str(entry.rank), str(entry.pid), str(entry.step), entry.state, waits_for)
    for rank in report.unseen:
        table.add_row(str(rank), "-", "-", "not to be seen", "")
    out.print(table)
    for entry in report.slices:
        _print_peers(out, entry)
    color = "yellow" if report.behind else "green"
    out.print(f"[{color}]{report.explanation}[/]")


def _print_peers(out: Console, entry: SliceReport) -> None:
    """What each peer has told the rank."""
    from rich.table import Table

    table = Table(title=f"What rank {entry.rank} has heard", title_justify="left")
    columns = {
        "peer": "rank",
        "transport": "transport",
        "dispatch flag": "dispatch_flag",
        "combine flag": "combine_flag",
        "rows from": "rows_received",
        "rows to": "rows_sent",
    }
    if entry.has_lamport:
        columns |= {"line tags": "line_tags", "combine tags": "combine_tags"}
    if entry.has_counted:
        columns |= {
            "dispatch bytes": "dispatch_bytes",
            "expected": "expected_dispatch_bytes",
            "combine bytes": "combine_bytes",
            "expected ": "expected_combine_bytes",
        }
    for name in columns:
        table.add_column(name, justify="right")
    for peer in entry.peers:
        table.add_row(*(_text(peer[field]) for field in columns.values()))
    out.print(table)


def _text(value: object) -> str:
    if isinstance(value, tuple | list):
        return " ".join(str(part) for part in value)
    return "-" if value is None else str(value)
