"""The step that is measured: dispatch and combine of a backend."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .checks import check_combine, check_dispatch, make_expert_rows

if TYPE_CHECKING:
    import torch

    from ..communication import MoEEpCommunication
    from .checks import Expectation
    from .inputs import Inputs

__all__ = ["LibraryStep"]


class LibraryStep:
    """One backend instance with inputs that stay the same.

    Parameters
    ----------
    comm
        The instance.
    inputs
        What this rank sends.
    expected
        What must come of it.
    """

    def __init__(self, comm: MoEEpCommunication, inputs: Inputs, expected: Expectation) -> None:
        case = expected.case
        self._comm, self._inputs, self._expected = comm, inputs, expected
        self._dtype = case.torch_dtype
        self._output = inputs.topk_weights.new_empty(
            (case.num_tokens, case.hidden_size), dtype=self._dtype
        )
        self._external: torch.Tensor | None = None
        if not case.is_in_place:
            rows = case.world_size * case.num_tokens
            self._external = self._output.new_zeros((rows, case.hidden_size))

    def wait(self) -> None:
        """Nothing: the ranks wait for each other in every step."""

    def dispatch(self) -> object:
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
        rows = self._external
        if rows is None:
            rows = self._comm.get_combine_input_buffer(self._dtype)
            assert rows is not None
        return self._comm.combine(rows, output=self._output)

    def check(self) -> None:
        """Run two steps and compare all they give with what they must.

        Raises
        ------
        CheckError
            Something differs.
        """
        inputs, expected = self._inputs, self._expected
        for _ in range(2):
            result = self._comm.dispatch(
                inputs.hidden_states,
                inputs.topk_ids,
                inputs.topk_weights,
                hidden_states_scale=inputs.scales,
            )
            transport = self._comm.last_transport
            check_dispatch(expected, result, transport)
            rows = self._external
            if rows is None:
                rows = self._comm.get_combine_input_buffer(self._dtype)
                assert rows is not None
            make_expert_rows(expected, rows, transport)
            self._output.fill_(float("nan"))
            self._comm.combine(rows, output=self._output)
            check_combine(expected, self._output)

    def check_last(self) -> None:
        """Compare what the last timed combine gave."""
        check_combine(self._expected, self._output)
