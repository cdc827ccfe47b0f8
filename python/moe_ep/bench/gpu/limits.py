"""What this machine can do at best, measured in the run whose figures are held against it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from ..checks import CheckError
from .objects import new_event, new_stream

if TYPE_CHECKING:
    from collections.abc import Callable

    from ...launch import Seat

__all__ = ["COPY_BYTES", "measure_limits", "rate_gbps"]

COPY_BYTES = 256 << 20
_COPIES = 12
_EDGE = 2  # copies at either end that are not timed: the other direction may not run yet, or still
_NODES = 200
_ROUNDS = 5


def rate_gbps(num_bytes: float, milliseconds: float) -> float:
    """GB/s (10^9 bytes a second)."""
    return num_bytes / milliseconds / 1e6


def measure_limits(_seat: Seat) -> dict[str, Any]:
    """Describe the GPUs of this process and measure copies and graph nodes.

    Returns
    -------
    dict
        'gpu', 'gpus', 'compute_capability', 'memory_bytes', 'cuda', 'nccl', 'two_way_gbps' and
        'one_way_gbps' of copy engines between GPUs 0 and 1 (None where there is one GPU),
        'local_copy_gbps' (bytes copied, not read and written), 'graph_kernel_us' (from one tiny
        kernel to the next in a graph), 'notes' on what failed.
    """
    import torch

    torch.cuda.set_device(0)
    properties = torch.cuda.get_device_properties(0)
    found: dict[str, Any] = {
        "gpu": properties.name,
        "gpus": torch.cuda.device_count(),
        "compute_capability": [properties.major, properties.minor],
        "memory_bytes": torch.cuda.mem_get_info(0)[0],
        "cuda": torch.version.cuda,
        "nccl": _nccl_version(),
        "two_way_gbps": None,
        "one_way_gbps": None,
        "local_copy_gbps": None,
        "graph_kernel_us": None,
        "notes": [],
    }
    wanted: dict[str, Callable[[], float]] = {
        "local_copy_gbps": lambda: _copy_rate([(0, 0)]),
        "graph_kernel_us": _graph_kernel_us,
    }
    if found["gpus"] > 1:
        if torch.cuda.can_device_access_peer(0, 1):
            wanted["one_way_gbps"] = lambda: _copy_rate([(0, 1)])
            wanted["two_way_gbps"] = lambda: _copy_rate([(0, 1), (1, 0)])
        else:
            found["notes"].append("limits: GPU 0 cannot access the memory of GPU 1")
    for name, measure in wanted.items():
        try:
            found[name] = round(measure(), 3)
        except (RuntimeError, CheckError) as error:
            found["notes"].append(f"limits: {name} failed: {error}")
    return found


def _nccl_version() -> str | None:
    import torch.distributed as dist

    if not dist.is_nccl_available():
        return None
    from torch.cuda import nccl

    return ".".join(str(part) for part in cast("Any", nccl).version())


class _Direction:
    """Copies from one GPU to another, on streams of its own."""

    def __init__(self, source: int, target: int) -> None:
        import torch

        self._devices = (source, target)
        # A copy waits for the current streams of both GPUs: another direction has others.
        self._streams = [new_stream(device) for device in sorted({source, target})]
        shape = (COPY_BYTES // 8,)
        self._source = torch.full(shape, source + 5, dtype=torch.int64, device=f"cuda:{source}")
        self._target = torch.zeros(shape, dtype=torch.int64, device=f"cuda:{target}")
        with torch.cuda.device(source):
            self._start, self._end = (new_event() for _ in range(2))

    def enqueue(self) -> None:
        from contextlib import ExitStack

        import torch

        source = self._devices[0]
        with ExitStack() as stack:
            for stream in self._streams:
                stack.enter_context(torch.cuda.stream(stream))
            stack.enter_context(torch.cuda.device(source))
            # The copy runs on the current stream of the source.
            own = torch.cuda.current_stream(source)
            for index in range(_COPIES):
                if index == _EDGE:
                    self._start.record(own)
                if index == _COPIES - _EDGE:
                    self._end.record(own)
                self._target.copy_(self._source, non_blocking=True)

    def gbps(self) -> float:
        return rate_gbps((_COPIES - 2 * _EDGE) * COPY_BYTES, self._start.elapsed_time(self._end))

    def check(self) -> None:
        if not bool((self._target == self._devices[0] + 5).all()):
            raise CheckError("bench: a copy must bring what was sent, got other bytes")


def _copy_rate(ways: list[tuple[int, int]]) -> float:
    """GB/s of each direction, all of them at once: median over rounds, the slowest direction."""
    import torch

    directions = [_Direction(*way) for way in ways]
    rates = []
    for turn in range(_ROUNDS + 1):
        _synchronize(ways)
        for direction in directions:
            direction.enqueue()
        _synchronize(ways)
        if turn == 0:  # warms up, and is checked
            for direction in directions:
                direction.check()
            continue
        rates.append(min(direction.gbps() for direction in directions))
    directions.clear()
    torch.cuda.empty_cache()
    return sorted(rates)[len(rates) // 2]


def _synchronize(ways: list[tuple[int, int]]) -> None:
    import torch

    for device in sorted({device for way in ways for device in way}):
        torch.cuda.synchronize(device)


def _graph_kernel_us() -> float:
    """Microseconds from one tiny kernel to the next in a graph, their run time included."""
    import torch

    stream = new_stream()
    value = torch.zeros(1, device="cuda")
    marks = [new_event(is_external=True) for _ in range(2)]
    with torch.cuda.stream(stream):
        value.add_(1)
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        value.add_(1)
        marks[0].record(stream)
        for _ in range(_NODES):
            value.add_(1)
        marks[1].record(stream)
    times = []
    for turn in range(_ROUNDS * 4):
        with torch.cuda.stream(stream):
            graph.replay()
        stream.synchronize()
        if turn:
            times.append(marks[0].elapsed_time(marks[1]))
    graph.reset()
    return float(sorted(times)[len(times) // 2]) * 1e3 / _NODES
