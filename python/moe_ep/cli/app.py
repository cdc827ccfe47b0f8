"""The typer application: commands and global options."""

from __future__ import annotations

from typing import Annotated

import typer

from .bench import bench
from .cmake_dir import cmake_dir
from .demo import demo
from .doctor import doctor
from .inspect import inspect
from .plan import plan

__all__ = ["app"]

app = typer.Typer(
    help="Expert-parallel dispatch and combine for mixture-of-experts models.",
    no_args_is_help=True,
    pretty_exceptions_show_locals=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for _command in (demo, doctor, plan, bench, inspect):
    app.command()(_command)
app.command("cmake-dir")(cmake_dir)


def _print_version(is_wanted: bool) -> None:
    if is_wanted:
        from ..version import version

        print(f"moe-ep {version()}")
        raise typer.Exit


@app.callback()
def _root(
    _version: Annotated[
        bool,
        typer.Option(
            "--version",
            callback=_print_version,
            is_eager=True,
            help="Print the version and exit.",
        ),
    ] = False,
) -> None:
    """Expert-parallel dispatch and combine for mixture-of-experts models."""
