#!/usr/bin/env python3
"""Fail on an include or import that points the wrong way.

The table of layers is in the architecture document; RULES below is the same table. A layer may
include the layers named in its rule, the kinds of outside headers named there, and itself.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

# Headers that need no operating system and that device compilers take as well.
FREESTANDING = frozenset(
    {
        "bit",
        "cfloat",
        "climits",
        "compare",
        "concepts",
        "cstddef",
        "cstdint",
        "initializer_list",
        "limits",
        "numbers",
        "type_traits",
        "utility",
        "version",
    }
)
# The rest of the standard library: names without a dot, C headers as <cname>.
STANDARD = re.compile(r"[a-z_0-9]+")
CUDA = re.compile(
    r"(cuda|cub|thrust|cooperative_groups|nv|crt)([/_.].*)?|cuda[A-Za-z_]*\.h|nccl.*\.h"
)
PYTHON = re.compile(r"(nanobind/.*|Python\.h)")
MPI = re.compile(r"mpi\.h")

FREE, HOSTED, OS, GPU, BINDING, MPI_KIND = "freestanding", "std", "os", "cuda", "python", "mpi"


@dataclass(frozen=True)
class Rule:
    """What files under `path` are, and what they may include."""

    path: str  # a file, or a folder with a closing slash
    layer: str
    layers: frozenset[str]
    outside: frozenset[str]


def rule(path: str, layer: str, layers: str, outside: str) -> Rule:
    return Rule(path, layer, frozenset(layers.split()) | {layer}, frozenset(outside.split()))


# The first match wins, so special files stand before their folder.
RULES = (
    rule("include/moe_ep/types.hpp", "types", "", "freestanding"),
    rule("include/moe_ep/rank_mask.hpp", "types", "", "freestanding"),
    rule("include/moe_ep/mpi.hpp", "public", "types", "freestanding std mpi"),
    rule("include/moe_ep/", "public", "types", "freestanding std"),
    rule("src/protocol/", "protocol", "types", "freestanding"),
    rule("src/comm/", "system", "types protocol public", "freestanding std os"),
    rule("src/memory/", "system", "types protocol public", "freestanding std os"),
    rule("src/backend/", "system", "types protocol public", "freestanding std os"),
    rule("src/host/", "host", "types protocol public system", "freestanding std os"),
    rule("src/cuda/device/", "device", "types protocol", "freestanding cuda"),
    rule("src/cuda/kernels/", "device", "types protocol", "freestanding cuda"),
    rule("src/cuda/", "cuda", "types protocol public system device", "freestanding std os cuda"),
    rule(
        "src/core/registry.cpp",
        "core",
        "types protocol public system host cuda",
        "freestanding std",
    ),
    rule("src/core/", "core", "types protocol public system", "freestanding std"),
    rule("bindings/", "bindings", "types public", "freestanding std python"),
    rule("examples/", "examples", "types public", "freestanding std os cuda mpi"),
)

INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*(?:<([^>\n]+)>|"([^"\n]+)"|(\S+))', re.MULTILINE)
COMMENT = re.compile(r'//[^\n]*|/\*.*?\*/|("(?:\\.|[^"\\\n])*")', re.DOTALL)
SOURCES = frozenset({".hpp", ".h", ".cuh", ".cpp", ".cc", ".cu"})

# What `import moe_ep` and the command must start without, so that they stay quick and work where
# these packages, or CUDA, do not. Modules about torch may import it: functions import those.
LAZY_PACKAGES = frozenset({"mpi4py", "numpy", "torch"})
LIGHT_MODULES = ("moe_ep", "moe_ep.__main__", "moe_ep.cli")


def find_rule(path: str) -> Rule | None:
    for entry in RULES:
        if path == entry.path or (entry.path.endswith("/") and path.startswith(entry.path)):
            return entry
    return None


def strip_comments(text: str) -> str:
    """Blank comments out; strings stay, for an include is one, and so do line numbers."""

    def blank(match: re.Match[str]) -> str:
        return match.group(1) or "\n" * match.group(0).count("\n")

    return COMMENT.sub(blank, text)


def resolve(root: Path, source: str, name: str, *, quoted: bool) -> str | None:
    """Path of an included file of this repository, also of one that does not exist yet."""
    candidates = [f"include/{name}", f"src/{name}"]
    if quoted:
        candidates.insert(0, (Path(source).parent / name).as_posix())
    for candidate in candidates:
        try:
            path = (root / candidate).resolve().relative_to(root.resolve()).as_posix()
        except ValueError:
            continue
        if (root / path).is_file():
            return path
    first = name.split("/")[0]
    if quoted and "/" in name and (root / "src" / first).is_dir():
        return f"src/{name}"
    return f"include/{name}" if name.startswith("moe_ep/") else None


def outside_kind(name: str) -> str:
    if name in FREESTANDING:
        return FREE
    for pattern, kind in ((CUDA, GPU), (PYTHON, BINDING), (MPI, MPI_KIND), (STANDARD, HOSTED)):
        if pattern.fullmatch(name):
            return kind
    return OS


def check_cpp(root: Path, source: str) -> Iterator[str]:
    own = find_rule(source)
    if own is None:
        return
    text = strip_comments((root / source).read_text(encoding="utf-8"))
    for match in INCLUDE.finditer(text):
        angled, quoted, macro = match.groups()
        line = text.count("\n", 0, match.start()) + 1
        where = f"{source}:{line}"
        if macro:
            yield f"{where}: the included file must be written out, got {macro}"
            continue
        name = angled or quoted
        target = resolve(root, source, name, quoted=bool(quoted))
        if target is None and quoted:
            yield f'{where}: no file "{name}" in this repository; outside headers take <>'
        elif target is None:
            kind = outside_kind(name)
            if kind not in own.outside:
                yield f"{where}: {own.layer} may not include <{name}> ({kind})"
        else:
            other = find_rule(target)
            if other is None or other.layer not in own.layers:
                layer = other.layer if other else "no layer"
                yield f"{where}: {own.layer} may not include {target} ({layer})"


def is_type_checking(test: ast.expr) -> bool:
    name = test.attr if isinstance(test, ast.Attribute) else getattr(test, "id", None)
    return name == "TYPE_CHECKING"


def top_level_imports(body: list[ast.stmt]) -> Iterator[ast.Import | ast.ImportFrom]:
    """Yield the imports that run when the module is imported."""
    for node in body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node
        elif isinstance(node, ast.If) and is_type_checking(node.test):
            yield from top_level_imports(node.orelse)
        elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            for field in ("body", "orelse", "finalbody"):
                yield from top_level_imports(getattr(node, field, []))
            for handler in getattr(node, "handlers", []):
                yield from top_level_imports(handler.body)


def imported_modules(node: ast.Import | ast.ImportFrom, package: list[str]) -> set[str]:
    """Full names of what a statement may import; `package` is where it stands."""
    if isinstance(node, ast.Import):
        return {alias.name for alias in node.names}
    base = package[: len(package) - node.level + 1] if node.level else []
    base = [*base, *(node.module or "").split(".")] if node.module else base
    return {".".join(base), *(".".join([*base, alias.name]) for alias in node.names)}


@dataclass(frozen=True)
class PythonModule:
    """A module of the package: its file and the lines that import others eagerly."""

    source: str
    imports: tuple[tuple[int, frozenset[str]], ...]


def read_python(root: Path) -> dict[str, PythonModule]:
    modules = {}
    for file in sorted((root / "python" / "moe_ep").rglob("*.py")):
        source = file.relative_to(root).as_posix()
        path = file.relative_to(root / "python").with_suffix("")
        package = list(path.parent.parts)
        name = ".".join(package if path.name == "__init__" else path.parts)
        nodes = top_level_imports(ast.parse(file.read_text(encoding="utf-8"), source).body)
        imports = tuple((node.lineno, frozenset(imported_modules(node, package))) for node in nodes)
        modules[name] = PythonModule(source, imports)
    return modules


def with_parents(name: str) -> list[str]:
    parts = name.split(".")
    return [".".join(parts[:end]) for end in range(1, len(parts) + 1)]


def check_python(root: Path) -> Iterator[str]:
    """Follow eager imports from the light modules to a heavy package."""
    modules = read_python(root)
    chains = {name: name for name in LIGHT_MODULES if name in modules}
    queue = list(chains)
    for name in queue:  # grows while it runs
        for line, targets in modules[name].imports:
            for target in sorted(targets):
                if target in modules:
                    new = [part for part in with_parents(target) if part not in chains]
                    chains.update((part, f"{chains[name]} > {part}") for part in new)
                    queue += new
            for package in sorted({target.split(".")[0] for target in targets} & LAZY_PACKAGES):
                yield (
                    f"{modules[name].source}:{line}: import {package} inside the function that "
                    f"needs it; it runs on import of {chains[name]}"
                )


def check(root: Path) -> list[str]:
    """Return one line for each arrow that points the wrong way."""
    problems: list[str] = []
    for folder in ("include", "src", "bindings", "examples"):
        for path in sorted((root / folder).rglob("*")):
            if path.suffix in SOURCES and path.is_file():
                problems += check_cpp(root, path.relative_to(root).as_posix())
    return [*problems, *check_python(root)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("root", nargs="?", type=Path, default=Path(__file__).parents[1])
    problems = check(parser.parse_args().root)
    for problem in problems:
        print(problem)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
