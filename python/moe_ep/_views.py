"""Tensors over workspace memory."""

from __future__ import annotations

import functools
from typing import Any

import torch

__all__ = ["View", "cut", "dtype_triple", "over_memory", "torch_dtype"]

# What the compiled module says of a view: offset in bytes, shape, DLPack dtype.
View = tuple[int, tuple[int, ...], tuple[int, int, int]]

# DLPack's (code, bits, lanes) of torch's dtypes; some are younger than the oldest torch we run on.
_TRIPLES = {
    "int8": (0, 8, 1),
    "int16": (0, 16, 1),
    "int32": (0, 32, 1),
    "int64": (0, 64, 1),
    "uint8": (1, 8, 1),
    "uint16": (1, 16, 1),
    "uint32": (1, 32, 1),
    "uint64": (1, 64, 1),
    "float16": (2, 16, 1),
    "float32": (2, 32, 1),
    "float64": (2, 64, 1),
    "bfloat16": (4, 16, 1),
    "complex32": (5, 32, 1),
    "complex64": (5, 64, 1),
    "complex128": (5, 128, 1),
    "bool": (6, 8, 1),
    "float8_e4m3fn": (10, 8, 1),
    "float8_e4m3fnuz": (11, 8, 1),
    "float8_e5m2": (12, 8, 1),
    "float8_e5m2fnuz": (13, 8, 1),
    "float8_e8m0fnu": (14, 8, 1),
    "float4_e2m1fn_x2": (17, 4, 2),
}


@functools.cache
def _dtypes() -> dict[tuple[int, int, int], torch.dtype]:
    return {
        triple: getattr(torch, name) for name, triple in _TRIPLES.items() if hasattr(torch, name)
    }


def torch_dtype(triple: tuple[int, int, int]) -> torch.dtype:
    """Return the torch dtype of a DLPack (code, bits, lanes)."""
    return _dtypes()[triple]


def dtype_triple(dtype: torch.dtype) -> tuple[int, int, int]:
    """Return DLPack's (code, bits, lanes) of a torch dtype."""
    return _TRIPLES[str(dtype).removeprefix("torch.")]


def over_memory(memory: Any) -> torch.Tensor:
    """Make a uint8 tensor over a `_core.WorkspaceMemory`, also usable outside inference mode."""
    with torch.inference_mode(False):
        tensor: torch.Tensor = memory.tensor()
    return tensor


def cut(base: torch.Tensor, view: View) -> torch.Tensor:
    """Cut the tensor that `view` describes, a view of the flat uint8 tensor `base`."""
    offset, shape, triple = view
    dtype = torch_dtype(triple)
    num_bytes = dtype.itemsize
    for extent in shape:
        num_bytes *= extent
    with torch.inference_mode(False):
        return base[offset : offset + num_bytes].view(dtype).view(shape)
