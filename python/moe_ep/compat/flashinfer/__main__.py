"""``python -m moe_ep.compat.flashinfer [--nvlink-on-host] program.py ...``: run a program."""

from __future__ import annotations

import argparse
import runpy
import sys
from pathlib import Path

from . import install


def main() -> None:
    """Install, then run the program as if it had been called."""
    parser = argparse.ArgumentParser(
        prog="python -m moe_ep.compat.flashinfer",
        description="Run a program for which flashinfer.moe_ep and flashinfer.comm are moe_ep.",
    )
    parser.add_argument(
        "--nvlink-on-host", action="store_true", help="NVLink backends take CPU tensors"
    )
    parser.add_argument("program", help="path of a Python program")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="the program's own")
    options = parser.parse_args()
    install(nvlink_on_host=options.nvlink_on_host)
    sys.argv = [options.program, *options.arguments]
    sys.path[0] = str(Path(options.program).resolve().parent)
    runpy.run_path(options.program, run_name="__main__")


if __name__ == "__main__":
    main()
