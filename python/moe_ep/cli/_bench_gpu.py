"""GPU cases of ``moe-ep bench``: what may be asked for, the run, and its table."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import typer

from ._console import error_console, progress_bar

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.table import Table

    from ..bench.cases import Case
    from ..bench.gpu.worker import GpuEffort

__all__ = ["GPU_LEGEND", "choose_backend", "choose_ranks", "make_gpu_table", "run_on_gpus"]

GPU_LEGEND = (
    "Medians in us of the slowest rank. host: time of the calls of a pair. GB/s: physical bytes "
    "out of a rank in a pair; link %: of the copy engines' two-way rate in this run. "
    "x/: that baseline's pair over this one."
)
_SHORT = {
    "nccl_gather_scatter": "AG+RS/",
    "nccl_all_to_all": "a2a/",
    "nccl_all_to_all_wire": "wire/",
    "flashinfer": "FlashInfer/",
}


def choose_backend(backend: str) -> str:
    """Take the one-sided GPU backend for 'auto' where it runs."""
    from ..bench.gpu.run import count_gpus
    from ..machine.backends import describe_backends

    if backend != "auto" or not count_gpus():
        return backend
    runs = describe_backends()["backends"]["nvlink_one_sided"]["runs"]
    return "nvlink_one_sided" if runs else backend


def choose_ranks(ranks: int | None, *, is_one_gpu: bool) -> int:
    """Ranks of a run on GPUs.

    Raises
    ------
    typer.BadParameter
        There are no GPUs, or fewer than ranks.
    """
    from ..bench.gpu.run import count_gpus

    gpus = count_gpus()
    if gpus == 0:
        raise typer.BadParameter("a GPU backend needs a GPU that torch sees, got none")
    if is_one_gpu:
        return ranks or 2
    if ranks is not None and ranks > gpus:
        raise typer.BadParameter(
            f"--ranks must be at most the number of GPUs ({gpus}), got {ranks}; with --one-gpu "
            "ranks are threads on one GPU"
        )
    return ranks or gpus


def run_on_gpus(
    cases: list[Case],
    effort: GpuEffort,
    sinks: list[Callable[[str], object]],
    *,
    is_one_gpu: bool,
    revision: str | None,
) -> list[dict[str, Any]]:
    """Measure the cases that fit, one after another; say which do not, and what failed."""
    from ..bench.gpu.run import GpuRun
    from ..bench.report import describe_run

    rows: list[dict[str, Any]] = []
    said: set[str] = set()
    described = describe_run(revision)
    run = GpuRun(cases[0].world_size, is_one_gpu=is_one_gpu)
    is_failed = True
    try:
        with progress_bar(auto_refresh=False) as progress:
            task = progress.add_task("measuring limits", total=len(cases))
            limits = run.start()
            _say(limits["notes"], said)
            for case in cases:
                label = f"{case.model} T={case.num_tokens}"
                progress.update(task, description=label, refresh=True)
                reason = run.leave_out(case)
                if reason:
                    error_console().print(f"left out: {label} {reason}")
                else:
                    made = run.measure(described, case, effort)
                    rows += made
                    _say(made[0]["notes"], said)
                    for row in made:
                        for write in sinks:
                            write(json.dumps(row) + "\n")
                progress.advance(task)
        is_failed = False
    finally:
        run.close(is_failed=is_failed)
    return rows


def _say(notes: list[str], said: set[str]) -> None:
    for note in notes:
        if note not in said:
            said.add(note)
            error_console().print(note, markup=False)


def make_gpu_table(rows: list[dict[str, Any]]) -> Table:
    """Make the table of one model: a line for each T and mode."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    first = rows[0]
    limits = ", ".join(f"{name} {value}" for name, value in first["limits"].items())
    table = Table(
        box=SIMPLE_HEAD,
        title=f"{first['backend']}, {first['model']}: R {first['R']}, H {first['H']}, "
        f"K {first['K']}, E {first['E']}, {first['dispatch_dtype']} dispatch, "
        f"{first['combine_wire']} combine, {first['routing']} routing; {first['gpu']}, "
        f"{first['git'] or first['version']}; {limits}",
    )
    baselines = list(dict.fromkeys(name for row in rows for name in row["baselines"]))
    columns = ["T", "mode", "path", "dispatch", "combine", "pair", "p99", "host", "GB/s", "link %"]
    for name in [*columns, "floor", *(_SHORT[name] for name in baselines)]:
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        pair = row["pair"]
        cells = [str(row["T"]), row["mode"], str(row["transport"])]
        cells += [_number(row[phase] and row[phase]["p50_us"]) for phase in ("dispatch", "combine")]
        cells += [_number(pair["p50_us"]), _number(pair["p99_us"])]
        cells += [_number(row["host"] and row["host"]["p50_us"]), _number(pair["physical_gbps"])]
        cells += [_number(pair["link_percent"]), _number(row["floor_us"])]
        for name in baselines:
            ratio = row["ratios"].get(f"pair_to_{name}")
            cells.append("-" if ratio is None else f"{1 / ratio:.2f}")
        table.add_row(*cells)
    return table


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}" if value < 100 else f"{value:.0f}"
