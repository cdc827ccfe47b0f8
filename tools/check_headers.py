#!/usr/bin/env python3
"""Compile each public and each protocol header alone; protocol headers for a GPU as well."""

from __future__ import annotations

import argparse
import concurrent.futures
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
INCLUDES = ["-I", str(ROOT / "include"), "-I", str(ROOT / "src")]
CXX_FLAGS = [
    "-std=c++20",
    "-fsyntax-only",
    "-Wall",
    "-Wextra",
    "-Wpedantic",
    "-Wshadow",
    "-Wconversion",
    "-Werror",
]
NVCC_FLAGS = ["-std=c++20", "-arch=sm_90a", "-ptx", "-Werror=all-warnings"]


def public_headers() -> list[str]:
    return sorted(
        f"moe_ep/{path.name}"
        for path in (ROOT / "include" / "moe_ep").glob("*.hpp")
        if path.name != "mpi.hpp" or shutil.which("mpicxx")  # opt-in: needs MPI's own header
    )


def protocol_headers() -> list[str]:
    folder = ROOT / "src" / "protocol"
    return sorted(path.relative_to(ROOT / "src").as_posix() for path in folder.rglob("*.hpp"))


def compile_alone(command: list[str], suffix: str, header: str) -> str | None:
    """Return the compiler's complaint, None if there is none. Included twice: guards count."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, f"alone{suffix}")
        source.write_text(f"#include <{header}>\n#include <{header}>\n")
        done = subprocess.run(
            [*command, *INCLUDES, str(source)],
            capture_output=True,
            text=True,
            check=False,
            cwd=folder,
        )
    return None if done.returncode == 0 else f"{header}: {command[0]}\n{done.stdout}{done.stderr}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cxx", default=os.environ.get("CXX", "g++"))
    parser.add_argument("--nvcc", default=os.environ.get("CUDACXX", "nvcc"))
    parser.add_argument("-j", "--jobs", type=int, default=os.cpu_count())
    options = parser.parse_args()

    mpi = ["mpicxx", *CXX_FLAGS] if shutil.which("mpicxx") else []
    cxx = [options.cxx, *CXX_FLAGS]
    work = [
        (mpi if header == "moe_ep/mpi.hpp" else cxx, ".cpp", header)
        for header in [*public_headers(), *protocol_headers()]
    ]
    if shutil.which(options.nvcc):
        device = ["moe_ep/types.hpp", "moe_ep/rank_mask.hpp", *protocol_headers()]
        work += [([options.nvcc, *NVCC_FLAGS], ".cu", header) for header in device]
    else:
        print(f"check_headers: no {options.nvcc} found, protocol headers go through g++ only")

    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        failures = [text for text in pool.map(lambda args: compile_alone(*args), work) if text]
    for text in failures:
        print(text, file=sys.stderr)
    print(f"check_headers: {len(work) - len(failures)} compiled alone, {len(failures)} did not")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
