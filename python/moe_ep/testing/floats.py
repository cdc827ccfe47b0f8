"""Floating-point formats as numpy bits: widening, and rounding to nearest even.

A format is named as torch names it. Values of 'float16' and 'float32' are numpy floats, those of
'bfloat16' are their bits in uint16, as numpy has no such type.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import numpy.typing as npt

__all__ = ["FloatName", "equal_bits", "from_float32", "half_ulp", "storage_dtype", "to_float32"]

FloatName = Literal["bfloat16", "float16", "float32"]
Array = npt.NDArray[Any]

_STORAGE = {"bfloat16": np.uint16, "float16": np.float16, "float32": np.float32}
_SIGNIFICAND_BITS = {"bfloat16": 8, "float16": 11, "float32": 24}
_SMALLEST_EXPONENT = {"bfloat16": -126, "float16": -14, "float32": -126}


def storage_dtype(name: FloatName) -> npt.DTypeLike:
    """Return the numpy dtype that holds values of this format."""
    return _STORAGE[name]


def to_float32(values: Array, name: FloatName) -> npt.NDArray[np.float32]:
    """Widen to float32; exact."""
    if name == "bfloat16":
        widened: npt.NDArray[np.float32] = (values.astype(np.uint32) << 16).view(np.float32)
        return widened
    return values.astype(np.float32)


def from_float32(values: npt.NDArray[np.float32], name: FloatName) -> Array:
    """Round to nearest, ties to even; what is too large becomes infinity."""
    if name == "float32":
        return values.astype(np.float32)
    if name == "float16":
        with np.errstate(over="ignore", under="ignore"):
            return values.astype(np.float16)
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    half = np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    with np.errstate(over="ignore"):
        rounded = ((bits + half) >> np.uint32(16)).astype(np.uint16)
    quiet_nan = ((bits >> np.uint32(16)) | np.uint32(0x40)).astype(np.uint16)
    chosen: Array = np.where(np.isnan(values), quiet_nan, rounded)
    return chosen


def equal_bits(left: Array, right: Array, name: FloatName) -> bool:
    """Whether two arrays have the same bits, any NaN being equal to any other."""
    if left.shape != right.shape:
        return False
    width = np.uint32 if name == "float32" else np.uint16
    same = np.ascontiguousarray(left).view(width) == np.ascontiguousarray(right).view(width)
    both_nan = np.isnan(to_float32(left, name)) & np.isnan(to_float32(right, name))
    return bool(np.all(same | both_nan))


def half_ulp(values: npt.NDArray[np.float64], name: FloatName) -> npt.NDArray[np.float64]:
    """Half the distance of neighbouring numbers of this format at `values`."""
    _, exponents = np.frexp(values)
    exponents = np.where(values == 0, _SMALLEST_EXPONENT[name], exponents - 1)
    exponents = np.maximum(exponents, _SMALLEST_EXPONENT[name])
    half: npt.NDArray[np.float64] = np.ldexp(0.5, exponents - (_SIGNIFICAND_BITS[name] - 1))
    return half
