"""What the slices of one workspace say together: who waits for whom, and who is behind."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = ["SliceReport", "WorkspaceReport", "make_report"]


@dataclass(frozen=True)
class SliceReport:
    """One rank, as its own slice and those of its peers tell.

    Parameters
    ----------
    rank, pid
        The owner.
    step
        Its last step begun; 0 before the first, or the number that `recover` agreed on.
    state
        Where it is in that step.
    waits_for
        Peers that it has not heard of in the phase it is in.
    peers
        What each peer has told it: the fields of ``PeerInspection`` (moe_ep/inspect.hpp).
    """

    rank: int
    pid: int
    step: int
    state: str
    waits_for: list[int]
    has_lamport: bool
    has_counted: bool
    peers: list[dict[str, Any]]


@dataclass(frozen=True)
class WorkspaceReport:
    """One workspace.

    Parameters
    ----------
    num_ranks
        R.
    max_tokens
        max_tokens_per_rank.
    slices
        Of the ranks whose memory could be looked at, ascending.
    unseen
        The other ranks: on their way out, ended, or not mapped.
    behind
        Ranks that have announced less than others; empty where all have got equally far.
    explanation
        The same as a sentence.
    """

    num_ranks: int
    max_tokens: int
    slices: list[SliceReport]
    unseen: list[int]
    behind: list[int]
    explanation: str


def make_report(slices: list[tuple[int, dict[str, Any]]]) -> WorkspaceReport:
    """Return the report of (pid, inspected slice) pairs."""
    slices = sorted(slices, key=lambda entry: int(entry[1]["rank"]))
    num_ranks = int(slices[0][1]["num_ranks"])
    announced = _Announced([found for _, found in slices])
    active = {rank for _, found in slices for rank in found["active"]}
    members = active or set(range(num_ranks))
    reached = {rank: announced.half_steps(rank) for rank in sorted(members)}
    first = min(reached.values())
    behind = [rank for rank, half_steps in reached.items() if half_steps == first]
    if first == max(reached.values()):
        behind = []
    seen = {int(found["rank"]) for _, found in slices}
    return WorkspaceReport(
        num_ranks=num_ranks,
        max_tokens=int(slices[0][1]["max_tokens"]),
        slices=[_slice_report(pid, found, announced) for pid, found in slices],
        unseen=[rank for rank in range(num_ranks) if rank not in seen],
        behind=behind,
        explanation=_explain(behind, announced),
    )


class _Announced:
    """The furthest that any slice has heard of each rank."""

    def __init__(self, slices: list[dict[str, Any]]) -> None:
        self._base = int(slices[0]["epoch"])  # epochs wrap: all are taken relative to one
        self._dispatch: dict[int, int] = {}
        self._combine: dict[int, int] = {}
        for found in slices:
            for peer in found["peers"]:
                rank = int(peer["rank"])
                for known, field in ((self._dispatch, "dispatch"), (self._combine, "combine")):
                    steps = self.steps(int(peer[f"{field}_epoch"]))
                    known[rank] = max(known.get(rank, steps), steps)

    def steps(self, epoch: int) -> int:
        """Steps from the base to `epoch`."""
        return (epoch - self._base + 2**31) % 2**32 - 2**31

    def epoch(self, steps: int) -> int:
        return (self._base + steps) % 2**32

    def dispatch(self, rank: int) -> int:
        return self._dispatch[rank]

    def combine(self, rank: int) -> int:
        return self._combine[rank]

    def half_steps(self, rank: int) -> int:
        """Twice the steps whose combine is announced, one less where it is the dispatch only."""
        return max(2 * self._dispatch[rank] - 1, 2 * self._combine[rank])


def _slice_report(pid: int, found: dict[str, Any], announced: _Announced) -> SliceReport:
    state, waits_for = _state(found, announced)
    return SliceReport(
        rank=int(found["rank"]),
        pid=pid,
        step=int(found["epoch"]),
        state=state,
        waits_for=waits_for,
        has_lamport=bool(found["has_lamport"]),
        has_counted=bool(found["has_counted"]),
        peers=list(found["peers"]),
    )


def _state(found: dict[str, Any], announced: _Announced) -> tuple[str, list[int]]:
    rank, step = int(found["rank"]), announced.steps(int(found["epoch"]))
    others = [
        peer for peer in found["peers"] if peer["rank"] in found["active"] and peer["rank"] != rank
    ]

    def silent(phase: str) -> list[int]:
        return [
            int(peer["rank"])
            for peer in others
            if announced.steps(int(peer[f"{phase}_epoch"])) < step
            or peer[f"{phase}_bytes"] < peer[f"expected_{phase}_bytes"]
        ]

    if not found["active"]:
        return "before the first step", []
    missing = silent("dispatch")
    if others and announced.dispatch(rank) < step and not missing:
        return "dispatch begun, not announced", []
    if missing:
        return "waits in dispatch", missing
    if announced.combine(rank) < step:
        return "between dispatch and combine", []
    missing = silent("combine")
    if missing:
        return "waits in combine", missing
    return "done with the step", []


def _explain(behind: list[int], announced: _Announced) -> str:
    if not behind:
        return "all ranks have got equally far"
    half_steps = announced.half_steps(behind[0])
    phase, steps = ("combine", half_steps // 2) if half_steps % 2 == 0 else ("dispatch", 0)
    if phase == "dispatch":
        steps = (half_steps + 1) // 2
    names = ("rank " if len(behind) == 1 else "ranks ") + ", ".join(str(rank) for rank in behind)
    verb = "is" if len(behind) == 1 else "are"
    return f"{names} {verb} behind: the last word was the {phase} of step {announced.epoch(steps)}"
