"""A mixture-of-experts layer spread over ranks, compared with the same layer in one process.

`run_demo` is what ``moe-ep demo`` prints.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from .launch import RankTeam, meeting_of, open_communication
from .moe_layer import DenseLayer, LayerShape, Router, ShardedExperts, make_tokens
from .traffic import StepBytes, count_bytes, dispatch_row_bytes

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from .launch import Seat

__all__ = ["PHASES", "DemoResult", "DemoSpec", "RankSummary", "run_demo"]

PHASES = ("dispatch", "experts", "combine")
"""What is timed in a step."""

_STEP_TIMEOUT_SEC = 60


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
    """

    shape: LayerShape
    world_size: int
    num_tokens: int
    num_steps: int
    backend: str = "auto"
    threads: int = 1


@dataclass(frozen=True)
class _Opened:
    """What a rank says of its instance."""

    backend: str
    workspace_bytes: int | None


@dataclass(frozen=True)
class _Step:
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

    def add(self, step: _Step, shape: LayerShape) -> None:
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


def run_demo(spec: DemoSpec, on_progress: Callable[[], None] = lambda: None) -> DemoResult:
    """Run the layer on `spec.world_size` processes and compare each step with the dense layer.

    Parameters
    ----------
    spec
        What to run.
    on_progress
        Called once the ranks are there and after each step: ``num_steps + 1`` times.

    Raises
    ------
    RankError
        A rank failed; the message names it.
    """
    meeting = meeting_of(spec.backend)
    with RankTeam(spec.world_size, meeting=meeting, threads=spec.threads) as team:
        opened: list[_Opened] = team.run(_open, spec)
        ranks = [
            RankSummary(rank, spec.num_tokens, workspace_bytes=own.workspace_bytes)
            for rank, own in enumerate(opened)
        ]
        result = DemoResult(spec, opened[0].backend, None, ranks)
        dense = DenseLayer(spec.shape, spec.world_size)
        on_progress()
        for step_idx in range(spec.num_steps):
            steps: list[_Step] = team.run(_step, step_idx)
            for summary, step in zip(ranks, steps, strict=True):
                summary.add(step, spec.shape)
            result.transport = steps[0].transport
            _compare(result, dense, step_idx, [step.output for step in steps])
            on_progress()
        team.run(_close)
    return result


def _compare(
    result: DemoResult, dense: DenseLayer, step_idx: int, outputs: list[torch.Tensor]
) -> None:
    """Judge the outputs of all ranks in one step."""
    spec = result.spec
    for rank, output in enumerate(outputs):
        tokens = make_tokens(spec.shape, spec.num_tokens, step_idx, rank)
        expected, bound = dense(tokens)
        error = (output.float() - expected).abs()
        if output.shape != expected.shape or not error.isfinite().all():
            result.max_error = result.worst_share = float("inf")
            continue
        result.max_error = max(result.max_error, error.max().item())
        result.max_bound = max(result.max_bound, bound.max().item())
        result.worst_share = max(result.worst_share, (error / bound).max().item())


def _open(seat: Seat, spec: DemoSpec) -> _Opened:
    """Make a rank's instance and its part of the layer."""
    from .config import MoEEpCommParams

    shape = spec.shape
    params = MoEEpCommParams(
        num_experts=shape.num_experts,
        top_k=shape.top_k,
        max_tokens_per_rank=spec.num_tokens,
        hidden_size=shape.hidden_size,
        dtype=shape.torch_dtype,
    )
    comm = open_communication(
        seat, params, spec.backend, num_threads=spec.threads, timeout_sec=_STEP_TIMEOUT_SEC
    )
    seat.objects.update(
        spec=spec,
        comm=comm,
        router=Router(shape),
        experts=ShardedExperts(shape, seat.rank, seat.world_size),
    )
    return _Opened(type(comm).__name__, getattr(comm, "workspace_bytes", None))


def _step(seat: Seat, step_idx: int) -> _Step:
    """Run the layer once on this rank's tokens."""
    spec, comm = seat.objects["spec"], seat.objects["comm"]
    shape = spec.shape
    tokens = make_tokens(shape, spec.num_tokens, step_idx, seat.rank)
    topk_ids, topk_weights = seat.objects["router"](tokens)
    seat.comm.barrier()
    clock = time.perf_counter
    start = clock()
    received = comm.dispatch(tokens, topk_ids, topk_weights)
    dispatched = clock()
    rows = comm.get_combine_input_buffer(shape.torch_dtype)
    if rows is None:
        rows = received.hidden_states.new_empty(received.hidden_states.shape)
    seat.objects["experts"](received.hidden_states, received.topk_ids, received.topk_weights, rows)
    num_received = int(received.recv_counts.sum())
    computed = clock()
    output = comm.combine(rows)
    combined = clock()
    return _Step(
        output=output,
        seconds={
            "dispatch": dispatched - start,
            "experts": computed - dispatched,
            "combine": combined - computed,
        },
        rows_to=_rows_to(topk_ids, shape, seat.world_size),
        num_received=num_received,
        transport=comm.last_transport,
    )


def _rows_to(topk_ids: torch.Tensor, shape: LayerShape, world_size: int) -> list[int]:
    """Tokens for each rank: a token goes to a rank once, however many of its experts are there."""
    owners = topk_ids.long() // (shape.num_experts // world_size)
    visits = owners.new_zeros(len(owners), world_size).scatter_(1, owners, 1)
    counts: list[int] = visits.sum(dim=0).tolist()
    return counts


def _close(seat: Seat) -> None:
    seat.objects["comm"].destroy()
    seat.objects.clear()
