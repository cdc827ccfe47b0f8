"""The programs of README.md and docs/ run as they stand there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from moe_ep.cli.cmake_dir import find_cmake_dir

ROOT = Path(__file__).parents[2]


def program(language: str, page: str = "README.md") -> str:
    text = (ROOT / page).read_text()
    found = re.search(rf"<!-- test: {language} -->\n```{language}\n(.*?)```", text, re.DOTALL)
    assert found is not None, f"{page} has no {language} program"
    return found.group(1)


def run(*command: object, **options: object) -> None:
    done = subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, timeout=110, **options
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("page", ["README.md", "docs/faults.md"])
def test_python_program_runs(tmp_path: Path, page: str) -> None:
    script = tmp_path / "program.py"
    script.write_text(program("python", page))
    run(sys.executable, script)


def test_cpp_program_builds_against_the_wheel_and_runs(tmp_path: Path) -> None:
    (tmp_path / "main.cpp").write_text(program("cpp"))
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.24)\n"
        "project(program LANGUAGES CXX)\n"
        "find_package(moe_ep REQUIRED)\n"
        "find_package(Threads REQUIRED)\n"
        "add_executable(program main.cpp)\n"
        "target_link_libraries(program PRIVATE moe_ep::moe_ep Threads::Threads)\n"
    )
    build = tmp_path / "build"
    run("cmake", "-S", tmp_path, "-B", build, f"-Dmoe_ep_DIR={find_cmake_dir()}")
    run("cmake", "--build", build)
    run(build / "program")
