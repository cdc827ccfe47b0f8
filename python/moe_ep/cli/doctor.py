"""``moe-ep doctor``: what this machine offers, and which backends run on it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ._console import console, format_bytes, progress_bar
from ._options import JsonOption

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

__all__ = ["doctor"]

_TITLES = {
    "package": "moe_ep",
    "cpu": "CPU",
    "memory": "Memory",
    "gpu": "GPUs",
    "software": "Software",
}


def doctor(as_json: JsonOption = False) -> None:
    """Say what this machine offers and which backends run on it. Starts no CUDA context."""
    from ..machine import SECTIONS

    found: dict[str, dict[str, Any]] = {}
    with progress_bar() as progress:
        task = progress.add_task("looking", total=len(SECTIONS))
        for name, describe in SECTIONS.items():
            progress.update(task, description=name)
            found[name] = describe()
            progress.advance(task)
    if as_json:
        import json

        print(json.dumps(found, indent=2))
    else:
        _print(found)


def _print(found: dict[str, dict[str, Any]]) -> None:
    out = console()
    for name, title in _TITLES.items():
        table = _make_table(title)
        for key, value in found[name].items():
            if key not in ("devices", "peers"):
                _add(table, key, value)
        out.print(table)
        if name == "gpu" and found[name]["devices"]:
            _print_gpus(out, found[name])
    _print_backends(out, found["backends"])


def _make_table(title: str) -> Table:
    from rich.table import Table

    table = Table(title=title, title_justify="left", show_header=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    return table


def _add(table: Table, key: str, value: Any) -> None:
    """Add a fact, or those of a group one by one."""
    label = key.removesuffix("_bytes").replace("_", " ")
    if isinstance(value, dict):
        for inner, fact in value.items():
            _add(table, f"{label}: {inner}", fact)
    else:
        table.add_row(label, _as_text(key, value))


def _as_text(key: str, value: Any) -> str:
    from rich.markup import escape

    if value is None:
        return "unlimited" if key.startswith("limits") else "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(str(entry) for entry in value) or "none"
    if key.endswith("_bytes"):
        return format_bytes(value)
    return escape(str(value)) or "nothing"


def _print_gpus(out: Console, found: dict[str, Any]) -> None:
    from rich.table import Table

    devices = Table(title="Devices (by PCI address, not by CUDA ordinal)", title_justify="left")
    names = ("name", "pci", "compute_capability", "memory_bytes", "nvlinks", "fabric", "uuid")
    for name in names:
        devices.add_column(name.removesuffix("_bytes").replace("_", " "), overflow="fold")
    for device in found["devices"]:
        devices.add_row(*(_as_text(name, device[name]) for name in names))
    out.print(devices)
    if found["peers"]:
        peers = Table(title="Peer access", title_justify="left")
        for name in found["peers"][0]:
            peers.add_column(name, justify="right")
        for peer in found["peers"]:
            peers.add_row(*(_as_text(name, value) for name, value in peer.items()))
        out.print(peers)


def _print_backends(out: Console, found: dict[str, Any]) -> None:
    from rich.markup import escape
    from rich.table import Table

    table = Table(title="Backends", title_justify="left")
    for name in ("backend", "runs here", "why not"):
        table.add_column(name, overflow="fold")
    for name, state in found["backends"].items():
        runs = "[green]yes[/]" if state["runs"] else "[red]no[/]"
        table.add_row(name, runs, escape(state["reason"]))
    out.print(table)
    chosen = found["auto"] or "none"
    out.print(f"auto takes: [bold]{chosen}[/]")
