"""``moe-ep plan``: memory of a workspace and traffic of a step, without allocating anything."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..limits import MAX_RANKS, MAX_TOP_K
from ..models import MODELS
from ._console import console, failures_reported, format_bytes
from ._options import DtypeName, FormatName, JsonOption, check_experts, check_model, quant_format

if TYPE_CHECKING:
    from ..planning import Plan

__all__ = ["plan"]


def plan(
    model: Annotated[
        str | None,
        typer.Option(help=f"Take sizes from a model: {', '.join(MODELS)}.", callback=check_model),
    ] = None,
    ranks: Annotated[int, typer.Option(help="Ranks.", min=1, max=MAX_RANKS)] = 2,
    tokens: Annotated[int, typer.Option(help="Most tokens of a rank in one step.", min=1)] = 1024,
    hidden: Annotated[int | None, typer.Option(help="Elements of a token.", min=1)] = None,
    top_k: Annotated[
        int | None, typer.Option(help="Experts of a token.", min=1, max=MAX_TOP_K)
    ] = None,
    experts: Annotated[
        int | None, typer.Option(help="Experts, a multiple of --ranks.", min=1)
    ] = None,
    dtype: Annotated[DtypeName, typer.Option(help="Element type of combine.")] = DtypeName.bf16,
    format: Annotated[  # noqa: A002
        FormatName | None, typer.Option(help="Quantised format of dispatched rows.")
    ] = None,
    extra: Annotated[
        int, typer.Option(help="Bytes a token reserved for further payloads.", min=0)
    ] = 0,
    eplb: Annotated[
        int, typer.Option(help="Length of gathered load statistics, 0 for none.", min=0)
    ] = 0,
    lamport: Annotated[
        bool | None, typer.Option(help="Force the Lamport transport on or off.")
    ] = None,
    lamport_max_tokens: Annotated[
        int | None, typer.Option(help="Largest Lamport step.", min=1)
    ] = None,
    cft: Annotated[bool | None, typer.Option(help="Force counted writes on or off.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Say what a workspace takes and what a step moves. Allocates nothing.

    Sizes come from --model (deepseek-v3 unless all three are given); --hidden, --top-k and
    --experts replace single ones. Traffic is that of uniform random routing at --tokens.
    """
    from ..config import HostAlltoAllConfig
    from ..planning import Sizes, make_plan

    shape = MODELS[model or "deepseek-v3"]
    sizes = Sizes(
        world_size=ranks,
        num_experts=shape.num_experts if experts is None else experts,
        top_k=shape.top_k if top_k is None else top_k,
        max_tokens_per_rank=tokens,
        hidden_size=shape.hidden_size if hidden is None else hidden,
        dtype=dtype.value,
        dispatch_format=quant_format(format),
    )
    options = HostAlltoAllConfig(
        extra_payload_bytes_per_token=extra,
        eplb_stats_num_experts=eplb,
        lamport=lamport,
        lamport_max_tokens=lamport_max_tokens,
        cft=cft,
    )
    check_experts(sizes.num_experts, sizes.world_size, sizes.top_k)
    with failures_reported():
        try:
            made = make_plan(sizes, options)
        except ValueError as error:
            raise typer.BadParameter(str(error)) from None
    if as_json:
        import json

        print(json.dumps(_as_json(made), indent=2))
    else:
        _print(made)


def _as_json(made: Plan) -> dict[str, Any]:
    record = asdict(made)
    chosen = made.sizes.dispatch_format
    record["sizes"]["dispatch_format"] = None if chosen is None else chosen.name
    record["bytes_all_ranks"] = made.bytes_per_rank * made.sizes.world_size
    return record


def _print(made: Plan) -> None:
    from rich.table import Table

    out, sizes = console(), made.sizes
    rows = sizes.dtype if sizes.dispatch_format is None else sizes.dispatch_format.name
    out.print(
        f"R {sizes.world_size}, T {sizes.max_tokens_per_rank}, H {sizes.hidden_size}, "
        f"K {sizes.top_k}, E {sizes.num_experts}; {rows} rows of {made.row_bytes} B with ids and "
        f"weights, {sizes.dtype} combine rows of {made.combine_row_bytes} B"
    )
    memory = Table(title="Workspace of a rank", title_justify="left")
    for name in ("region", "offset", "bytes", "", "share"):
        memory.add_column(name, justify="left" if name == "region" else "right")
    for region in made.regions:
        memory.add_row(
            region.name,
            f"{region.offset:,}",
            f"{region.num_bytes:,}",
            format_bytes(region.num_bytes),
            f"{region.num_bytes / made.bytes_per_rank:.2%}",
        )
    memory.add_section()
    total = made.bytes_per_rank
    memory.add_row("total", "", f"{total:,}", format_bytes(total), "100.00%", style="bold")
    out.print(memory)
    out.print(
        f"All {sizes.world_size} ranks: {format_bytes(total * sizes.world_size)}. "
        f"Beyond rows: {format_bytes(total - made.payload_bytes)}."
    )
    traffic = Table(title="Sent by a rank in a step (uniform random routing)", title_justify="left")
    for name in ("phase", "rows", "physical", "logical"):
        traffic.add_column(name, justify="left" if name == "phase" else "right")
    rows_sent = sizes.max_tokens_per_rank * made.ranks_per_token
    step = made.step
    phases = (
        ("dispatch", step.dispatch_physical, step.dispatch_logical),
        ("combine", step.combine_physical, step.combine_logical),
    )
    for phase, physical, logical in phases:
        traffic.add_row(phase, f"{rows_sent:,.0f}", format_bytes(physical), format_bytes(logical))
    out.print(traffic)
    out.print(
        f"A token visits {made.ranks_per_token:.3f} ranks, {made.remote_ranks_per_token:.3f} of "
        "them remote. Logical bytes count what a rank sends itself."
    )
