"""FlashInfer's one-sided backend with the same inputs, where it can be imported.

Its classes have the names and calls that this package mirrors, so the same step drives both.
"""

from __future__ import annotations

import importlib
import importlib.util
from typing import TYPE_CHECKING, Any

from ..steps import LibraryStep

if TYPE_CHECKING:
    import torch.distributed as dist

    from ..checks import Expectation
    from .seat import GpuSeat

__all__ = ["FlashInferStep", "has_flashinfer"]


def has_flashinfer() -> bool:
    """Whether there is such a package."""
    return importlib.util.find_spec("flashinfer") is not None


class FlashInferStep(LibraryStep):
    """A step of ``flashinfer.moe_ep.NVLinkOneSidedAlltoAll``. Collective.

    Parameters
    ----------
    gpu
        The rank.
    expected
        What this rank sends, and what must come of it.
    """

    def __init__(self, gpu: GpuSeat, expected: Expectation) -> None:
        theirs: Any = importlib.import_module("flashinfer.moe_ep")
        case, seat = expected.case, gpu.seat
        quant = case.quant_format
        params = theirs.MoEEpCommParams(
            num_experts=case.num_experts,
            top_k=case.top_k,
            max_tokens_per_rank=case.num_tokens,
            hidden_size=case.hidden_size,
            dtype=case.torch_dtype,
            dispatch_format=None if quant is None else theirs.QuantFormat[quant.name],
        )
        config = theirs.NVLinkOneSidedConfig(
            use_low_precision_combine=case.is_fp8_combine,
            comm_backend=_ObjectBackend(seat.group),
        )
        bootstrap = theirs.BootstrapConfig(seat.world_size, seat.rank, process_group=seat.group)
        self._theirs = _Adapter(theirs.NVLinkOneSidedAlltoAll(bootstrap, params, config=config))
        super().__init__(self._theirs, expected, gpu.settle)  # type: ignore[arg-type]

    def close(self) -> None:
        """Free its workspace."""
        self._theirs.destroy()


class _Adapter:
    """Their instance with what `LibraryStep` asks for and they may lack."""

    def __init__(self, instance: Any) -> None:
        self._instance = instance
        self.dispatch = instance.dispatch
        self.combine = instance.combine
        self.get_combine_input_buffer = instance.get_combine_input_buffer

    @property
    def last_transport(self) -> str:
        return getattr(self._instance, "last_transport", None) or "fence"

    def check(self) -> None:
        """Nothing: they have no pending errors."""

    def destroy(self) -> None:
        destroy = getattr(self._instance, "destroy", None)
        if destroy is not None:
            destroy()


class _ObjectBackend:
    """CommBackend that moves any object, as their set-up needs."""

    def __init__(self, group: dist.ProcessGroup | None) -> None:
        self._group = group

    def Get_rank(self) -> int:
        import torch.distributed as dist

        return dist.get_rank(self._group)

    def Get_size(self) -> int:
        import torch.distributed as dist

        return dist.get_world_size(self._group)

    def allgather(self, obj: Any) -> tuple[Any, ...]:
        import torch.distributed as dist

        gathered: list[Any] = [None] * self.Get_size()
        dist.all_gather_object(gathered, obj, group=self._group)
        return tuple(gathered)

    def bcast(self, obj: Any, root: int) -> Any:
        return self.allgather(obj)[root]

    def barrier(self) -> None:
        self.allgather(None)

    def Split(self, color: int, key: int) -> _ObjectBackend:
        return self
