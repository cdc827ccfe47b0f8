"""Versions: this package, Python, torch and what else is used where it is there."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import platform
import shutil
from pathlib import Path
from typing import Any

__all__ = ["describe_package", "describe_software"]

_PACKAGES = ("numpy", "msgpack", "mpi4py", "typer", "rich")
_LAUNCHERS = ("mpirun", "mpiexec", "srun", "torchrun")


def describe_package() -> dict[str, Any]:
    """Version, place and make of this package."""
    from ..cli.cmake_dir import find_cmake_dir
    from ..version import version

    folder = find_cmake_dir()
    return {
        "version": version(),
        "folder": str(Path(__file__).resolve().parents[1]),
        "compiled_module": _compiled_module(),
        "cuda_kernels": _has_cuda_kernels(),
        "cmake_dir": None if folder is None else str(folder),
    }


def _compiled_module() -> str:
    """Place of the compiled module, or why it cannot be used."""
    try:
        from .. import _core
    except ImportError as error:
        return f"missing ({error})"
    return str(_core.__file__)


def _has_cuda_kernels() -> bool | None:
    """Whether the C++ library was built with CUDA; None where it is missing."""
    try:
        from .. import _core
    except ImportError:
        return None
    return "no CUDA kernels" not in _core.explain_nvlink_one_sided()


def describe_software() -> dict[str, Any]:
    """Python, torch with its process-group backends, MPI."""
    return {
        "python": platform.python_version(),
        "torch": _torch(),
        "packages": {name: _version(name) for name in _PACKAGES},
        "launchers": [name for name in _LAUNCHERS if shutil.which(name)],
    }


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _torch() -> dict[str, Any] | None:
    """Return what torch is; None where it does not import."""
    if importlib.util.find_spec("torch") is None:
        return None
    import torch
    import torch.distributed as dist

    available = dist.is_available()
    return {
        "version": torch.__version__,
        "cuda": torch.version.cuda,
        "distributed": available,
        "gloo": available and dist.is_gloo_available(),
        "nccl": available and dist.is_nccl_available(),
        "mpi": available and dist.is_mpi_available(),
        "dlpack_c_exchange": hasattr(torch.Tensor, "__dlpack_c_exchange_api__"),
    }
