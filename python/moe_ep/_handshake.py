"""The first collective of a constructor: parameters and failures of every rank.

What goes wrong on one rank goes wrong on every rank alike: each learns which ranks failed and why,
or which field differs and who passed what.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .errors import MoEEpError, TypeMismatchError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from .comm.protocol import CommBackend
    from .config import BootstrapConfig, MoEEpCommParams

__all__ = ["agree", "format_ranks", "format_values", "params_fields"]

_PROTOCOL = 1

# How a failure travels: a bad argument stays one on the ranks that passed good ones.
_KINDS: tuple[tuple[str, type[Exception]], ...] = (
    ("type", TypeMismatchError),
    ("value", ValueError),
    ("error", MoEEpError),
)


def agree(
    comm: CommBackend,
    bootstrap: BootstrapConfig,
    operation: str,
    fields: Mapping[str, object],
    failure: Exception | None = None,
) -> None:
    """Raise on every rank if any rank failed or passed another value. Collective.

    Parameters
    ----------
    comm
        Spans the group; its size must already be known to be right.
    bootstrap
        Who this process is.
    operation
        Name of the class under construction.
    fields
        Values that must be equal on every rank, by the names their users know them by.
    failure
        What went wrong on this rank, or None.

    Raises
    ------
    ValueError
        A field differs, `comm` is no working CommBackend, or all failures are bad arguments.
    MoEEpError
        Any other failure on any rank.
    """
    rank = bootstrap.rank
    if failure is None and comm.Get_rank() != rank:
        failure = ValueError(
            f"comm_backend must have the bootstrap's rank = {rank}, "
            f"got Get_rank() = {comm.Get_rank()}"
        )
    record = {
        "protocol": _PROTOCOL,
        "rank": comm.Get_rank(),
        "failure": None if failure is None else (_kind(failure), str(failure)),
        "fields": dict(fields),
    }
    records = _gather(comm, operation, record)
    _raise_failures(operation, records, failure)
    for name in fields:
        values = [theirs["fields"].get(name) for theirs in records]
        if any(value != values[0] for value in values):
            raise ValueError(
                f"{operation}: {name} must be equal on every rank, got {format_values(values)}"
            )


def params_fields(params: MoEEpCommParams) -> dict[str, object]:
    """All of `params` in a form that can be sent."""
    return {
        "num_experts": params.num_experts,
        "top_k": params.top_k,
        "max_tokens_per_rank": params.max_tokens_per_rank,
        "hidden_size": params.hidden_size,
        "dtype": str(params.token_dtype).removeprefix("torch."),
        "dispatch_format": params.dispatch_format.name if params.dispatch_format else None,
        "invalid_expert_id": params.invalid_expert_id,
    }


def format_ranks(ranks: Sequence[int]) -> str:
    """'rank 3', or 'ranks 0, 2'."""
    return ("rank " if len(ranks) == 1 else "ranks ") + ", ".join(map(str, ranks))


def format_values(values: Sequence[object]) -> str:
    """'64 on ranks 0, 2 and 65 on rank 1', from the value of each rank."""
    holders: dict[str, list[int]] = {}
    for rank, value in enumerate(values):
        holders.setdefault(str(value), []).append(rank)
    parts = [f"{value} on {format_ranks(ranks)}" for value, ranks in holders.items()]
    return " and ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)


def _kind(failure: Exception) -> str:
    return next((name for name, kind in _KINDS if isinstance(failure, kind)), "error")


def _gather(comm: CommBackend, operation: str, record: dict[str, Any]) -> list[dict[str, Any]]:
    """Every rank's record, after checking that `comm` really gathers."""
    records = list(comm.allgather(record))
    size = comm.Get_size()
    if len(records) != size:
        raise ValueError(
            f"{operation}: comm_backend.allgather must return one object for each of {size} "
            f"ranks, got {len(records)}"
        )
    for rank, theirs in enumerate(records):
        if not isinstance(theirs, dict) or "protocol" not in theirs:
            raise ValueError(
                f"{operation}: every rank must construct the same class at the same time, got "
                f"{theirs!r} from rank {rank}"
            )
    senders = [theirs["rank"] for theirs in records]
    if senders != list(range(size)):
        raise ValueError(
            f"{operation}: comm_backend.allgather must return the ranks' objects in rank order, "
            f"got those of ranks {senders}"
        )
    return records


def _raise_failures(
    operation: str, records: list[dict[str, Any]], failure: Exception | None
) -> None:
    failed = [
        (rank, *theirs["failure"]) for rank, theirs in enumerate(records) if theirs["failure"]
    ]
    if not failed:
        return
    kinds = {kind for _, kind, _ in failed}
    raised = next(kind for name, kind in reversed(_KINDS) if name in kinds)
    reasons = "; ".join(f"rank {rank}: {reason}" for rank, _, reason in failed)
    raise raised(
        f"{operation}: every rank must be able to construct it, got {reasons}"
    ) from failure
