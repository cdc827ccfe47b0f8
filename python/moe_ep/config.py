"""What every backend is constructed from and what a dispatch returns.

Importing this module does not import torch.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ._check import INT32_MAX, INT32_MIN, check_bool, check_int
from .backend_config import (
    BackendConfig,
    CakeAlltoAllConfig,
    HostAlltoAllConfig,
    NVLinkOneSidedConfig,
    NVLinkTwoSidedConfig,
    TorchDistConfig,
)
from .errors import TypeMismatchError
from .limits import MAX_RANKS, MAX_TOP_K

if TYPE_CHECKING:
    import torch
    import torch.distributed
    from torch._C._distributed_c10d import Store

__all__ = [
    "BackendConfig",
    "BootstrapConfig",
    "CakeAlltoAllConfig",
    "HostAlltoAllConfig",
    "MoEEpCommParams",
    "MoEEpDispatchResult",
    "NVLinkOneSidedConfig",
    "NVLinkTwoSidedConfig",
    "QuantFormat",
    "TorchDistConfig",
]


class QuantFormat(enum.Enum):
    """Format of dispatched rows.

    ==============  ============  ===================================
    format          value bytes   scale bytes (block scales)
    ==============  ============  ===================================
    BF16, FP16      2 H           none
    FP8PerTensor    H             none
    DeepSeekFp8     H             4 for each 128 elements (float32)
    MXFP8           H             1 for each 32 elements (UE8M0)
    NVFP4           ceil(H / 2)   1 for each 16 elements (e4m3)
    MXFP4           ceil(H / 2)   1 for each 32 elements (UE8M0)
    ==============  ============  ===================================
    """

    BF16 = 0
    FP16 = 1
    FP8PerTensor = 2
    DeepSeekFp8 = 3
    MXFP8 = 4
    NVFP4 = 5
    MXFP4 = 6

    def bytes_per_token(self, hidden_size: int) -> int:
        """Bytes of one row of `hidden_size` elements, scales included."""
        value_bits, block, scale_bytes = _LAYOUTS[self.name]
        num_blocks = -(-hidden_size // block) if block else 0
        return -(-hidden_size * value_bits // 8) + num_blocks * scale_bytes


# Bits of an element, elements of a scale block (0: no scales), bytes of a scale.
_LAYOUTS = {
    "BF16": (16, 0, 0),
    "FP16": (16, 0, 0),
    "FP8PerTensor": (8, 0, 0),
    "DeepSeekFp8": (8, 128, 4),
    "MXFP8": (8, 32, 1),
    "NVFP4": (4, 16, 1),
    "MXFP4": (4, 32, 1),
}


@dataclass(frozen=True)
class BootstrapConfig:
    """Who this process is in the expert-parallel group, and how it reaches the others.

    Parameters
    ----------
    world_size
        Ranks of the group, 1..256.
    rank
        This process's rank *in the group*, 0..world_size - 1.
    stream
        Raw ``cudaStream_t`` that steps run on; 0 is the caller's current stream at each call.
    auto_bootstrap
        Accepted for compatibility; set-up always finds its way as `default_comm_backend` says.
    nccl_comm
        Accepted for compatibility; the library makes no use of it.
    process_group
        ``torch.distributed`` group that spans exactly the expert-parallel group.
    tcp_store
        ``torch.distributed`` store that all ranks of the group can reach.
    device
        CUDA ordinal. None is the device that the process has made current, else ``LOCAL_RANK``,
        else ``rank % device_count``.

    Raises
    ------
    ValueError
        A value outside its range.
    TypeMismatchError
        A value of the wrong kind.
    """

    world_size: int
    rank: int
    stream: int = 0
    auto_bootstrap: bool = True
    nccl_comm: Any = None
    process_group: torch.distributed.ProcessGroup | None = None
    tcp_store: Store | None = None
    device: int | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        name = type(self).__name__
        check_int(name, "world_size", self.world_size, low=1, high=MAX_RANKS)
        check_int(name, "rank", self.rank, low=0, high=self.world_size - 1)
        check_int(name, "stream", self.stream, low=0)
        check_bool(name, "auto_bootstrap", self.auto_bootstrap)
        check_int(name, "device", self.device, low=0, optional=True)


@dataclass(frozen=True)
class MoEEpCommParams:
    """Sizes and formats that all ranks of a group agree on.

    Parameters
    ----------
    num_experts
        Experts of the whole group.
    top_k
        Picks of one token, 1..64, at most `num_experts`.
    max_tokens_per_rank
        Most tokens that one rank sends in one step.
    hidden_size
        Elements of one row of `combine`.
    dtype
        Element type of `combine` and of unquantised rows: bfloat16, float16 or float32. None is
        bfloat16. Other payload dtypes travel by their bytes.
    dispatch_format
        Quantised format of dispatched rows; None is unquantised.
    invalid_expert_id
        Id of rows without a token; an int32 outside [0, num_experts).

    Raises
    ------
    ValueError
        A value outside its range.
    TypeMismatchError
        A value of the wrong kind.
    """

    num_experts: int
    top_k: int
    max_tokens_per_rank: int
    hidden_size: int
    dtype: torch.dtype | None = None
    dispatch_format: QuantFormat | None = None
    invalid_expert_id: int = -1

    def __post_init__(self) -> None:
        name = type(self).__name__
        check_int(name, "num_experts", self.num_experts, low=1, high=INT32_MAX)
        check_int(name, "top_k", self.top_k, low=1, high=MAX_TOP_K)
        check_int(name, "max_tokens_per_rank", self.max_tokens_per_rank, low=1)
        check_int(name, "hidden_size", self.hidden_size, low=1)
        if self.top_k > self.num_experts:
            raise ValueError(
                f"{name}: top_k must be at most num_experts ({self.num_experts}), got {self.top_k}"
            )
        if self.dtype is not None:
            _check_token_dtype(name, self.dtype)
        if self.dispatch_format is not None and not isinstance(self.dispatch_format, QuantFormat):
            raise TypeMismatchError(
                f"{name}: dispatch_format must be a QuantFormat or None, "
                f"got {self.dispatch_format!r}"
            )
        check_int(name, "invalid_expert_id", self.invalid_expert_id, low=INT32_MIN, high=INT32_MAX)
        if 0 <= self.invalid_expert_id < self.num_experts:
            raise ValueError(
                f"{name}: invalid_expert_id must lie outside [0, {self.num_experts}), "
                f"got {self.invalid_expert_id}"
            )

    @property
    def token_dtype(self) -> torch.dtype:
        """Element type of `combine`: `dtype`, or bfloat16."""
        if self.dtype is not None:
            return self.dtype
        import torch

        return torch.bfloat16

    @property
    def dispatch_bytes_per_token(self) -> int:
        """Bytes of one dispatched row with its scales, ids and weights not counted."""
        if self.dispatch_format is not None:
            return self.dispatch_format.bytes_per_token(self.hidden_size)
        return self.hidden_size * self.token_dtype.itemsize


def _check_token_dtype(operation: str, dtype: object) -> None:
    import torch

    if not isinstance(dtype, torch.dtype):
        raise TypeMismatchError(
            f"{operation}: dtype must be a torch.dtype or None, got {dtype!r} "
            f"({type(dtype).__name__})"
        )
    if dtype not in (torch.bfloat16, torch.float16, torch.float32):
        raise ValueError(
            f"{operation}: dtype must be bfloat16, float16, float32 or None, got {dtype}"
        )


@dataclass(frozen=True, eq=False)
class MoEEpDispatchResult:
    """What one rank received in a step.

    All tensors have ``R * T`` rows, block `src` (rows ``src * T`` to ``src * T + T - 1``) from rank
    `src`. They are views of the backend's memory, valid until the matching `combine`.

    Parameters
    ----------
    hidden_states
        [R * T, *] received rows, in the dtype they were sent in.
    topk_ids
        [R * T, top_k] int32 global expert ids; rows without a token hold invalid_expert_id.
    topk_weights
        [R * T, top_k], or None when the step carries no weights.
    tokens_per_rank
        T, the rows of a block.
    hidden_states_scale
        [R * T, *] scale factors row by row, or None.
    eplb_gathered_stats
        [R, n] int32, row r as rank r passed it, or None.
    recv_counts
        [R] int32 tokens received from each rank, on the device of the payloads.
    extra_payloads
        The named payloads, each [R * T, *], or None when none were sent.
    """

    hidden_states: torch.Tensor
    topk_ids: torch.Tensor
    topk_weights: torch.Tensor | None
    tokens_per_rank: int
    hidden_states_scale: torch.Tensor | None = None
    eplb_gathered_stats: torch.Tensor | None = None
    recv_counts: torch.Tensor | None = None
    extra_payloads: dict[str, torch.Tensor] | None = None
