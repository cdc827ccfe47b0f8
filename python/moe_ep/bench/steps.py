"""The step that is measured: dispatch and combine of a backend."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from .checks import (
    check_combine,
    check_dispatch,
    check_low_precision_combine,
    make_expert_rows,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from ..communication import MoEEpCommunication
    from ..config import MoEEpDispatchResult
    from .checks import Expectation

__all__ = ["LibraryStep"]


class LibraryStep:
    """One backend instance with inputs that stay the same.

    Parameters
    ----------
    comm
        The instance.
    expected
        What this rank sends, and what must come of it.
    settle
        Lets every rank finish what it has enqueued; None where calls return when they are done.
    """

    def __init__(
        self,
        comm: MoEEpCommunication,
        expected: Expectation,
        settle: Callable[[], None] | None = None,
    ) -> None:
        case = expected.case
        self._comm, self._inputs, self._expected = comm, expected.inputs, expected
        self._settle = settle or _return
        self._dtype = case.torch_dtype
        self._output = self._inputs.topk_weights.new_empty(
            (case.num_tokens, case.hidden_size), dtype=self._dtype
        )
        self._external: torch.Tensor | None = None
        if not case.is_in_place:
            rows = case.world_size * case.num_tokens
            self._external = self._output.new_zeros((rows, case.hidden_size))
        # An FP8 combine may encode rows where they lie.
        self._keeps_rows = not (case.is_in_place and case.is_fp8_combine)
        self._input: torch.Tensor | None = None
        self._probed: MoEEpDispatchResult | None = None

    def wait(self) -> None:
        """Nothing: the ranks wait for each other in every step."""

    def dispatch(self) -> MoEEpDispatchResult:
        """Send this rank's tokens and receive the others'."""
        inputs = self._inputs
        return self._comm.dispatch(
            inputs.hidden_states,
            inputs.topk_ids,
            inputs.topk_weights,
            hidden_states_scale=inputs.scales,
        )

    def combine(self) -> object:
        """Return the outputs; the rows already hold them."""
        return self._comm.combine(self._rows(), output=self._output)

    def _rows(self) -> torch.Tensor:
        if self._external is not None:
            return self._external
        rows = self._comm.get_combine_input_buffer(self._dtype)
        assert rows is not None
        return rows

    def check(self) -> None:
        """Run two steps and compare all they give with what they must. Collective.

        Raises
        ------
        CheckError
            Something differs.
        """
        for _ in range(2):
            self._settle()
            result = self.dispatch()
            self._settle()
            transport = self._comm.last_transport
            check_dispatch(self._expected, result, transport)
            self._input = self._rows()
            self.prepare()
            self._settle()
            self.combine()
            self._settle()
            self._check_output()

    def prepare(self) -> None:
        """Write the rows to combine, once `check` has shown where, and an output no step gives."""
        assert self._input is not None
        make_expert_rows(self._expected, self._input, self._comm.last_transport)
        self._output.fill_(float("nan"))

    def probe(self) -> None:
        """One pair that keeps a copy of what it received; for a graph that only checks."""
        result = self.dispatch()
        scale, counts = result.hidden_states_scale, result.recv_counts
        assert result.topk_weights is not None
        self._probed = replace(
            result,
            hidden_states=result.hidden_states.clone(),
            topk_ids=result.topk_ids.clone(),
            topk_weights=result.topk_weights.clone(),
            hidden_states_scale=None if scale is None else scale.clone(),
            recv_counts=None if counts is None else counts.clone(),
        )
        self.combine()

    def check_probe(self) -> None:
        """Compare what the probe gave, after `prepare`, with what it must."""
        assert self._probed is not None
        check_dispatch(self._expected, self._probed, self._comm.last_transport)
        self._check_output()
        self._probed = None

    def check_last(self) -> None:
        """Compare what the last combine gave, or, where it had no input left, run `check` again."""
        if self._keeps_rows:
            self._settle()
            self._check_output()
        else:
            self.check()

    def _check_output(self) -> None:
        self._comm.check()
        if self._expected.case.is_fp8_combine:
            check_low_precision_combine(self._expected, self._output)
        else:
            check_combine(self._expected, self._output)


def _return() -> None:
    pass
