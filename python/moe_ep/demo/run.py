"""The demo's main process: it starts the ranks and judges what they give."""

from __future__ import annotations

import contextlib
import importlib
import threading
from typing import TYPE_CHECKING

from ..launch import RankTeam, meeting_of
from ..moe_layer import DenseLayer, make_tokens
from .rank import close, open_layer, run_step
from .spec import DemoResult, RankSummary

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import torch

    from .spec import DemoSpec, Opened, StepReport

__all__ = ["run_demo"]


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
    # This process needs it for the dense layer: it loads while the ranks start.
    threading.Thread(target=importlib.import_module, args=("torch",), daemon=True).start()
    with RankTeam(
        spec.world_size, meeting=meeting, threads=spec.threads, timeout=spec.timeout_sec
    ) as team:
        opened: list[Opened] = team.run(open_layer, spec)
        ranks = [
            RankSummary(rank, spec.num_tokens, workspace_bytes=own.workspace_bytes)
            for rank, own in enumerate(opened)
        ]
        result = DemoResult(spec, opened[0].backend, None, ranks)
        dense = DenseLayer(spec.shape, spec.world_size)
        on_progress()
        for step_idx in range(spec.num_steps):
            steps: list[StepReport] = team.run(run_step, step_idx)
            for summary, step in zip(ranks, steps, strict=True):
                summary.add(step, spec.shape)
            result.transport = steps[0].transport
            _compare(result, dense, step_idx, [step.output for step in steps])
            on_progress()
        team.run(close)
    return result


@contextlib.contextmanager
def _threads(count: int) -> Iterator[None]:
    """Let torch use as many threads as a rank does: more would spin beside the ranks' own."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _compare(
    result: DemoResult, dense: DenseLayer, step_idx: int, outputs: list[torch.Tensor]
) -> None:
    """Judge the outputs of all ranks in one step."""
    spec = result.spec
    for rank, output in enumerate(outputs):
        with _threads(spec.threads):
            tokens = make_tokens(spec.shape, spec.num_tokens, step_idx, rank)
            expected, bound = dense(tokens)
        error = (output.float() - expected).abs()
        if output.shape != expected.shape or not error.isfinite().all():
            result.max_error = result.worst_share = float("inf")
            continue
        result.max_error = max(result.max_error, error.max().item())
        result.max_bound = max(result.max_bound, bound.max().item())
        result.worst_share = max(result.worst_share, (error / bound).max().item())
