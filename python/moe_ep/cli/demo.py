"""``moe-ep demo``: a mixture-of-experts layer over ranks, checked against the dense layer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from ..limits import MAX_TIMEOUT_SEC
from ._console import console, failures_reported, format_bytes, format_us, progress_bar
from ._options import (
    BackendOption,
    DtypeName,
    HiddenOption,
    RanksOption,
    TopKOption,
    check_experts,
)

if TYPE_CHECKING:
    from rich.table import Table

    from ..demo import DemoResult, RankSummary

__all__ = ["demo"]

_MIN_EXPERTS_PER_RANK = 4


def demo(
    ranks: RanksOption = 4,
    tokens: Annotated[int, typer.Option(help="Tokens of a rank in a step.", min=1)] = 64,
    hidden: HiddenOption = 256,
    experts: Annotated[
        int | None,
        typer.Option(
            help="Experts, a multiple of --ranks; by default 4 a rank, or as --top-k needs.",
            min=1,
        ),
    ] = None,
    top_k: TopKOption = 4,
    backend: BackendOption = "auto",
    steps: Annotated[int, typer.Option(help="Steps.", min=1)] = 5,
    seed: Annotated[int, typer.Option(help="Of weights and tokens.", min=0)] = 0,
    dtype: Annotated[DtypeName, typer.Option(help="Element type of tokens.")] = DtypeName.bf16,
    threads: Annotated[int, typer.Option(help="Threads of a rank.", min=1, max=1024)] = 1,
    timeout: Annotated[
        float, typer.Option(help="Seconds for one step of all ranks.", min=1, max=MAX_TIMEOUT_SEC)
    ] = 120.0,
) -> None:
    """Run a mixture-of-experts layer over ranks and check it against the dense layer.

    Each rank is a process with its own tokens and experts (SwiGLU MLPs). A step routes the tokens,
    dispatches them, runs the experts and combines their weighted outputs. The same layer, computed
    densely in float32 in one process, says whether the outputs are right; the exit code is 1 where
    they are not.
    """
    from ..demo import DemoSpec, run_demo
    from ..moe_layer import LayerShape

    if experts is None:
        experts = ranks * max(_MIN_EXPERTS_PER_RANK, -(-top_k // ranks))
    check_experts(experts, ranks, top_k)
    shape = LayerShape(hidden, 2 * hidden, experts, top_k, dtype.value, seed)
    spec = DemoSpec(shape, ranks, tokens, steps, backend, threads, timeout)
    with failures_reported(), progress_bar() as progress:
        task = progress.add_task(f"{ranks} ranks", total=steps + 1)
        result = run_demo(spec, lambda: progress.advance(task))
    _print(result)
    if not result.is_ok:
        raise typer.Exit(1)


def _print(result: DemoResult) -> None:
    out, spec = console(), result.spec
    shape = spec.shape
    out.print(
        f"{result.backend}, transport {result.transport}: {spec.world_size} ranks x "
        f"{spec.num_tokens} tokens x {spec.num_steps} steps, hidden {shape.hidden_size} "
        f"{shape.dtype}, {shape.num_experts} experts, top-{shape.top_k}, seed {shape.seed}"
    )
    out.print(_traffic_table(result))
    out.print(_time_table(result))
    error, bound = result.max_error, result.max_bound
    share = f"at worst {result.worst_share:.0%} of an element's own bound"
    size = f"{spec.world_size} ranks, {spec.num_steps} steps"
    if result.is_ok:
        out.print(
            f"[bold green]OK:[/] {size}: the output matches the dense layer "
            f"(max error {error:.3g} <= {bound:.3g}; {share})",
            soft_wrap=True,
        )
    else:
        out.print(
            f"[bold red]FAILED:[/] {size}: the output differs from the dense layer "
            f"(max error {error:.3g}, largest bound {bound:.3g}; {share})",
            soft_wrap=True,
        )


def _traffic_table(result: DemoResult) -> Table:
    from rich.table import Table

    table = Table(title="Rows and bytes of all steps (physical / logical)", title_justify="left")
    for name in ("rank", "tokens", "sent", "to others", "received", "dispatch", "combine"):
        table.add_column(name, justify="right")
    table.add_column("workspace", justify="right")
    steps = result.spec.num_steps
    for rank in result.ranks:
        table.add_row(*_traffic_cells(str(rank.rank), [rank], steps))
    table.add_section()
    table.add_row(*_traffic_cells("total", result.ranks, steps), style="bold")
    return table


def _traffic_cells(label: str, ranks: list[RankSummary], steps: int) -> list[str]:
    def total(name: str) -> str:
        return f"{sum(getattr(rank, name) for rank in ranks):,}"

    def both(phase: str) -> str:
        physical, logical = (
            format_bytes(sum(getattr(rank.traffic, f"{phase}_{kind}") for rank in ranks))
            for kind in ("physical", "logical")
        )
        return f"{physical} / {logical}"

    sizes = [rank.workspace_bytes for rank in ranks if rank.workspace_bytes is not None]
    return [
        label,
        f"{steps * sum(rank.num_tokens for rank in ranks):,}",
        total("sent"),
        total("sent_remote"),
        total("received"),
        both("dispatch"),
        both("combine"),
        format_bytes(sum(sizes)) if sizes else "none",
    ]


def _time_table(result: DemoResult) -> Table:
    from rich.table import Table

    from ..demo import PHASES

    table = Table(title="Median time of a phase (us)", title_justify="left")
    for name in ("rank", *PHASES):
        table.add_column(name, justify="right")
    for rank in result.ranks:
        table.add_row(str(rank.rank), *(format_us(rank.median(phase)) for phase in PHASES))
    table.add_section()
    slowest = (max(rank.median(phase) for rank in result.ranks) for phase in PHASES)
    table.add_row("slowest", *(format_us(seconds) for seconds in slowest), style="bold")
    return table
