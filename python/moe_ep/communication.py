"""MoEEpCommunication: the interface of every dispatch/combine backend."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Literal

from ._living import note_instance
from .stats import CommunicationStats

if TYPE_CHECKING:
    import torch

    from .config import BootstrapConfig, MoEEpCommParams, MoEEpDispatchResult

__all__ = ["MoEEpCommunication", "TransportName"]

TransportName = Literal["fence", "lamport", "counted"]


class MoEEpCommunication(ABC):
    """Moves tokens to the ranks that own their experts, and the experts' outputs back.

    An instance serves one expert-parallel group and has one round open at most: a `dispatch`, then
    its `combine`. All ranks of the group make the same sequence of calls. One thread at a time may
    use an instance.

    Rank r owns the experts ``r * num_experts // R`` to ``(r + 1) * num_experts // R - 1``;
    num_experts is a multiple of R.

    Parameters
    ----------
    bootstrap
        Who this process is in the group.
    params
        Sizes and formats, equal on every rank.
    """

    def __init__(self, bootstrap: BootstrapConfig, params: MoEEpCommParams) -> None:
        self.bootstrap = bootstrap
        self.params = params
        note_instance(self)

    @classmethod
    @abstractmethod
    def is_platform_supported(cls) -> bool:
        """Whether the backend can run on this machine.

        Local: no collective, and no CUDA initialisation in a process that has none.
        """

    @classmethod
    def explain_platform(cls) -> str:
        """One sentence on why the backend cannot run here; empty where it can."""
        if cls.is_platform_supported():
            return ""
        return f"{cls.__name__} does not run on this machine."

    @abstractmethod
    def dispatch(
        self,
        hidden_states: torch.Tensor,
        topk_ids: torch.Tensor,
        topk_weights: torch.Tensor | None = None,
        *,
        hidden_states_scale: torch.Tensor | None = None,
        runtime_max_tokens_per_rank: int | None = None,
        eplb_local_stats: torch.Tensor | None = None,
        extra_payloads: dict[str, torch.Tensor] | None = None,
    ) -> MoEEpDispatchResult:
        """Send each token to the ranks that own its experts.

        A token arrives once at most on a rank, with its whole top-k row, also where several picks
        go there. A void pick (an id outside [0, num_experts)) goes nowhere.

        Parameters
        ----------
        hidden_states
            [n, *] rows of any dtype whose bytes fit; n may be 0. As for every tensor here, the last
            dimension is contiguous and rows may lie at any distance.
        topk_ids
            [n, top_k] int32 or int64 global expert ids.
        topk_weights
            [n, top_k] routing weights; on every rank or on none. A rank without tokens passes
            [0, top_k].
        hidden_states_scale
            [n, *] scale factors of quantised rows, moved as bytes next to their row.
        runtime_max_tokens_per_rank
            T of this step: at least every rank's n, at most max_tokens_per_rank, and the same on
            every rank. None is max_tokens_per_rank.
        eplb_local_stats
            [eplb_stats_num_experts] int32 statistics of this rank, gathered as they are.
        extra_payloads
            At most four further tensors [n, *] by name, with the same names on every rank.

        Returns
        -------
        MoEEpDispatchResult
            Views valid until the matching `combine`. A later step with the same T, widths, dtypes
            and transport returns the same tensor objects.

        Raises
        ------
        ValueError
            A shape, dtype, device or size out of contract; nothing was sent.
        TypeMismatchError
            An argument of the wrong kind; nothing was sent.
        RuntimeError
            A round is open, or the instance is destroyed.
        MoEEpMismatchError
            Ranks passed steps of different shape. The message names field and values.
        MoEEpTimeoutError
            Peers did not arrive in time.
        """

    @abstractmethod
    def combine(
        self, expert_output: torch.Tensor, *, output: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Return each token's expert outputs, summed over ranks.

        The sum is taken in float32 in ascending rank order, starting from the first contribution,
        and rounded once, to nearest even. A token that went nowhere gives +0. Rows of
        `expert_output` without a token are never read.

        Parameters
        ----------
        expert_output
            [R * T, hidden_size] or [R, T, hidden_size] in params.token_dtype: for each received row
            the weighted sum over this rank's experts.
        output
            [n, hidden_size] contiguous tensor to write the result to, same dtype and device.

        Returns
        -------
        torch.Tensor
            [n, hidden_size] in params.token_dtype: `output`, or a new tensor.

        Raises
        ------
        ValueError
            A shape, dtype or device out of contract; nothing was sent, the round stays open.
        RuntimeError
            No round is open, or the instance is destroyed.
        MoEEpTimeoutError
            Peers did not arrive in time.
        """

    def get_combine_input_buffer(self, dtype: torch.dtype) -> torch.Tensor | None:
        """[R * T, hidden_size] memory of the backend to write the expert output into.

        Passing it to `combine` may save a copy. It overlaps no view of the dispatch.

        Parameters
        ----------
        dtype
            params.token_dtype.

        Returns
        -------
        torch.Tensor or None
            None from a backend that has no such memory.

        Raises
        ------
        RuntimeError
            No round is open.
        """
        return None

    @property
    def last_transport(self) -> TransportName | None:
        """How the last dispatch travelled; None before the first."""
        return None

    def stats(self) -> CommunicationStats:
        """Return this instance's counts so far: steps, traffic, failures.

        From any thread, at any time, also after `destroy`. A backend that keeps none returns
        zeros.
        """
        return CommunicationStats()

    def check(self) -> None:
        """Raise the error of an earlier step, if there is one, without waiting."""
        return

    def synchronize(self) -> None:
        """Wait for the steps enqueued so far, then `check`."""
        self.check()

    def destroy(self) -> None:
        """Release what the instance holds.

        Idempotent; every rank calls it, none waits for another. An open round is abandoned.
        """
        return
