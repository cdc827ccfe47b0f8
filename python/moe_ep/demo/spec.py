"""What a demo is asked for and what comes of it."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..traffic import StepBytes, count_bytes, dispatch_row_bytes

if TYPE_CHECKING:
    import torch

    from ..moe_layer import LayerShape

__all__ = ["PHASES", "DemoResult", "DemoSpec", "Opened", "RankSummary", "StepReport"]

PHASES = ("dispatch", "experts", "combine")
"""What is timed in a step."""


@dataclass(frozen=True)
class DemoSpec:
    """What to run.

    Parameters
    ----------
    shape
        The layer.
    world_size
        Ranks.
    num_tokens
        Tokens of a rank in a step.
    num_steps
        Steps.
    backend
        Name of a backend, or 'auto'.
    threads
        Threads of a rank.
    timeout_sec
        Longest time for one step of all ranks; one that is late is named.
    """

    shape: LayerShape
    world_size: int
    num_tokens: int
    num_steps: int
    backend: str = "auto"
    threads: int = 1
    timeout_sec: float = 120.0


@dataclass(frozen=True)
class Opened:
    """What a rank says of its instance."""

    backend: str
    workspace_bytes: int | None


@dataclass(frozen=True)
class StepReport:
    """What a rank says of a step."""

    output: torch.Tensor
    seconds: dict[str, float]
    rows_to: list[int]
    num_received: int
    transport: str | None


@dataclass
class RankSummary:
    """One rank over all steps.

    Parameters
    ----------
    rank
        Its number.
    num_tokens
        Tokens of a step.
    sent, sent_remote, received
        Rows sent to all ranks, to other ranks, and received from all.
    traffic
        Bytes of those rows.
    seconds
        Of each step, by phase.
    workspace_bytes
        Bytes of its slice; None where the backend has no workspace.
    """

    rank: int
    num_tokens: int
    sent: int = 0
    sent_remote: int = 0
    received: int = 0
    traffic: StepBytes = field(default_factory=lambda: StepBytes(0, 0, 0, 0))
    seconds: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in PHASES})
    workspace_bytes: int | None = None

    def median(self, phase: str) -> float:
        """Median seconds of a phase."""
        return statistics.median(self.seconds[phase])

    def add(self, step: StepReport, shape: LayerShape) -> None:
        """Count a step."""
        itemsize = shape.torch_dtype.itemsize
        row = dispatch_row_bytes(shape.hidden_size * itemsize, shape.top_k)
        more = count_bytes(step.rows_to, self.rank, row, shape.hidden_size * itemsize)
        self.traffic = StepBytes(
            *(
                getattr(self.traffic, name) + getattr(more, name)
                for name in StepBytes.__dataclass_fields__
            )
        )
        self.sent += sum(step.rows_to)
        self.sent_remote += sum(step.rows_to) - step.rows_to[self.rank]
        self.received += step.num_received
        for phase, seconds in step.seconds.items():
            self.seconds[phase].append(seconds)


@dataclass
class DemoResult:
    """What came of it.

    Parameters
    ----------
    spec
        What was run.
    backend
        Name of the class that ran it.
    transport
        Of the last step.
    ranks
        The ranks, in order.
    max_error
        Largest distance of an output element from the dense layer.
    max_bound
        Largest bound of an element.
    worst_share
        Largest distance as a share of its own element's bound; infinite if an output is not finite.
    """

    spec: DemoSpec
    backend: str
    transport: str | None
    ranks: list[RankSummary]
    max_error: float = 0.0
    max_bound: float = 0.0
    worst_share: float = 0.0

    @property
    def is_ok(self) -> bool:
        """Whether every element of every step is within its bound."""
        return self.worst_share <= 1.0
