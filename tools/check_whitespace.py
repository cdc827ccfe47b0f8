#!/usr/bin/env python3
"""Fail on trailing blanks, tabs, carriage returns and a missing or doubled final newline."""

from __future__ import annotations

import sys
from pathlib import Path


def problems(name: str, data: bytes) -> list[str]:
    found = []
    tabs_allowed = Path(name).name in {"Makefile", ".gitmodules"}
    for number, line in enumerate(data.split(b"\n"), start=1):
        if line != line.rstrip():
            found.append(f"{name}:{number}: trailing blanks")
        if b"\t" in line and not tabs_allowed:
            found.append(f"{name}:{number}: tab")
    if data and (not data.endswith(b"\n") or data.endswith(b"\n\n")):
        found.append(f"{name}: must end in exactly one newline")
    return found


def main() -> int:
    found = [line for name in sys.argv[1:] for line in problems(name, Path(name).read_bytes())]
    for line in found:
        print(line)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
