"""The same step as two ``all_to_all_single`` of torch.distributed: over Gloo, or over NCCL.

All that can be known before a step is known: who sends how many rows to whom, and every buffer is
there. Rows of all payloads travel as one tensor of bytes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .checks import CheckError, check_combine, make_expert_rows

if TYPE_CHECKING:
    import torch
    import torch.distributed as dist

    from .checks import Expectation

__all__ = ["AllToAllStep", "AllToAllWire", "as_bytes"]


def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """[n, bytes of a row] uint8 view."""
    import torch

    return tensor.view(torch.uint8)


class AllToAllWire:
    """Nothing but the two exchanges, on rows that are packed already.

    Parameters
    ----------
    group
        The process group; it moves tensors of `expected`'s device.
    expected
        What this rank sends, and what must come of it.
    """

    def __init__(self, group: dist.ProcessGroup, expected: Expectation) -> None:
        import torch

        case = expected.case
        self._group, self._expected = group, expected
        self._to, self._from = expected.rows_to, expected.rows_from
        # Rows in order of destination, then of token.
        self._tokens = expected.goes_to.t().nonzero()[:, 1]
        self._payloads = [as_bytes(tensor) for tensor in expected.inputs.payloads()]
        widths = sum(rows.shape[1] for rows in self._payloads)
        empty = expected.inputs.topk_weights.new_empty
        self._sent = empty((sum(self._to), widths), dtype=torch.uint8)
        self._arrived = empty((sum(self._from), widths), dtype=torch.uint8)
        returned = (sum(self._from), case.hidden_size)
        self._outputs = empty(returned, dtype=case.torch_dtype).zero_()
        self._returned = empty((sum(self._to), case.hidden_size), dtype=case.torch_dtype)
        self._parts = torch.split_with_sizes(self._returned, self._to)
        self._token_parts = torch.split_with_sizes(self._tokens, self._to)
        self._sums = empty((case.num_tokens, case.hidden_size))
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
        """Run a step and compare what arrives with what was sent, and the sums. Collective.

        Raises
        ------
        CheckError
            Something differs.
        """
        import torch

        expected, case = self._expected, self._expected.case
        rows = self._outputs.new_empty((case.world_size * case.num_tokens, case.hidden_size))
        make_expert_rows(expected, rows, None)
        blocks = rows.view(case.world_size, case.num_tokens, case.hidden_size)
        parts = [blocks[src, :count] for src, count in enumerate(self._from)]
        self._outputs.copy_(torch.cat(parts))
        self.prepare()
        self.probe()
        self.check_last()

    def probe(self) -> None:
        """One pair."""
        self.dispatch()
        self.combine()

    def check_probe(self) -> None:
        """See `check_last`."""
        self.check_last()

    def prepare(self) -> None:
        """Write to what is received what no step gives."""
        self._arrived.zero_()
        self._returned.fill_(float("nan"))

    def check_last(self) -> None:
        """Compare what the last step brought with what was sent, and the sums."""
        import torch

        wanted = [
            torch.cat([as_bytes(tensor) for tensor in inputs.payloads()], dim=1)
            for inputs in self._expected.received
        ]
        if not torch.equal(self._arrived, torch.cat(wanted)):
            raise CheckError(
                "bench: all_to_all_single must bring the rows that were sent, got others on rank "
                f"{self._expected.rank} of {self._expected.case}"
            )
        self._sum()
        check_combine(self._expected, self._output)


class AllToAllStep(AllToAllWire):
    """The whole step: rows are packed and exchanged; outputs are exchanged and summed."""

    def dispatch(self) -> None:
        """Pack and exchange rows; they are used as they arrive."""
        self._pack()
        super().dispatch()

    def combine(self) -> None:
        """Exchange outputs and sum them."""
        super().combine()
        self._sum()
