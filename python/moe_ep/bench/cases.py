"""Cases of a benchmark: sizes and routings."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from ..config import QuantFormat
from ..traffic import dispatch_row_bytes

if TYPE_CHECKING:
    import torch

    from ..config import MoEEpCommParams

__all__ = ["LADDER", "Case", "RoutingName", "TransportName"]

LADDER = tuple(2**exponent for exponent in range(14))
"""Tokens per rank: 1, 2, 4, ..., 8192."""
FP8_BLOCK = 128
"""Elements that share a scale in an FP8 combine."""


class RoutingName(StrEnum):
    """How picks are drawn.

    ``random``: uniformly, without repetition. ``perfect``: in turn over ranks and experts, so that
    all ranks get equally many rows. ``skewed``: without repetition, expert e with a chance in
    proportion to 1 / (e + 1).
    """

    random = "random"
    perfect = "perfect"
    skewed = "skewed"


class TransportName(StrEnum):
    """Which transport a backend is asked for; rows of a result say which it took.

    ``auto``: as it chooses by itself. The others are switched on, or the rest off, by the options
    of the config.
    """

    auto = "auto"
    fence = "fence"
    lamport = "lamport"
    counted = "counted"


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
    is_fp8_combine
        Whether combined rows travel as FP8.
    transport
        What is asked for.
    max_sms, pdl
        Of GPU backends: most multiprocessors of a kernel, and programmatic dependent launch; None
        leaves the choice to the backend.
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
    is_fp8_combine: bool = False
    transport: TransportName = TransportName.auto
    max_sms: int | None = None
    pdl: bool | None = None

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
    def combine_wire_bytes(self) -> int:
        """Bytes of a combined row on its way: FP8 codes with a float32 scale a block, or all."""
        if not self.is_fp8_combine:
            return self.combine_row_bytes
        return self.hidden_size + 4 * -(-self.hidden_size // FP8_BLOCK)

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

    def options(self) -> dict[str, Any]:
        """Options of the backend's config; those that it lacks do not matter."""
        chosen: dict[str, Any] = {
            "num_threads": self.threads,
            "use_low_precision_combine": self.is_fp8_combine,
            "max_sms": self.max_sms,
            "enable_pdl": self.pdl,
        }
        if self.transport is not TransportName.auto:
            is_lamport = self.transport is TransportName.lamport
            chosen["lamport"] = is_lamport
            chosen["cft"] = self.transport is TransportName.counted
            chosen["lamport_max_tokens"] = self.num_tokens if is_lamport else None
        return chosen

    def as_dict(self) -> dict[str, Any]:
        """Fields by name."""
        return asdict(self)
