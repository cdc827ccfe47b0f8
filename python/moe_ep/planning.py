"""What a workspace will take and what a step will move, before anything is allocated."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .traffic import StepBytes, dispatch_row_bytes, expected_bytes, ranks_per_token

if TYPE_CHECKING:
    from .config import HostAlltoAllConfig, QuantFormat

__all__ = ["DTYPES", "Plan", "Region", "Sizes", "make_plan"]

# Size and DLPack (code, bits, lanes) of token dtypes, so that a plan needs no torch.
DTYPES = {"bf16": (4, 16, 1), "fp16": (2, 16, 1), "fp32": (2, 32, 1)}
"""Names of token dtypes."""


@dataclass(frozen=True)
class Sizes:
    """What a plan is made for.

    Parameters
    ----------
    world_size, num_experts, top_k, max_tokens_per_rank, hidden_size
        As in BootstrapConfig and MoEEpCommParams.
    dtype
        A name of `DTYPES`.
    dispatch_format
        Quantised format of dispatched rows, or None.
    """

    world_size: int
    num_experts: int
    top_k: int
    max_tokens_per_rank: int
    hidden_size: int
    dtype: str = "bf16"
    dispatch_format: QuantFormat | None = None

    @property
    def itemsize(self) -> int:
        """Bytes of one element of a combined row."""
        return DTYPES[self.dtype][1] // 8

    @property
    def payload_bytes(self) -> int:
        """Bytes of one dispatched row with its scales."""
        if self.dispatch_format is not None:
            return self.dispatch_format.bytes_per_token(self.hidden_size)
        return self.hidden_size * self.itemsize


@dataclass(frozen=True)
class Region:
    """One region of a rank's slice of the workspace."""

    name: str
    offset: int
    num_bytes: int


@dataclass(frozen=True)
class Plan:
    """Memory of a rank and expected traffic of a full step.

    Parameters
    ----------
    sizes
        What it is for.
    bytes_per_rank
        One slice of the workspace.
    regions
        The parts of the slice, ascending.
    ranks_per_token, remote_ranks_per_token
        U and Ur of `moe_ep.traffic.ranks_per_token`.
    row_bytes, combine_row_bytes
        Of one row in dispatch, with ids and weights, and in combine.
    step
        Bytes that a rank sends in a step of max_tokens_per_rank tokens.
    """

    sizes: Sizes
    bytes_per_rank: int
    regions: tuple[Region, ...]
    ranks_per_token: float
    remote_ranks_per_token: float
    row_bytes: int
    combine_row_bytes: int
    step: StepBytes

    @property
    def payload_bytes(self) -> int:
        """Bytes of the slice that hold rows."""
        return sum(
            region.num_bytes for region in self.regions if region.name in ("combine", "dispatch")
        )


def make_plan(sizes: Sizes, config: HostAlltoAllConfig | None = None) -> Plan:
    """Lay a workspace out without allocating it.

    Parameters
    ----------
    sizes
        The group's sizes.
    config
        Options that the layout depends on; None is the defaults.

    Raises
    ------
    ValueError
        A size or option out of range.
    ImportError
        The compiled module, which owns the layout, is missing.
    """
    from .config import HostAlltoAllConfig, MoEEpCommParams

    config = HostAlltoAllConfig() if config is None else config
    params = MoEEpCommParams(
        num_experts=sizes.num_experts,
        top_k=sizes.top_k,
        max_tokens_per_rank=sizes.max_tokens_per_rank,
        hidden_size=sizes.hidden_size,
        dispatch_format=sizes.dispatch_format,
    )
    config.validate(params, sizes.world_size)
    bytes_per_rank, regions = _layout(sizes, config)
    everywhere, remote = ranks_per_token(sizes.num_experts, sizes.top_k, sizes.world_size)
    row = dispatch_row_bytes(
        sizes.payload_bytes + config.extra_payload_bytes_per_token, sizes.top_k
    )
    combine_row = sizes.hidden_size * sizes.itemsize
    return Plan(
        sizes=sizes,
        bytes_per_rank=bytes_per_rank,
        regions=tuple(Region(*region) for region in regions),
        ranks_per_token=everywhere,
        remote_ranks_per_token=remote,
        row_bytes=row,
        combine_row_bytes=combine_row,
        step=expected_bytes(
            sizes.num_experts,
            sizes.top_k,
            sizes.world_size,
            sizes.max_tokens_per_rank,
            row,
            combine_row,
        ),
    )


def _layout(sizes: Sizes, config: HostAlltoAllConfig) -> tuple[int, list[tuple[str, int, int]]]:
    from . import _core

    params = _core.MoEEpCommParams()
    params.num_experts, params.top_k = sizes.num_experts, sizes.top_k
    params.max_tokens_per_rank, params.hidden_size = sizes.max_tokens_per_rank, sizes.hidden_size
    params.set_dtype(DTYPES[sizes.dtype])
    if sizes.dispatch_format is not None:
        params.set_dispatch_format(sizes.dispatch_format.name)
    options: Any = _core.HostAlltoAllConfig()
    for name, value in vars(config).items():
        if name not in ("backend_name", "comm_backend"):
            setattr(options, name, value)
    total, regions = _core.plan_workspace(sizes.world_size, params, options)
    return int(total), [(str(name), int(offset), int(size)) for name, offset, size in regions]
