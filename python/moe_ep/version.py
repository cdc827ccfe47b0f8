"""The version of the installed package, without importing the compiled module."""

from __future__ import annotations

import functools
import importlib
import importlib.metadata

__all__ = ["version"]


@functools.cache
def version() -> str:
    """Version as pip knows it; where the package is not installed, as the compiled module says."""
    try:
        return importlib.metadata.version("moe-ep")
    except importlib.metadata.PackageNotFoundError:
        pass
    try:
        return str(importlib.import_module("moe_ep._core").__version__)
    except ImportError:
        return "unknown (not installed)"
