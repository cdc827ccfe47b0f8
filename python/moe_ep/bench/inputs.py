"""Inputs of a case: they follow from the case, its seed and the sender.

So each rank can make those of all ranks and check what it received.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..config import QuantFormat
from .cases import RoutingName

if TYPE_CHECKING:
    import torch

    from .cases import Case

__all__ = ["Inputs", "make_inputs", "take_rows", "visits"]

# Bits of an element without its share of scales.
_VALUE_BITS = {
    QuantFormat.BF16: 16,
    QuantFormat.FP16: 16,
    QuantFormat.FP8PerTensor: 8,
    QuantFormat.DeepSeekFp8: 8,
    QuantFormat.MXFP8: 8,
    QuantFormat.NVFP4: 4,
    QuantFormat.MXFP4: 4,
}


@dataclass
class Inputs:
    """What one rank sends.

    Parameters
    ----------
    hidden_states
        [T, *] rows: numbers of the case's dtype or of float8, or bytes of a quantised format.
    topk_ids, topk_weights
        [T, K] int32 and float32.
    scales
        [T, *] scale factors, float32 or bytes, or None.
    """

    hidden_states: torch.Tensor
    topk_ids: torch.Tensor
    topk_weights: torch.Tensor
    scales: torch.Tensor | None

    def payloads(self) -> list[torch.Tensor]:
        """All tensors that travel row by row."""
        tensors = [self.hidden_states, self.topk_ids, self.topk_weights]
        return tensors if self.scales is None else [*tensors, self.scales]

    def to(self, device: torch.device | str) -> Inputs:
        """Copy to a device, where they are not there already."""
        return Inputs(
            self.hidden_states.to(device),
            self.topk_ids.to(device),
            self.topk_weights.to(device),
            None if self.scales is None else self.scales.to(device),
        )

    def select(self, tokens: torch.Tensor) -> Inputs:
        """Rows of these tokens."""
        return Inputs(
            take_rows(self.hidden_states, tokens),
            take_rows(self.topk_ids, tokens),
            take_rows(self.topk_weights, tokens),
            None if self.scales is None else take_rows(self.scales, tokens),
        )


def take_rows(tensor: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """Copy rows of a tensor by their bytes: not every kernel knows float8."""
    import torch

    return tensor.view(torch.uint8)[rows].view(tensor.dtype)


def _generator(case: Case, *key: object) -> torch.Generator:
    import torch

    sizes = (case.num_tokens, case.hidden_size, case.top_k, case.num_experts)
    text = repr((case.seed, case.routing.value, sizes, key))
    return torch.Generator().manual_seed(zlib.crc32(text.encode()))


def make_inputs(case: Case, rank: int) -> Inputs:
    """Inputs of rank `rank`."""
    import torch

    generator = _generator(case, "inputs", rank)
    ids = _draw_picks(case, rank, generator)
    weights = torch.rand(ids.shape, generator=generator)
    hidden, scales = _draw_rows(case, generator)
    return Inputs(hidden, ids, weights, scales)


def _draw_rows(case: Case, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor | None]:
    import torch

    if case.quant_format is None:
        shape = (case.num_tokens, case.hidden_size)
        return torch.randn(shape, generator=generator, dtype=case.torch_dtype), None
    value_bytes = -(-case.hidden_size * _VALUE_BITS[case.quant_format] // 8)
    scale_bytes = case.payload_bytes - value_bytes

    def draw(width: int) -> torch.Tensor:
        shape = (case.num_tokens, width)
        return torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8)

    values = draw(value_bytes)
    if case.quant_format is QuantFormat.DeepSeekFp8:
        # Numbers: some transports may change the bits of a NaN.
        values = torch.where(values & 0x7F == 0x7F, values - 1, values)
        scales = torch.rand((case.num_tokens, scale_bytes // 4), generator=generator)
        return values.view(torch.float8_e4m3fn), scales
    return values, draw(scale_bytes) if scale_bytes else None


def _draw_picks(case: Case, rank: int, generator: torch.Generator) -> torch.Tensor:
    """[T, K] int32 expert ids, no expert twice in a row."""
    import torch

    shape = (case.num_tokens, case.num_experts)
    if case.routing is RoutingName.perfect:
        first = rank * case.num_tokens * case.top_k
        slots = torch.arange(first, first + case.num_tokens * case.top_k)
        owner = slots % case.world_size
        per_rank = case.num_experts // case.world_size
        ids = owner * per_rank + slots // case.world_size % per_rank
        return ids.view(case.num_tokens, case.top_k).int()
    # The largest of log(chance) + Gumbel noise are a draw without repetition.
    noise = -(-torch.rand(shape, generator=generator).clamp_min(1e-12).log()).log()
    if case.routing is RoutingName.skewed:
        noise -= torch.arange(1, case.num_experts + 1).log()
    return noise.topk(case.top_k, dim=1).indices.int()


def visits(case: Case, topk_ids: torch.Tensor) -> torch.Tensor:
    """[T, R] bool: whether a token goes to a rank."""
    owners = topk_ids.long() // (case.num_experts // case.world_size)
    goes_to = owners.new_zeros((len(owners), case.world_size)).bool()
    return goes_to.scatter_(1, owners, True)
