"""What a rank of the demo does."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING

from ..launch import open_communication
from ..moe_layer import Router, ShardedExperts, make_tokens
from .spec import Opened, StepReport

if TYPE_CHECKING:
    import torch

    from ..launch import Seat
    from ..moe_layer import LayerShape
    from .spec import DemoSpec

__all__ = ["close", "open_layer", "run_step"]


def open_layer(seat: Seat, spec: DemoSpec) -> Opened:
    """Make a rank's instance and its part of the layer."""
    import torch

    from ..config import MoEEpCommParams

    shape = spec.shape
    params = MoEEpCommParams(
        num_experts=shape.num_experts,
        top_k=shape.top_k,
        max_tokens_per_rank=spec.num_tokens,
        hidden_size=shape.hidden_size,
        dtype=shape.torch_dtype,
    )
    comm = open_communication(
        seat,
        params,
        spec.backend,
        num_threads=spec.threads,
        timeout_sec=math.ceil(spec.timeout_sec),
    )
    device = getattr(comm, "device", torch.device("cpu"))
    seat.objects.update(
        spec=spec,
        device=device,
        comm=comm,
        router=Router(shape),
        experts=ShardedExperts(shape, seat.rank, seat.world_size, device),
    )
    return Opened(type(comm).__name__, getattr(comm, "workspace_bytes", None))


def run_step(seat: Seat, step_idx: int) -> StepReport:
    """Run the layer once on this rank's tokens."""
    spec, comm = seat.objects["spec"], seat.objects["comm"]
    shape = spec.shape
    tokens = make_tokens(shape, spec.num_tokens, step_idx, seat.rank)
    topk_ids, topk_weights = seat.objects["router"](tokens)
    rows_to = _rows_to(topk_ids, shape, seat.world_size)
    device = seat.objects["device"]
    tokens, topk_ids, topk_weights = (
        tensor.to(device) for tensor in (tokens, topk_ids, topk_weights)
    )
    seat.comm.barrier()
    clock = time.perf_counter
    start = clock()
    received = comm.dispatch(tokens, topk_ids, topk_weights)
    _wait(device)
    dispatched = clock()
    rows = comm.get_combine_input_buffer(shape.torch_dtype)
    if rows is None:
        rows = received.hidden_states.new_empty(received.hidden_states.shape)
    seat.objects["experts"](received.hidden_states, received.topk_ids, received.topk_weights, rows)
    num_received = int(received.recv_counts.sum())
    computed = clock()
    output = comm.combine(rows)
    _wait(device)
    combined = clock()
    return StepReport(
        output=output.cpu(),
        seconds={
            "dispatch": dispatched - start,
            "experts": computed - dispatched,
            "combine": combined - computed,
        },
        rows_to=rows_to,
        num_received=num_received,
        transport=comm.last_transport,
    )


def _wait(device: torch.device) -> None:
    """On GPUs steps are only enqueued."""
    if device.type == "cuda":
        import torch

        torch.cuda.synchronize(device)


def _rows_to(topk_ids: torch.Tensor, shape: LayerShape, world_size: int) -> list[int]:
    """Tokens for each rank: a token goes to a rank once, however many of its experts are there."""
    owners = topk_ids.long() // (shape.num_experts // world_size)
    visits = owners.new_zeros(len(owners), world_size).scatter_(1, owners, 1)
    counts: list[int] = visits.sum(dim=0).tolist()
    return counts


def close(seat: Seat) -> None:
    """Give the instance back."""
    seat.objects["comm"].destroy()
    seat.objects.clear()
