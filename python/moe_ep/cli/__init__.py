"""The command ``moe-ep``.

Importing this package imports next to nothing: `main` loads the commands, and a command loads what
it needs when it runs, so that ``--help`` and ``--version`` import neither torch nor the compiled
module.
"""

from __future__ import annotations

__all__ = ["main"]


def main() -> None:
    """Run the command line."""
    from .app import app

    app(prog_name="moe-ep")
