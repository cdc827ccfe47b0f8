"""FlashInfer's one-sided backend with the same inputs, where it can be imported.

Its classes have the names and calls that this package mirrors. Received rows lie in its blocks in
any order, another one in each step. So rows are compared whatever their order, and experts return
the same row for every token of a rank.
"""

from __future__ import annotations

import importlib
import importlib.util
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ..checks import CheckError, base_rows, expert_rows
from ..inputs import take_rows
from ..steps import LibraryStep

if TYPE_CHECKING:
    import torch
    import torch.distributed as dist

    from ..checks import Expectation
    from .seat import GpuSeat

__all__ = ["FlashInferStep", "has_flashinfer"]

_PAYLOADS = ("hidden_states", "topk_ids", "topk_weights", "hidden_states_scale")
_KEY_BYTES = 16  # of each payload: they tell the tokens of a rank apart


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
        self._theirs = _open(gpu, expected)
        super().__init__(self._theirs, expected, gpu.settle)
        case, rank = expected.case, expected.rank
        # What this rank's experts return for a token of each rank.
        self._returned = [
            expert_rows(case, base_rows(case, src, expected.device)[:1], rank)
            for src in range(case.world_size)
        ]
        own = base_rows(case, rank, expected.device)[:1]
        self._wanted = self._output.new_zeros(self._output.shape, dtype=own.dtype)
        for dst in range(case.world_size):
            self._wanted += expected.goes_to[:, dst, None] * expert_rows(case, own, dst)

    def check(self) -> None:
        """Run two steps and compare all they give with what they must. Collective.

        Raises
        ------
        CheckError
            Something differs.
        """
        for _ in range(2):
            self._settle()
            result: Any = self.dispatch()
            self._settle()
            _check_received(self._expected, result)
            self._input = self._rows()
            self.prepare()
            self._settle()
            self.combine()
            self._settle()
            self._check_output()

    def prepare(self) -> None:
        """Write the rows to combine, and an output no step gives."""
        assert self._input is not None
        case = self._expected.case
        blocks = self._input.view(case.world_size, case.num_tokens, case.hidden_size)
        for block, row in zip(blocks, self._returned, strict=True):
            block.copy_(row.expand_as(block))
        self._output.fill_(float("nan"))

    def probe(self) -> None:
        """One pair that keeps a copy of what it received."""
        result: Any = self.dispatch()
        payloads = {name: getattr(result, name) for name in _PAYLOADS}
        copies = {name: None if rows is None else rows.clone() for name, rows in payloads.items()}
        self._probed = replace(result, **copies)
        self.combine()

    def check_probe(self) -> None:
        """Compare what the probe gave, after `prepare`, with what it must."""
        assert self._probed is not None
        _check_received(self._expected, self._probed)
        self._check_output()
        self._probed = None

    def _check_output(self) -> None:
        # Roundings of the sum, in whatever order; of an FP8 wire without scales, of each row, too.
        case = self._expected.case
        relative, absolute = 2.0**-7, 0.0
        if case.is_fp8_combine:
            relative, absolute = 2.0**-4 + 2.0**-7, case.world_size * 2.0**-10
        difference = (self._output.float() - self._wanted).abs()
        if not bool((difference <= relative * self._wanted.abs() + absolute).all()):
            raise _differs(self._expected, "combined rows")

    def close(self) -> None:
        """Free its workspace."""
        self._theirs.destroy()


def _open(gpu: GpuSeat, expected: Expectation) -> Any:
    """Make their instance. Collective."""
    theirs: Any = importlib.import_module("flashinfer.moe_ep")
    case, seat = expected.case, gpu.seat
    dispatch_format = None
    if case.quant_format is not None:
        formats: Any = importlib.import_module("flashinfer.fused_moe")
        dispatch_format = formats.QuantFormat[case.quant_format.name]
    params = theirs.MoEEpCommParams(
        num_experts=case.num_experts,
        top_k=case.top_k,
        max_tokens_per_rank=case.num_tokens,
        hidden_size=case.hidden_size,
        dtype=case.torch_dtype,
        dispatch_format=dispatch_format,
    )
    config = theirs.NVLinkOneSidedConfig(
        use_low_precision_combine=case.is_fp8_combine,
        comm_backend=_ObjectBackend(seat.group),
    )
    bootstrap = theirs.BootstrapConfig(seat.world_size, seat.rank, process_group=seat.group)
    return theirs.NVLinkOneSidedAlltoAll(bootstrap, params, config=config)


def _check_received(expected: Expectation, result: Any) -> None:
    """Compare the rows that hold tokens with what was sent, bit by bit, in any order."""
    import torch

    case = expected.case
    holds_token = (result.topk_ids != -1).any(dim=1).view(case.world_size, case.num_tokens)
    for src, sent in enumerate(expected.received):
        places = holds_token[src].nonzero().squeeze(1) + src * case.num_tokens
        if len(places) != len(expected.tokens[src]):
            raise _differs(expected, f"number of rows from rank {src}")
        wanted = [sent.hidden_states, sent.topk_ids, sent.topk_weights, sent.scales]
        rows = [getattr(result, name) for name in _PAYLOADS]
        got = [None if payload is None else take_rows(payload, places) for payload in rows]
        for name, left, right in zip(_PAYLOADS, _sorted(got), _sorted(wanted), strict=True):
            if (left is None) != (right is None):
                raise _differs(expected, name)
            if left is not None and right is not None and not torch.equal(left, right):
                raise _differs(expected, f"{name} from rank {src}")


def _sorted(payloads: list[torch.Tensor | None]) -> list[torch.Tensor | None]:
    """Bytes of the same rows of several payloads, in an order that follows from them alone."""
    import torch

    rows = [None if payload is None else payload.view(torch.uint8) for payload in payloads]
    keys = torch.cat([part[:, :_KEY_BYTES] for part in rows if part is not None], dim=1)
    if len(keys) == 0:
        return rows
    _, places = torch.unique(keys, dim=0, return_inverse=True)
    order = places.argsort(stable=True)
    return [None if part is None else part[order] for part in rows]


def _differs(expected: Expectation, what: str) -> CheckError:
    return CheckError(
        f"bench: {what} of FlashInfer must be what was sent, got others on rank {expected.rank} "
        f"of {expected.case}"
    )


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

    def allgather(self, data: Any) -> tuple[Any, ...]:
        import torch.distributed as dist

        gathered: list[Any] = [None] * self.Get_size()
        dist.all_gather_object(gathered, data, group=self._group)
        return tuple(gathered)

    def bcast(self, data: Any, root: int) -> Any:
        return self.allgather(data)[root]

    def barrier(self) -> None:
        self.allgather(None)

    def Split(self, color: int, key: int) -> _ObjectBackend:
        return self
