#!/usr/bin/env bash
# Rewrites every tracked source in the project's style. Needs requirements/lint.txt on PATH.
set -euo pipefail
cd "$(dirname "$0")/.."

files() { git ls-files -z --cached --others --exclude-standard -- "$@"; }

files '*.hpp' '*.cpp' '*.cu' '*.cuh' | xargs -0 --no-run-if-empty clang-format -i
files 'CMakeLists.txt' '*/CMakeLists.txt' '*.cmake' | xargs -0 --no-run-if-empty gersemi -i
ruff check --quiet --fix-only .
ruff format --quiet .
