"""Cases of a benchmark: sizes, routings, and the inputs that follow from a seed.

Inputs depend on the case and the sender only, so that each rank can make those of all ranks and
check what it received.
"""

from __future__ import annotations

import zlib
from dataclasses import asdict, dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

from ..config import QuantFormat
from ..traffic import dispatch_row_bytes

if TYPE_CHECKING:
    import torch

    from ..config import MoEEpCommParams

__all__ = ["LADDER", "Case", "Inputs", "RoutingName", "make_inputs", "visits"]

LADDER = tuple(2**exponent for exponent in range(14))
"""Tokens per rank: 1, 2, 4, ..., 8192."""

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


class RoutingName(str, Enum):
    """How picks are drawn.

    ``random``: uniformly, without repetition. ``perfect``: in turn over ranks and experts, so that
    all ranks get equally many rows. ``skewed``: without repetition, expert e with a chance in
    proportion to 1 / (e + 1).
    """

    random = "random"
    perfect = "perfect"
    skewed = "skewed"


@dataclass(frozen=True)
class Case:
    """One line of a result.

    Parameters
    ----------
    model
        Name of a preset, or 'custom'.
    world_size, num_tokens, hidden_size, top_k, num_experts
        R, T, H, K and E.
    dtype
        Of unquantised rows and of combine: bf16, fp16 or fp32.
    format_name
        Name of a QuantFormat, or None.
    routing
        How picks are drawn.
    seed
        Of inputs.
    backend
        Name of the backend.
    threads
        Threads of a rank.
    is_in_place
        Whether the expert output lies in the backend's combine buffer.
    """

    model: str
    world_size: int
    num_tokens: int
    hidden_size: int
    top_k: int
    num_experts: int
    dtype: str = "bf16"
    format_name: str | None = None
    routing: RoutingName = RoutingName.random
    seed: int = 0
    backend: str = "host"
    threads: int = 1
    is_in_place: bool = True

    @property
    def torch_dtype(self) -> torch.dtype:
        """`dtype` as torch has it."""
        import torch

        return {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}[self.dtype]

    @property
    def itemsize(self) -> int:
        """Bytes of an element of `dtype`."""
        return 4 if self.dtype == "fp32" else 2

    @property
    def quant_format(self) -> QuantFormat | None:
        """Format of dispatched rows, or None."""
        return None if self.format_name is None else QuantFormat[self.format_name]

    @property
    def payload_bytes(self) -> int:
        """Bytes of a dispatched hidden state with its scales."""
        if self.quant_format is not None:
            return self.quant_format.bytes_per_token(self.hidden_size)
        return self.hidden_size * self.itemsize

    @property
    def row_bytes(self) -> int:
        """Bytes of a dispatched row with ids and weights."""
        return dispatch_row_bytes(self.payload_bytes, self.top_k)

    @property
    def combine_row_bytes(self) -> int:
        """Bytes of a combined row."""
        return self.hidden_size * self.itemsize

    @property
    def memory_bytes(self) -> int:
        """About what all ranks together take at most, baselines included."""
        rows = self.world_size * self.num_tokens
        slices = 2 * rows * (self.row_bytes + self.combine_row_bytes)
        own = 8 * self.num_tokens * (self.row_bytes + 2 * self.combine_row_bytes)
        wire = 2 * rows * (self.row_bytes + 2 * self.combine_row_bytes)
        return self.world_size * (slices + own + wire)

    def params(self) -> MoEEpCommParams:
        """Parameters of an instance with room for exactly this case."""
        from ..config import MoEEpCommParams

        return MoEEpCommParams(
            num_experts=self.num_experts,
            top_k=self.top_k,
            max_tokens_per_rank=self.num_tokens,
            hidden_size=self.hidden_size,
            dtype=self.torch_dtype,
            dispatch_format=self.quant_format,
        )

    def as_dict(self) -> dict[str, Any]:
        """Fields by name."""
        return asdict(self)


@dataclass
class Inputs:
    """What one rank sends.

    Parameters
    ----------
    hidden_states
        [T, *] rows: numbers of the case's dtype, or bytes of a quantised format.
    topk_ids, topk_weights
        [T, K] int32 and float32.
    scales
        [T, *] bytes of scale factors, or None.
    """

    hidden_states: torch.Tensor
    topk_ids: torch.Tensor
    topk_weights: torch.Tensor
    scales: torch.Tensor | None

    def payloads(self) -> list[torch.Tensor]:
        """All tensors that travel row by row."""
        tensors = [self.hidden_states, self.topk_ids, self.topk_weights]
        return tensors if self.scales is None else [*tensors, self.scales]


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

    return draw(value_bytes), draw(scale_bytes) if scale_bytes else None


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
