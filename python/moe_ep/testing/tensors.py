"""Torch tensors as numpy arrays of the same bits, and back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["to_numpy", "to_torch"]

# Formats numpy lacks travel as unsigned ints of the same width.
_BITS = {
    torch.bfloat16: torch.uint16,
    **{
        getattr(torch, name): torch.uint8
        for name in (
            "float8_e4m3fn",
            "float8_e4m3fnuz",
            "float8_e5m2",
            "float8_e5m2fnuz",
            "float8_e8m0fnu",
            "float4_e2m1fn_x2",
        )
        if hasattr(torch, name)
    },
}


def to_numpy(tensor: torch.Tensor) -> npt.NDArray[Any]:
    """Copy a tensor of any device; formats that numpy lacks come as their bits."""
    tensor = tensor.detach().cpu()
    bits = _BITS.get(tensor.dtype)
    if bits is not None:
        tensor = tensor.contiguous().view(bits)
    return np.array(tensor.numpy())


def to_torch(array: npt.NDArray[Any], dtype: torch.dtype | None = None) -> torch.Tensor:
    """Copy an array to a CPU tensor; with `dtype` its bits are read as that format."""
    tensor = torch.from_numpy(np.array(array, order="C"))
    if dtype is None or dtype == tensor.dtype:
        return tensor
    return tensor.view(dtype)
