"""The step as an all-gather of every row and a reduce-scatter of every output, over NCCL.

It sends rows to ranks that do not need them, and needs no routing. Rows are packed already, and
rows that a rank has no expert for are zero already: that is the experts' work, and not timed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..all_to_all import as_bytes
from ..checks import CheckError, make_expert_rows
from ..inputs import make_inputs

if TYPE_CHECKING:
    import torch
    import torch.distributed as dist

    from ..checks import Expectation

__all__ = ["GatherScatterStep"]

# Relative error of a rounding.
_UNIT = {"bf16": 2.0**-8, "fp16": 2.0**-11, "fp32": 2.0**-24}


class GatherScatterStep:
    """All-gather and reduce-scatter.

    Parameters
    ----------
    group
        A group that moves tensors of `expected`'s device.
    expected
        What this rank sends, and what must come of it.
    """

    def __init__(self, group: dist.ProcessGroup, expected: Expectation) -> None:
        import torch

        case = expected.case
        self._group, self._expected = group, expected
        self._sent = _packed(expected.inputs.payloads())
        rows = case.world_size * case.num_tokens
        self._arrived = self._sent.new_empty((rows, self._sent.shape[1]))
        self._outputs = torch.zeros(
            (rows, case.hidden_size), dtype=case.torch_dtype, device=self._sent.device
        )
        self._output = self._outputs.new_empty((case.num_tokens, case.hidden_size))
        sent = [make_inputs(case, src).payloads() for src in range(case.world_size)]
        self._wanted = torch.cat([_packed(payloads) for payloads in sent]).to(self._sent.device)

    def dispatch(self) -> None:
        """Gather all rows."""
        import torch.distributed as dist

        dist.all_gather_into_tensor(self._arrived, self._sent, group=self._group)

    def combine(self) -> None:
        """Sum the outputs for this rank's tokens."""
        import torch.distributed as dist

        dist.reduce_scatter_tensor(self._output, self._outputs, group=self._group)

    def check(self) -> None:
        """Run a step and compare what arrives with what was sent, and the sums. Collective.

        Raises
        ------
        CheckError
            Something differs.
        """
        self.prepare()
        self.probe()
        self.check_last()

    def prepare(self) -> None:
        """Write the outputs of this rank's experts, and what no step gives."""
        make_expert_rows(self._expected, self._outputs, "lamport")  # token t at row t
        self._arrived.zero_()
        self._output.fill_(float("nan"))

    def probe(self) -> None:
        """One pair."""
        self.dispatch()
        self.combine()

    def check_probe(self) -> None:
        """See `check_last`."""
        self.check_last()

    def check_last(self) -> None:
        """Compare what the last step gave with what it must, roundings of partial sums allowed."""
        import torch

        expected, case = self._expected, self._expected.case
        if not torch.equal(self._arrived, self._wanted):
            raise CheckError(
                "bench: all_gather must bring the rows that were sent, got others on rank "
                f"{expected.rank} of {case}"
            )
        # Partial sums are at most as many as ranks, none larger than the sum of magnitudes; each
        # contribution is at most 1 + 0.3 r in magnitude (see `make_expert_rows`).
        largest = sum(1.0 + 0.3 * rank for rank in range(case.world_size))
        limit = case.world_size * _UNIT[case.dtype] * largest
        difference = (self._output.float() - expected.output.float()).abs()
        if not bool((difference <= limit).all()):
            raise CheckError(
                f"bench: reduce_scatter must give the sums within {limit:.3g}, got other values "
                f"on rank {expected.rank} of {case}"
            )


def _packed(payloads: list[torch.Tensor]) -> torch.Tensor:
    """[n, bytes of all payloads] uint8."""
    import torch

    return torch.cat([as_bytes(tensor) for tensor in payloads], dim=1).contiguous()
