"""Which CommBackend an instance uses when none is passed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..errors import MoEEpError, TypeMismatchError

if TYPE_CHECKING:
    from ..config import BootstrapConfig
    from .protocol import CommBackend

__all__ = ["SingleRankBackend", "check_comm_backend", "default_comm_backend"]

_METHODS = ("Get_rank", "Get_size", "allgather", "bcast", "barrier", "Split")


class SingleRankBackend:
    """CommBackend of a group of one."""

    def Get_rank(self) -> int:
        """Rank of the caller."""
        return 0

    def Get_size(self) -> int:
        """Ranks of the group."""
        return 1

    def allgather(self, obj: Any) -> tuple[Any, ...]:
        """Return the caller's `obj`."""
        return (obj,)

    def bcast(self, obj: Any, root: int) -> Any:
        """Return the caller's `obj`."""
        if root != 0:
            raise ValueError(f"bcast: root must be 0 in a group of one, got {root}")
        return obj

    def barrier(self) -> None:
        """Return."""

    def Split(self, color: int, key: int) -> SingleRankBackend:
        """Return a group of one."""
        return SingleRankBackend()


def check_comm_backend(operation: str, comm: object) -> CommBackend:
    """Return `comm`, if it has every method of `CommBackend`.

    Raises
    ------
    TypeMismatchError
        A method is missing; the message names it.
    """
    missing = [name for name in _METHODS if not callable(getattr(comm, name, None))]
    if missing:
        raise TypeMismatchError(
            f"{operation}: comm_backend must offer {', '.join(_METHODS)}, "
            f"got {type(comm).__name__} without {', '.join(missing)}"
        )
    return comm  # type: ignore[return-value]


def default_comm_backend(
    bootstrap: BootstrapConfig, config: object = None, *, operation: str = "default_comm_backend"
) -> CommBackend:
    """Choose the CommBackend for set-up over the group that `bootstrap` describes.

    The first of: ``config.comm_backend``, ``bootstrap.tcp_store``, ``bootstrap.process_group``, the
    default process group, and for one rank none at all.

    Parameters
    ----------
    bootstrap
        Who this process is.
    config
        A backend's options, or None.
    operation
        Who asks, for messages.

    Returns
    -------
    CommBackend
        Has the size that `bootstrap` says; `agree` checks the rank on every rank.

    Raises
    ------
    MoEEpError
        There is nothing to reach the other ranks with.
    ValueError
        What there is has another size than `bootstrap` says.
    """
    comm = _choose(bootstrap, config, operation)
    size = comm.Get_size()
    if size != bootstrap.world_size:
        raise ValueError(
            f"{operation}: comm_backend must span the group's world_size = "
            f"{bootstrap.world_size} ranks, got Get_size() = {size}"
        )
    return comm


def _choose(bootstrap: BootstrapConfig, config: object, operation: str) -> CommBackend:
    given = getattr(config, "comm_backend", None)
    if given is not None:
        return check_comm_backend(operation, given)
    if bootstrap.tcp_store is not None:
        from .tcp_store import TCPStoreBackend

        return TCPStoreBackend(bootstrap.tcp_store, bootstrap.rank, bootstrap.world_size)
    if bootstrap.process_group is not None:
        from .torch_dist import TorchDistBackend

        return TorchDistBackend(bootstrap.process_group)
    if bootstrap.world_size == 1:
        return SingleRankBackend()
    if _has_default_group():
        from .torch_dist import TorchDistBackend

        return TorchDistBackend()
    raise MoEEpError(
        f"{operation}: {bootstrap.world_size} ranks need a way to reach each other, got none; pass "
        "config.comm_backend, BootstrapConfig.tcp_store or BootstrapConfig.process_group, or call "
        "torch.distributed.init_process_group first"
    )


def _has_default_group() -> bool:
    """Whether the process has a default group; does not import torch to find out."""
    import sys

    dist: Any = sys.modules.get("torch.distributed")
    return dist is not None and bool(dist.is_available() and dist.is_initialized())
