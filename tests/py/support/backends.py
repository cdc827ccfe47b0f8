"""The backends that the behaviour suite runs on: one line each."""

from dataclasses import dataclass, field, fields
from typing import Any

import pytest
import torch

import moe_ep
from moe_ep.comm import LocalGroup, TorchDistBackend
from moe_ep.registry import communication_class
from moe_ep.testing import RankContext, RankPool, spawn_ranks
from moe_ep.testing.functions import Call


@dataclass(frozen=True)
class Backend:
    """One way to run the suite.

    `mode` says what a rank is: 'processes' of the pool or 'threads' of this process. `options` are
    fields of the config class. `device` is where the tensors lie; ranks take the GPUs in turn.
    `group` is the torch.distributed backend of the processes' group; 'nccl' needs a GPU a rank.
    """

    id: str
    config: type
    mode: str
    options: dict[str, Any] = field(default_factory=dict)
    device: str = "cpu"
    group: str = "gloo"

    @property
    def name(self) -> str:
        return self.config().backend_name

    def has(self, option: str) -> bool:
        """Whether the backend's config knows this option."""
        return option in {known.name for known in fields(self.config)}

    def fits_machine(self) -> bool:
        return self.device == "cpu" or torch.cuda.is_available()

    def reason_to_skip(self) -> str:
        try:
            cls = communication_class(self.name)
        except ImportError as error:
            return f"not built: {error}"
        return cls.explain_platform()

    def reason_to_skip_size(self, world_size: int) -> str:
        # Processes on one GPU take turns of milliseconds, which makes steps as slow.
        own_gpu = self.group == "nccl" or (self.mode, self.device) == ("processes", "cuda")
        if own_gpu and world_size > torch.cuda.device_count():
            return f"{world_size} ranks need as many GPUs"
        return ""

    def device_of(self, rank: int) -> torch.device:
        if self.device == "cpu":
            return torch.device("cpu")
        return torch.device("cuda", rank % torch.cuda.device_count())


# Every step takes Lamport that can, whatever its T.
_EVERY_LAMPORT = {"lamport": True, "lamport_max_tokens": 1 << 20}
_ANY_LINK = {"require_nvlink": False}

BACKENDS = {
    backend.id: backend
    for backend in (
        Backend("torch_dist", moe_ep.TorchDistConfig, "processes"),
        Backend("host-threads", moe_ep.HostAlltoAllConfig, "threads"),
        Backend("host-processes", moe_ep.HostAlltoAllConfig, "processes"),
        # Among processes both run in the C++ suite.
        Backend("host-lamport", moe_ep.HostAlltoAllConfig, "threads", _EVERY_LAMPORT),
        Backend("host-counted", moe_ep.HostAlltoAllConfig, "threads", {"cft": True}),
        Backend("torch_dist-staged", moe_ep.TorchDistConfig, "processes", device="cuda"),
        Backend("torch_dist-nccl", moe_ep.TorchDistConfig, "processes", {}, "cuda", "nccl"),
        Backend("nvlink-processes", moe_ep.NVLinkOneSidedConfig, "processes", device="cuda"),
        Backend(
            "nvlink-threads",
            moe_ep.NVLinkOneSidedConfig,
            "threads",
            {**_ANY_LINK, "lamport": False},
            "cuda",
        ),
        Backend(
            "nvlink-lamport",
            moe_ep.NVLinkOneSidedConfig,
            "threads",
            {**_ANY_LINK, **_EVERY_LAMPORT},
            "cuda",
        ),
    )
}


class Rank:
    """What a program knows of the rank it runs as, and how it makes instances."""

    def __init__(self, backend: Backend, rank: int, world_size: int, comm: Any, group: Any) -> None:
        self.backend = backend
        self.rank = rank
        self.world_size = world_size
        self.comm = comm
        self.group = group
        self._instances: list[moe_ep.MoEEpCommunication] = []

    @property
    def device(self) -> torch.device:
        return self.backend.device_of(self.rank)

    @property
    def bootstrap(self) -> moe_ep.BootstrapConfig:
        device = self.device
        return moe_ep.BootstrapConfig(
            self.world_size, self.rank, process_group=self.group, device=device.index
        )

    def config(self, **options: Any) -> Any:
        """Config with the backend's own options and these."""
        merged = {**self.backend.options, **options}
        if self.backend.has("comm_backend"):
            merged.setdefault("comm_backend", self.comm)
        return self.backend.config(**merged)

    def create(self, params: moe_ep.MoEEpCommParams, **options: Any) -> moe_ep.MoEEpCommunication:
        """Instance that is destroyed at the end of the program."""
        instance = moe_ep.create_communication(self.bootstrap, params, self.config(**options))
        self._instances.append(instance)
        return instance

    def close(self) -> None:
        for instance in self._instances:
            instance.destroy()


@dataclass
class BoundBackend:
    """A backend with the processes to run on; what the `backend` fixture gives."""

    backend: Backend
    pool: RankPool

    def has(self, option: str) -> bool:
        return self.backend.has(option)

    def run(self, world_size: int, program: Any, *args: Any, timeout: float = 60.0) -> list[Any]:
        """Run ``program(rank, *args)`` on every rank, `rank` being a `Rank`."""
        reason = self.backend.reason_to_skip_size(world_size)
        if reason:
            pytest.skip(reason)
        if self.backend.mode == "threads":
            group = LocalGroup(world_size, timeout_sec=30)

            def run_thread(rank: int) -> Any:
                mine = Rank(self.backend, rank, world_size, group.backend(rank), None)
                return run_program(mine, program, args)

            return spawn_ranks(run_thread, world_size, mode="threads", timeout=timeout)
        members = tuple(range(world_size))
        if self.backend.group != "gloo":
            self.pool.run(_make_group, members, self.backend.group)
        return self.pool.run(
            _run_in_process,
            self.backend.id,
            members,
            Call.of(program, args),
            ranks=members,
            timeout=timeout,
        )


def _make_group(context: RankContext, members: tuple[int, ...], kind: str) -> None:
    context.state.make_group(members, kind)


def _run_in_process(
    context: RankContext, backend_id: str, members: tuple[int, ...], call: Call
) -> Any:
    backend = BACKENDS[backend_id]
    group = context.state.group(members, backend.group)
    rank = Rank(backend, context.rank, len(members), TorchDistBackend(group), group)
    return run_program(rank, call, ())


def fill_memory_cache() -> None:
    """Give torch memory to hand out on this stream: fresh memory may have to wait for kernels of
    other ranks, which wait for this one.
    """
    small = [torch.empty(1 << 19, dtype=torch.uint8) for _ in range(32)]
    large = torch.empty(32 << 20, dtype=torch.uint8)
    del small, large


def run_program(rank: Rank, program: Any, args: tuple[Any, ...]) -> Any:
    """Run a program with its rank's device as torch's default, on a stream of its own."""
    device = rank.backend.device_of(rank.rank)
    try:
        if device.type == "cpu":
            return program(rank, *args)
        with torch.cuda.device(device), torch.cuda.stream(torch.cuda.Stream(device)), device:
            fill_memory_cache()
            return program(rank, *args)
    finally:
        rank.close()
