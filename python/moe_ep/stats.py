"""CommunicationStats: what an instance has done so far."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["CommunicationStats", "PhaseStats"]


@dataclass(frozen=True)
class PhaseStats:
    """Dispatches, or combines, of one instance.

    Parameters
    ----------
    steps
        Those that ended well; on GPUs those that were enqueued without an error. Replays of a
        captured graph are not seen.
    tokens
        This rank's own tokens in these steps.
    rows_sent, rows_received
        To and from other ranks; a row is one token on one rank. 0 on GPUs, where counting would
        mean reading device memory.
    bytes_sent, bytes_received
        Of these rows: all payloads (dispatch), the wire format (combine).
    """

    steps: int = 0
    tokens: int = 0
    rows_sent: int = 0
    rows_received: int = 0
    bytes_sent: int = 0
    bytes_received: int = 0


@dataclass(frozen=True)
class CommunicationStats:
    """What `MoEEpCommunication.stats` returns.

    Counts start at 0 with the instance and never go back; `destroy`, `recover` and checkpoints keep
    them. ``dispatch.steps`` is ``combine.steps + abandoned_rounds``, and one more while a round is
    open.

    Parameters
    ----------
    steps_by_transport
        ``dispatch.steps`` by `TransportName`.
    dispatch, combine
        The two phases.
    timeouts, mismatches, corrupt_counts
        Steps that failed so: peers did not come, passed a different step, or announced an
        impossible number of rows. On GPUs they count when the next call notices them.
    recoveries
        Calls of `recover` that went through.
    abandoned_rounds
        Rounds that never saw the end of their combine: `destroy`, `recover` or a failure came
        before.
    """

    steps_by_transport: Mapping[str, int] = field(default_factory=dict)
    dispatch: PhaseStats = PhaseStats()
    combine: PhaseStats = PhaseStats()
    timeouts: int = 0
    mismatches: int = 0
    corrupt_counts: int = 0
    recoveries: int = 0
    abandoned_rounds: int = 0
