"""``moe-ep cmake-dir``: where the CMake package of the C++ library is."""

from __future__ import annotations

from pathlib import Path

from ._console import fail

__all__ = ["cmake_dir", "find_cmake_dir"]

_CONFIG = Path("cmake") / "moe_ep" / "moe_ep-config.cmake"


def cmake_dir() -> None:
    """Print the folder of moe_ep-config.cmake, for CMAKE_PREFIX_PATH or moe_ep_DIR."""
    folder = find_cmake_dir()
    if folder is None:
        searched = " or ".join(str(root) for root in _package_folders())
        fail(
            "cmake-dir: moe_ep-config.cmake must be in the installed package, "
            f"got none below {searched}"
        )
    print(folder)


def find_cmake_dir() -> Path | None:
    """Folder of moe_ep-config.cmake of the installed package, or None."""
    for root in _package_folders():
        for library_folder in ("lib", "lib64"):
            if (root / library_folder / _CONFIG).is_file():
                return (root / library_folder / _CONFIG).parent
    return None


def _package_folders() -> list[Path]:
    """Where the package's files lie; an editable install keeps apart what is built."""
    import importlib.util

    folders = [Path(__file__).resolve().parents[1]]
    try:
        spec = importlib.util.find_spec("moe_ep._core")
    except ImportError:
        spec = None
    if spec is not None and spec.origin:
        folders.append(Path(spec.origin).resolve().parent)
    return list(dict.fromkeys(folders))
