"""WorkspaceCommunication: what backends with a symmetric workspace offer besides."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any

from .communication import MoEEpCommunication

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Self

    import torch

    from .comm.protocol import CommBackend
    from .config import BootstrapConfig, MoEEpCommParams

__all__ = ["WorkspaceCommunication"]


class WorkspaceCommunication(MoEEpCommunication):
    """Backend whose ranks map each other's memory.

    Adds rank masks and recovery, checkpoints, and the Lamport transport to `MoEEpCommunication`.
    """

    @property
    def lamport_enabled(self) -> bool:
        """Whether steps of this instance may take the Lamport transport."""
        return False

    @property
    def lamport_max_tokens(self) -> int | None:
        """Largest T of a Lamport step, as the ranks agreed; None where there is no Lamport."""
        return None

    @abstractmethod
    def active_rank_mask(self, active_ranks: Sequence[int]) -> torch.Tensor:
        """[4] uint64 CPU mask for a step: bit i of word i // 64 is set if rank i takes part.

        Raises
        ------
        ValueError
            A rank outside 0..R - 1.
        """

    @abstractmethod
    def set_active_ranks(self, ranks: Sequence[int]) -> None:
        """Change the mask of steps that pass none, also of captured graphs replayed later.

        Local; every active rank calls it with the same ranks, between steps. Needs
        enable_rank_mask.
        """

    @abstractmethod
    def recover(self, active_ranks: Sequence[int], comm_backend: CommBackend) -> None:
        """Make the instance usable again after an error, with exactly these ranks.

        Collective over the active ranks: re-arms the workspace, maps the memory of replaced members
        at the old addresses, clears errors and sets the default mask.

        Parameters
        ----------
        active_ranks
            The ranks that go on. Fewer than all need enable_rank_mask.
        comm_backend
            Spans the active ranks in ascending order.
        """

    @classmethod
    @abstractmethod
    def rejoin(
        cls,
        bootstrap: BootstrapConfig,
        params: MoEEpCommParams,
        config: Any,
        *,
        active_ranks: Sequence[int],
        comm_backend: CommBackend,
    ) -> Self:
        """Instance of a restarted process; pairs with the survivors' `recover`.

        Parameters
        ----------
        bootstrap, params, config
            As the survivors' instances were constructed with.
        active_ranks, comm_backend
            As in the survivors' `recover`.
        """

    @abstractmethod
    def checkpoint_prepare(self) -> None:
        """Free the workspace's physical memory and keep its addresses. Collective, between rounds.

        Does nothing when the memory is already gone. Steps raise until `checkpoint_restore`.
        """

    @abstractmethod
    def checkpoint_restore(self, comm_backend: CommBackend) -> None:
        """Put new memory at the old addresses, initialised. Collective over `comm_backend`.

        Does nothing when the memory is there. Graphs captured before replay correctly.

        Parameters
        ----------
        comm_backend
            Fresh; has the same rank and size.

        Raises
        ------
        RuntimeError
            `comm_backend` has another rank or size.
        """
