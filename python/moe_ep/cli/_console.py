"""What the commands share: consoles, quantities as text, and how they fail."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING, NoReturn

import typer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console
    from rich.progress import Progress

__all__ = [
    "console",
    "error_console",
    "fail",
    "failures_reported",
    "format_bytes",
    "format_us",
    "progress_bar",
]

# Width of tables that go to a file or a pipe, which have none of their own.
_PLAIN_WIDTH = 120


def console() -> Console:
    """Make the console of results: standard output."""
    from rich.console import Console

    made = Console(highlight=False)
    if not made.is_terminal:
        made.width = max(made.width, _PLAIN_WIDTH)
    return made


def error_console() -> Console:
    """Make the console of everything that is no result: standard error."""
    from rich.console import Console

    return Console(stderr=True, highlight=False, soft_wrap=True)


def progress_bar(*, auto_refresh: bool = True) -> Progress:
    """Make a progress bar on standard error that goes away when it is done.

    Parameters
    ----------
    auto_refresh
        False where a refresh would disturb a measurement: the bar then moves with its updates only.
    """
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
    )

    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=error_console(),
        transient=True,
        auto_refresh=auto_refresh,
        disable=not sys.stderr.isatty(),
    )


def fail(message: str) -> NoReturn:
    """Print an error and leave with exit code 1."""
    error_console().print(f"[bold red]error:[/] {_escape(message)}")
    raise typer.Exit(1)


@contextlib.contextmanager
def failures_reported() -> Iterator[None]:
    """Turn what goes wrong in the library or on a rank into a message and exit code 1."""
    from ..errors import MoEEpError
    from ..testing.failures import RankError

    try:
        yield
    except RankError as error:
        # What is wrong comes before who waited for it, as in the error's own message.
        fail("\n".join(str(error).partition("\n--- ")[0].splitlines()))
    except (MoEEpError, ImportError, MemoryError, OSError) as error:
        fail(str(error) or type(error).__name__)


def _escape(text: str) -> str:
    from rich.markup import escape

    return escape(text)


def format_bytes(num_bytes: float) -> str:
    """Bytes with a binary unit."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(num_bytes) < 1024:
            return f"{num_bytes:.0f} {unit}" if unit == "B" else f"{num_bytes:.2f} {unit}"
        num_bytes /= 1024
    return f"{num_bytes:.2f} TiB"


def format_us(seconds: float) -> str:
    """Seconds as microseconds, three significant digits at least."""
    microseconds = seconds * 1e6
    return f"{microseconds:,.1f}" if microseconds < 100 else f"{microseconds:,.0f}"
