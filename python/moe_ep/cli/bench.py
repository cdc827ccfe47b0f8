"""``moe-ep bench``: dispatch and combine against memcpy and Gloo, measured in one run."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..bench.cases import Case, RoutingName, TransportName
from ..limits import MAX_RANKS, MAX_TOP_K
from ..models import MODELS
from ._bench_gpu import GPU_LEGEND, choose_backend, choose_ranks, make_gpu_table, run_on_gpus
from ._bench_options import (
    ModeName,
    check_models,
    check_plot,
    check_tokens,
    format_of,
    shapes_of,
    tokens_of,
)
from ._bench_table import LEGEND, make_table, make_title
from ._console import console, error_console, failures_reported, format_bytes, progress_bar
from ._options import (
    BackendOption,
    DtypeName,
    FormatName,
    JsonOption,
    check_experts,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..bench.worker import Effort

__all__ = ["bench", "tokens_of"]

# For checking a case and setting it up; measuring comes on top.
_CASE_TIMEOUT_SEC = 300.0
# Share of free memory that a case may take.
_MEMORY_SHARE = 0.8


def bench(
    backend: BackendOption = "host",
    ranks: Annotated[
        int | None,
        typer.Option(help="Ranks: 2 by default, or one a GPU.", min=1, max=MAX_RANKS),
    ] = None,
    one_gpu: Annotated[
        bool, typer.Option("--one-gpu", help="Ranks are threads of one process on GPU 0.")
    ] = False,
    threads: Annotated[int, typer.Option(help="Threads of a rank.", min=1, max=1024)] = 1,
    model: Annotated[
        list[str] | None,
        typer.Option(
            help=f"Sizes: {', '.join(MODELS)}. May be repeated; deepseek-v3 by default.",
            callback=check_models,
        ),
    ] = None,
    hidden: Annotated[int | None, typer.Option(help="Elements of a token.", min=1)] = None,
    top_k: Annotated[
        int | None, typer.Option(help="Experts of a token.", min=1, max=MAX_TOP_K)
    ] = None,
    experts: Annotated[
        int | None, typer.Option(help="Experts, a multiple of --ranks.", min=1)
    ] = None,
    tokens: Annotated[
        str,
        typer.Option(help="Tokens of a rank: 1,8,256 or 1..8192.", callback=check_tokens),
    ] = "1..8192",
    routing: Annotated[RoutingName, typer.Option(help="How picks are drawn.")] = RoutingName.random,
    dtype: Annotated[DtypeName, typer.Option(help="Element type of tokens.")] = DtypeName.bf16,
    format: Annotated[  # noqa: A002
        str | None,
        typer.Option(
            "--format",
            "--dispatch-format",
            help=f"Quantised format of rows: fp8 (DeepSeekFp8), {', '.join(FormatName)}.",
            callback=format_of,
        ),
    ] = None,
    fp8_combine: Annotated[
        bool, typer.Option("--fp8-combine", help="Send combined rows as FP8.")
    ] = False,
    transport: Annotated[
        TransportName, typer.Option(help="Transport to ask for.")
    ] = TransportName.auto,
    max_sms: Annotated[
        int | None, typer.Option(help="Most multiprocessors of a kernel.", min=1)
    ] = None,
    pdl: Annotated[
        bool | None, typer.Option("--pdl/--no-pdl", help="Programmatic dependent launch.")
    ] = None,
    mode: Annotated[ModeName, typer.Option(help="How GPU steps run.")] = ModeName.both,
    replays: Annotated[int, typer.Option(help="Replays of a CUDA graph.", min=20)] = 24,
    flashinfer: Annotated[bool, typer.Option(help="Measure FlashInfer if it imports.")] = True,
    in_place: Annotated[
        bool,
        typer.Option(
            "--combine-in-place/--combine-external",
            help="Expert output in the backend's combine buffer, or in a tensor of its own.",
        ),
    ] = True,
    iters: Annotated[int, typer.Option(help="Most iterations of a measurement.", min=4)] = 400,
    warmup: Annotated[int, typer.Option(help="Iterations before it.", min=1)] = 20,
    seconds: Annotated[float, typer.Option(help="Budget of a measurement.", min=0.01)] = 1.0,
    seed: Annotated[int, typer.Option(help="Of inputs.", min=0)] = 0,
    pin: Annotated[
        bool, typer.Option(help="Bind ranks to cores of their own where there are enough.")
    ] = True,
    baselines: Annotated[
        bool, typer.Option(help="Measure memcpy and Gloo, or NCCL, in the same run.")
    ] = True,
    jsonl: Annotated[
        Path | None, typer.Option(help="Append one JSON line a case to this file.", dir_okay=False)
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(help="Draw times into this file.", callback=check_plot)
    ] = None,
    revision: Annotated[
        str | None, typer.Option(help="Of the sources, where they are no checkout.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Time dispatch and combine, and memcpy and Gloo beside them.

    Every case is checked bit by bit before it is timed. docs/benchmarks.md says what is measured
    and how.
    """
    from ..bench.gpu.seat import GPU_BACKENDS
    from ..bench.gpu.worker import GpuEffort
    from ..bench.worker import Effort

    backend = choose_backend(backend)
    is_gpu = backend in GPU_BACKENDS
    if one_gpu and not is_gpu:
        raise typer.BadParameter(f"--one-gpu needs a GPU backend, got {backend}")
    ranks = choose_ranks(ranks, is_one_gpu=one_gpu) if is_gpu else ranks or 2
    shapes = shapes_of(model, hidden, top_k, experts)
    for shape in shapes:
        check_experts(shape.num_experts, ranks, shape.top_k)
    cases = [
        Case(
            model=shape.name,
            world_size=ranks,
            num_tokens=num_tokens,
            hidden_size=shape.hidden_size,
            top_k=shape.top_k,
            num_experts=shape.num_experts,
            dtype=dtype.value,
            format_name=format,
            routing=routing,
            seed=seed,
            backend=backend,
            threads=threads,
            is_in_place=in_place,
            is_fp8_combine=fp8_combine,
            transport=transport,
            max_sms=max_sms,
            pdl=pdl,
        )
        for shape in shapes
        for num_tokens in tokens_of(tokens)
    ]
    effort = Effort(iters, warmup, seconds, has_baselines=baselines)
    with failures_reported(), ExitStack() as stack:
        sinks: list[Callable[[str], object]] = []
        if jsonl is not None:
            sinks.append(stack.enter_context(jsonl.open("a", buffering=1, encoding="utf-8")).write)
        if is_gpu:
            modes = ("graph", "eager") if mode is ModeName.both else (mode.value,)
            gpu_effort = GpuEffort(
                modes, replays, has_baselines=baselines, has_flashinfer=baselines and flashinfer
            )
            rows = run_on_gpus(cases, gpu_effort, sinks, is_one_gpu=one_gpu, revision=revision)
        else:
            rows = _measure(cases, effort, sinks, is_pinned=pin, revision=revision)
        if plot is not None:
            from ..bench.plot import plot_rows

            plot_rows(rows, plot)
    if as_json:
        import json

        for row in rows:
            print(json.dumps(row))
        return
    out = console()
    for shape in shapes:
        chosen = [row for row in rows if row["model"] == shape.name]
        if chosen:
            if is_gpu:
                out.print(make_gpu_table(chosen))
                continue
            out.print(make_title(chosen[0]))
            out.print(make_table(chosen))
    out.print(GPU_LEGEND if is_gpu else LEGEND)
    if len({(row["model"], row["T"]) for row in rows}) < len(cases):
        raise typer.Exit(1)


def _measure(
    cases: list[Case],
    effort: Effort,
    sinks: list[Callable[[str], object]],
    *,
    is_pinned: bool,
    revision: str | None,
) -> list[dict[str, Any]]:
    """Run the cases that fit into memory, one after another; say which do not."""
    import json

    from ..bench.report import describe_run, make_row
    from ..bench.worker import measure_case
    from ..launch import RankTeam
    from ..machine.memory import available_bytes

    first = cases[0]
    rows: list[dict[str, Any]] = []
    run = describe_run(revision)
    timeout = _CASE_TIMEOUT_SEC + 10 * effort.seconds
    with (
        RankTeam(first.world_size, threads=first.threads, is_pinned=is_pinned) as team,
        progress_bar(auto_refresh=False) as progress,
    ):
        task = progress.add_task("starting ranks", total=len(cases))
        for case in cases:
            label = f"{case.model} T={case.num_tokens}"
            progress.update(task, description=label, refresh=True)
            free = available_bytes()
            if free is not None and case.memory_bytes > _MEMORY_SHARE * free:
                error_console().print(
                    f"left out: {label} would take {format_bytes(case.memory_bytes)} of "
                    f"{format_bytes(free)} free memory"
                )
                progress.advance(task)
                continue
            results = team.run(measure_case, case, effort, timeout=timeout)
            row = make_row(run, case, effort, results, is_pinned=team.is_pinned)
            rows.append(row)
            for write in sinks:
                write(json.dumps(row) + "\n")
            progress.advance(task)
    return rows
