"""The Gloo baseline: the same step as two ``all_to_all_single`` of torch.distributed.

All that can be known before a step is known: who sends how many rows to whom, and every buffer is
there. Rows of all payloads travel as one tensor of bytes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .checks import CheckError, check_combine, make_expert_rows
from .inputs import visits

if TYPE_CHECKING:
    import torch
    import torch.distributed as dist

    from .checks import Expectation
    from .inputs import Inputs

__all__ = ["GlooStep", "GlooWire"]


class GlooWire:
    """Nothing but the two exchanges, on rows that are packed already.

    Parameters
    ----------
    group
        The process group.
    inputs
        What this rank sends.
    expected
        Who gets how much.
    """

    def __init__(self, group: dist.ProcessGroup, inputs: Inputs, expected: Expectation) -> None:
        import torch

        case = expected.case
        self._group, self._inputs, self._expected = group, inputs, expected
        self._to, self._from = expected.rows_to, expected.rows_from
        # Rows in order of destination, then of token.
        self._tokens = visits(case, inputs.topk_ids).t().nonzero()[:, 1]
        self._payloads = [_as_bytes(tensor) for tensor in inputs.payloads()]
        widths = sum(rows.shape[1] for rows in self._payloads)
        self._sent = torch.empty((sum(self._to), widths), dtype=torch.uint8)
        self._arrived = torch.empty((sum(self._from), widths), dtype=torch.uint8)
        returned = (sum(self._from), case.hidden_size)
        self._outputs = torch.zeros(returned, dtype=case.torch_dtype)
        self._returned = torch.empty((sum(self._to), case.hidden_size), dtype=case.torch_dtype)
        self._parts = torch.split_with_sizes(self._returned, self._to)
        self._token_parts = torch.split_with_sizes(self._tokens, self._to)
        self._sums = torch.empty((case.num_tokens, case.hidden_size))
        self._output = self._sums.to(case.torch_dtype)
        self._pack()

    def _pack(self) -> None:
        first = 0
        for rows in self._payloads:
            end = first + rows.shape[1]
            self._sent[:, first:end] = rows.index_select(0, self._tokens)
            first = end

    def _sum(self) -> None:
        """Sum what came back, in float32 and ascending rank order."""
        self._sums.zero_()
        for tokens, rows in zip(self._token_parts, self._parts, strict=True):
            self._sums.index_add_(0, tokens, rows.float())
        self._output.copy_(self._sums)

    def wait(self) -> None:
        """Nothing: the ranks wait for each other in every step."""

    def dispatch(self) -> None:
        """Exchange rows."""
        self._all_to_all(self._arrived, self._sent, self._from, self._to)

    def combine(self) -> None:
        """Exchange outputs."""
        self._all_to_all(self._returned, self._outputs, self._to, self._from)

    def _all_to_all(
        self, received: torch.Tensor, sent: torch.Tensor, rows_in: list[int], rows_out: list[int]
    ) -> None:
        import torch.distributed as dist

        dist.all_to_all_single(received, sent, rows_in, rows_out, group=self._group)

    def check(self) -> None:
        """Run a step and compare what arrives with what was sent, and the sums.

        Raises
        ------
        CheckError
            Something differs.
        """
        import torch

        expected, case = self._expected, self._expected.case
        self.dispatch()
        wanted = [
            torch.cat([_as_bytes(tensor) for tensor in inputs.payloads()], dim=1)
            for inputs in expected.received
        ]
        if not torch.equal(self._arrived, torch.cat(wanted)):
            raise CheckError("bench: Gloo must bring the rows that were sent, got others")
        rows = self._outputs.new_empty((case.world_size * case.num_tokens, case.hidden_size))
        make_expert_rows(expected, rows, None)
        blocks = rows.view(case.world_size, case.num_tokens, case.hidden_size)
        parts = [blocks[src, :count] for src, count in enumerate(self._from)]
        self._outputs.copy_(torch.cat(parts))
        self.combine()
        self._sum()
        check_combine(expected, self._output)


class GlooStep(GlooWire):
    """The whole step: rows are packed and exchanged; outputs are exchanged and summed."""

    def dispatch(self) -> None:
        """Pack and exchange rows; they are used as they arrive."""
        self._pack()
        super().dispatch()

    def combine(self) -> None:
        """Exchange outputs and sum them."""
        super().combine()
        self._sum()


def _as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """[n, bytes of a row] uint8 view."""
    import torch

    return tensor.view(torch.uint8)
