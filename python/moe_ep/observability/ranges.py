"""NVTX ranges: from torch where it has CUDA, else from the package ``nvtx``."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

__all__ = ["nvtx_range"]


def nvtx_range() -> Callable[[str], AbstractContextManager[object]]:
    """Return what makes a range of a name.

    Raises
    ------
    ModuleNotFoundError
        This torch has no CUDA, and there is no package ``nvtx`` (``pip install moe-ep[nvtx]``).
    """
    import torch

    if torch.version.cuda is not None:
        return cast("Callable[[str], AbstractContextManager[object]]", torch.cuda.nvtx.range)
    nvtx = importlib.import_module("nvtx")
    return cast("Callable[[str], AbstractContextManager[object]]", nvtx.annotate)
