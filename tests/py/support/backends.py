"""The backends that the behaviour suite runs on: one line each."""

import importlib
from dataclasses import dataclass, field, fields
from typing import Any

import moe_ep
from moe_ep.comm import LocalGroup, TorchDistBackend
from moe_ep.testing import RankContext, RankPool, spawn_ranks
from moe_ep.testing.functions import Call


@dataclass(frozen=True)
class Backend:
    """One way to run the suite.

    `options` are fields of the config class; `mode` says what a rank is.
    """

    id: str
    config: type
    mode: str
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.config().backend_name

    def has(self, option: str) -> bool:
        """Whether the backend's config knows this option."""
        return option in {known.name for known in fields(self.config)}

    def reason_to_skip(self) -> str:
        if self.name == "torch_dist":
            return ""
        try:
            importlib.import_module("moe_ep.backends.native")
        except ImportError as error:
            return f"not built: {error}"
        return ""


BACKENDS = {
    backend.id: backend
    for backend in (
        Backend("torch_dist", moe_ep.TorchDistConfig, "processes"),
        Backend("host-threads", moe_ep.HostAlltoAllConfig, "threads", {"lamport": False}),
        Backend("host-threads-lamport", moe_ep.HostAlltoAllConfig, "threads", {"lamport": True}),
        Backend("host-threads-counted", moe_ep.HostAlltoAllConfig, "threads", {"cft": True}),
        Backend("host-processes", moe_ep.HostAlltoAllConfig, "processes"),
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
    def bootstrap(self) -> moe_ep.BootstrapConfig:
        return moe_ep.BootstrapConfig(self.world_size, self.rank, process_group=self.group)

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
        if self.backend.mode == "threads":
            group = LocalGroup(world_size, timeout_sec=30)

            def run_thread(rank: int) -> Any:
                mine = Rank(self.backend, rank, world_size, group.backend(rank), None)
                return _run_program(mine, program, args)

            return spawn_ranks(run_thread, world_size, mode="threads", timeout=timeout)
        return self.pool.run(
            _run_in_process,
            self.backend.id,
            world_size,
            Call.of(program, args),
            ranks=range(world_size),
            timeout=timeout,
        )


def _run_in_process(context: RankContext, backend_id: str, world_size: int, call: Call) -> Any:
    group = context.state.group(tuple(range(world_size)))
    rank = Rank(
        BACKENDS[backend_id], context.rank, world_size, TorchDistBackend(group), group
    )
    return _run_program(rank, call, ())


def _run_program(rank: Rank, program: Any, args: tuple[Any, ...]) -> Any:
    try:
        return program(rank, *args)
    finally:
        rank.close()
