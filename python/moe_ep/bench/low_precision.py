"""How far a combine over an FP8 wire may be off, as the contract says."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .cases import FP8_BLOCK

if TYPE_CHECKING:
    import torch

    from .cases import Case

__all__ = ["LowPrecisionBound", "half_ulp"]

_FP8_MAX = 448.0
_SIGNIFICAND_BITS = {"bf16": 8, "fp16": 11, "fp32": 24}
_SMALLEST_EXPONENT = {"bf16": -126, "fp16": -14, "fp32": -126}


def half_ulp(values: torch.Tensor, dtype: str) -> torch.Tensor:
    """Half the distance of neighbouring numbers of a format at float64 `values`."""
    import torch

    _, exponents = torch.frexp(values)
    lowest = _SMALLEST_EXPONENT[dtype]
    exponents = torch.where(values == 0, torch.full_like(exponents, lowest), exponents - 1)
    exponents = exponents.clamp_min(lowest) - (_SIGNIFICAND_BITS[dtype] - 1)
    return torch.pow(2.0, exponents.double() - 1)


class LowPrecisionBound:
    """Exact sums of contributions, and the largest error of each element.

    ``|out - sum| <= sum over ranks of (2^-4 |x| + 2^-10 s)`` and half an ulp of the result, with
    ``s = amax / 448`` of the element's block.

    Parameters
    ----------
    case
        The case.
    like
        Any [T, H] tensor on the device.
    """

    def __init__(self, case: Case, like: torch.Tensor) -> None:
        self._case = case
        self._sums = like.new_zeros(like.shape).double()
        self._bounds = self._sums.clone()

    def add(self, tokens: torch.Tensor, rows: torch.Tensor) -> None:
        """Add one rank's finite rows for these tokens; each token once."""
        import torch

        values = rows.double()
        width = values.shape[1]
        padded = torch.nn.functional.pad(values.abs(), (0, -width % FP8_BLOCK))
        scales = padded.view(len(values), -1, FP8_BLOCK).amax(dim=2) / _FP8_MAX
        each = scales.repeat_interleave(FP8_BLOCK, dim=1)[:, :width]
        self._sums[tokens] += values
        self._bounds[tokens] += 2.0**-4 * values.abs() + 2.0**-10 * each

    def holds(self, output: torch.Tensor) -> bool:
        """Whether a result [T, H] lies within the bound."""
        limit = self._bounds + half_ulp(self._sums.abs() + self._bounds, self._case.dtype)
        difference = (output.double() - self._sums).abs()
        return bool((difference <= limit).all())
