"""Counts: what a backend written in Python keeps for its `stats`."""

from __future__ import annotations

import dataclasses

from ..stats import CommunicationStats, PhaseStats

__all__ = ["Counts"]


class Counts:
    """The counts of one instance. One thread adds, any may `read`.

    Parameters
    ----------
    rank
        The own rank, whose rows do not count as traffic.
    """

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._stats = CommunicationStats()

    def add_dispatch(self, tokens: int, sent: list[int], received: list[int], row: int) -> None:
        """Count a dispatch: rows to and from every rank, of `row` bytes."""
        phase = self._added(self._stats.dispatch, tokens, sent, received, row)
        self._stats = dataclasses.replace(
            self._stats, dispatch=phase, steps_by_transport={"fence": phase.steps}
        )

    def add_combine(self, tokens: int, sent: list[int], received: list[int], row: int) -> None:
        """Count a combine alike."""
        phase = self._added(self._stats.combine, tokens, sent, received, row)
        self._stats = dataclasses.replace(self._stats, combine=phase)

    def add_event(self, name: str) -> None:
        """Count an event, named as in `CommunicationStats`."""
        self._stats = dataclasses.replace(self._stats, **{name: getattr(self._stats, name) + 1})

    def read(self) -> CommunicationStats:
        return self._stats

    def _added(
        self, phase: PhaseStats, tokens: int, sent: list[int], received: list[int], row: int
    ) -> PhaseStats:
        rows_sent = sum(sent) - sent[self._rank]
        rows_received = sum(received) - received[self._rank]
        return PhaseStats(
            steps=phase.steps + 1,
            tokens=phase.tokens + tokens,
            rows_sent=phase.rows_sent + rows_sent,
            rows_received=phase.rows_received + rows_received,
            bytes_sent=phase.bytes_sent + rows_sent * row,
            bytes_received=phase.bytes_received + rows_received * row,
        )
