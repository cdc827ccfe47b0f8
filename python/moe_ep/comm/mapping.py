"""Mapping and MnnvlConfig: how callers of the stateless family describe their ranks."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING

from .._check import check_int

if TYPE_CHECKING:
    from .protocol import CommBackend

__all__ = ["Mapping", "MnnvlConfig"]


@dataclass
class Mapping:
    """Which of a job's ranks form a tensor-parallel and an expert-parallel group.

    Ranks are numbered pipeline-major: ``rank = pp_rank * tp_size * cp_size + cp_rank * tp_size +
    tp_rank``. The tensor-parallel ranks of a MoE layer split into moe_tp_size x moe_ep_size, the
    expert-parallel rank running fastest.

    Parameters
    ----------
    world_size, rank
        Ranks of the job and the caller's.
    gpus_per_node
        Accepted for compatibility; nothing depends on it.
    cp_size, tp_size, pp_size
        Context, tensor and pipeline parallelism; their product is world_size.
    moe_tp_size, moe_ep_size
        How a MoE layer splits its tp_size ranks. -1 for both: all tensor-parallel; for one: what
        the other leaves.

    Raises
    ------
    ValueError
        Sizes that do not multiply.
    """

    world_size: int = 1
    rank: int = 0
    gpus_per_node: int = 8
    _: KW_ONLY
    cp_size: int = 1
    tp_size: int = 1
    pp_size: int = 1
    moe_tp_size: int = -1
    moe_ep_size: int = -1

    def __post_init__(self) -> None:
        name = type(self).__name__
        check_int(name, "world_size", self.world_size, low=1)
        check_int(name, "rank", self.rank, low=0, high=self.world_size - 1)
        for size in ("cp_size", "tp_size", "pp_size"):
            check_int(name, size, getattr(self, size), low=1)
        if self.moe_ep_size == -1 and self.moe_tp_size == -1:
            self.moe_tp_size, self.moe_ep_size = self.tp_size, 1
        elif self.moe_ep_size == -1:
            self.moe_ep_size = self.tp_size // max(self.moe_tp_size, 1)
        elif self.moe_tp_size == -1:
            self.moe_tp_size = self.tp_size // max(self.moe_ep_size, 1)
        product = self.cp_size * self.tp_size * self.pp_size
        if product != self.world_size:
            raise ValueError(
                f"{name}: cp_size * tp_size * pp_size must be world_size = {self.world_size}, "
                f"got {product}"
            )
        if self.moe_tp_size * self.moe_ep_size != self.tp_size:
            raise ValueError(
                f"{name}: moe_tp_size * moe_ep_size must be tp_size = {self.tp_size}, "
                f"got {self.moe_tp_size} * {self.moe_ep_size}"
            )

    @property
    def tp_rank(self) -> int:
        """Rank in the tensor-parallel group."""
        return self.rank % self.tp_size

    @property
    def cp_rank(self) -> int:
        """Rank in the context-parallel group."""
        return self.rank // self.tp_size % self.cp_size

    @property
    def pp_rank(self) -> int:
        """Pipeline stage."""
        return self.rank // (self.tp_size * self.cp_size)

    @property
    def moe_ep_rank(self) -> int:
        """Rank in the expert-parallel group."""
        return self.tp_rank % self.moe_ep_size

    @property
    def moe_tp_rank(self) -> int:
        """Rank among those that split one expert."""
        return self.tp_rank // self.moe_ep_size

    @property
    def moe_ep_group_color(self) -> int:
        """The same number on exactly the ranks of one expert-parallel group."""
        return self.rank // self.tp_size * self.moe_tp_size + self.moe_tp_rank


@dataclass
class MnnvlConfig:
    """How `MoeAlltoAll` reaches the other ranks and allocates its workspace.

    Parameters
    ----------
    comm_backend
        Spans the job's ranks; None is the default process group.
    fabric_page_size, allocation_granularity
        Accepted for compatibility; the workspace's granularity is the memory's own.
    """

    comm_backend: CommBackend | None = None
    fabric_page_size: int = 1 << 29
    allocation_granularity: int = 0
