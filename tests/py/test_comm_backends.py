"""Comm backends: one suite over all of them, and what is special to each."""

import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch.distributed as dist

import moe_ep
from moe_ep.comm import (
    LocalGroup,
    MPIBackend,
    TCPStoreBackend,
    TorchDistBackend,
    UnixSocketBackend,
    default_comm_backend,
)
from moe_ep.comm.default import SingleRankBackend, check_comm_backend
from moe_ep.testing import spawn_ranks
from support.comm_suite import check_all


def over_torch(context, members):
    group = context.state.group(members)
    check_all(TorchDistBackend(group), members.index(context.rank), len(members))


def make_group(context, members):
    context.state.make_group(members)


@pytest.mark.parametrize(
    "members", [(0, 1, 2), (1, 2, 3, 4), (0, 2, 5), (7, 3, 5), (0, 1, 2, 3, 4, 5, 6, 7)], ids=str
)
def test_torch_groups(ranks, members):
    """FR-143: subgroups with and without global rank 0."""
    members = tuple(sorted(members))
    ranks.run(make_group, members)
    ranks.run(over_torch, members, ranks=members)


def over_reversed_group(context, members):
    group = dist.new_group(list(members), sort_ranks=False)
    if context.rank in members:
        backend = TorchDistBackend(group)
        assert dist.get_process_group_ranks(backend.group) == list(members)
        check_all(backend, members.index(context.rank), len(members))


@pytest.mark.parametrize("members", [(3, 1, 0), (6, 5, 4, 3)], ids=str)
def test_torch_groups_in_another_order(ranks, members):
    """FR-143: ranks are those of the group, not of the world."""
    ranks.run(over_reversed_group, members)


def over_overlapping_groups(context, left, right):
    for members in (left, right, left):
        if context.rank in members:
            comm = TorchDistBackend(context.state.group(members))
            assert comm.allgather(context.rank) == members


def test_torch_groups_that_overlap(ranks):
    """FR-143: {0, 2} and {1, 2}, one after the other."""
    for members in ((0, 2), (1, 2)):
        ranks.run(make_group, members)
    ranks.run(over_overlapping_groups, (0, 2), (1, 2))


def outside_of_group(context):
    group = dist.new_group([0, 1])
    if context.rank < 2:
        return TorchDistBackend(group).Get_size()
    with pytest.raises(ValueError, match="must be in the process group"):
        TorchDistBackend(group)
    return None


def test_torch_group_without_this_process(ranks):
    assert ranks.run(outside_of_group)[:3] == [2, 2, None]


def test_torch_backend_without_torch_distributed():
    with pytest.raises(moe_ep.MoEEpError, match="init_process_group"):
        TorchDistBackend()
    with pytest.raises(moe_ep.MoEEpError, match="init_process_group"):
        TorchDistBackend("group")


def test_torch_backend_of_something_else(ranks):
    ranks.run(refuse_what_is_no_group)


def refuse_what_is_no_group(context):
    with pytest.raises(
        TypeError, match=r"must be a torch\.distributed ProcessGroup or None, got str"
    ):
        TorchDistBackend("group")


STORES = {
    "TCPStore": lambda path: dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False),
    "HashStore": lambda path: dist.HashStore(),
    "FileStore": lambda path: dist.FileStore(str(path / "store"), -1),
    "PrefixStore": lambda path: dist.PrefixStore("mine", dist.HashStore()),
}


@pytest.fixture(params=list(STORES))
def store(request, tmp_path):
    return STORES[request.param](tmp_path)


def over_store(rank, store, size):
    check_all(TCPStoreBackend(store, rank, size), rank, size)


def test_stores(store):
    """Ranks that are threads share one store object."""
    spawn_ranks(over_store, 4, mode="threads", args=(store, 4))
    spawn_ranks(over_store, 3, mode="threads", args=(store, 3))  # another group, the same store


def test_a_store_is_left_clean():
    store = dist.HashStore()
    spawn_ranks(over_store, 3, mode="threads", args=(store, 3))
    assert store.num_keys() == 3, "only the ranks' counters stay"


def over_tcp_clients(context, port):
    store = dist.TCPStore("localhost", port, is_master=False)
    check_all(TCPStoreBackend(store, context.rank, 3), context.rank, 3)


def test_store_of_processes(ranks):
    server = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    ranks.run(over_tcp_clients, server.port, ranks=range(3))


def late_rank(rank, store):
    comm = TCPStoreBackend(store, rank, 3, timeout_sec=2)
    if rank == 1:
        return None
    started = time.monotonic()
    with pytest.raises(moe_ep.MoEEpTimeoutError, match=r"within 2 s, got nothing from ranks") as e:
        comm.allgather(rank)
    assert time.monotonic() - started < 20
    return e.value.ranks, e.value.phase


def test_a_store_names_the_rank_that_is_missing():
    assert spawn_ranks(late_rank, 3, mode="threads", args=(dist.HashStore(),)) == [
        ((1,), "setup"),
        None,
        ((1,), "setup"),
    ]


def restarted(rank, store, generations):
    for generation in range(generations):
        comm = TCPStoreBackend(store, rank, 2)  # as a new process would
        assert comm.allgather((generation, rank)) == ((generation, 0), (generation, 1))


def test_backends_on_one_store_do_not_meet():
    """FR-123: each further backend has keys of its own."""
    spawn_ranks(restarted, 2, mode="threads", args=(dist.HashStore(), 5))


@pytest.mark.parametrize(
    ("arguments", "kind"),
    [((0, 0), ValueError), ((2, 2), ValueError), ((0, 257), ValueError), ((0, 2.0), TypeError)],
)
def test_store_ranks_are_checked(arguments, kind):
    with pytest.raises(kind, match="TCPStoreBackend: "):
        TCPStoreBackend(dist.HashStore(), *arguments)


def test_store_must_be_one():
    with pytest.raises(TypeError, match=r"store must be a torch\.distributed store, got dict"):
        TCPStoreBackend({}, 0, 2)
    with pytest.raises(ValueError, match="timeout_sec must lie in"):
        TCPStoreBackend(dist.HashStore(), 0, 2, timeout_sec=0)


@pytest.mark.mpi
def test_mpi():
    """The suite under mpirun, where there is one."""
    pytest.importorskip("mpi4py")
    mpirun = Path(sys.executable).parent / "mpirun"
    command = str(mpirun) if mpirun.exists() else shutil.which("mpirun")
    if command is None:
        pytest.skip("there is no mpirun")
    program = Path(__file__).parent / "mpi_program.py"
    result = subprocess.run(
        [command, "--oversubscribe", "-n", "3", sys.executable, str(program)],
        env={**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("ok") == 3


@pytest.mark.mpi
def test_mpi_communicator_must_be_one():
    pytest.importorskip("mpi4py")
    code = (
        "from moe_ep.comm import MPIBackend\n"
        "try:\n    MPIBackend('x')\nexcept TypeError as error:\n    print(error)\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=100
    )
    assert "intracommunicator or None, got str" in result.stdout, result.stderr


def test_mpi_without_mpi4py(monkeypatch):
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    with pytest.raises(moe_ep.MoEEpError, match="mpi4py must be importable"):
        MPIBackend()


class StandIn:
    """Members of a group of threads, moving bytes as the compiled module's classes do."""

    def __init__(self, size, timeout_sec):
        self.size, self.timeout_sec = size, timeout_sec
        self.meeting = threading.Barrier(size, timeout=timeout_sec)
        self.slots = [None] * size
        self.parts = {}

    def backend(self, rank):
        return StandInMember(self, rank)


class StandInMember:
    def __init__(self, group, rank):
        self.group, self.rank = group, rank

    def get_rank(self):
        return self.rank

    def get_size(self):
        return self.group.size

    def exchange(self, entry):
        self.group.slots[self.rank] = entry
        self.group.meeting.wait()
        entries = list(self.group.slots)
        self.group.meeting.wait()
        return entries

    def allgather(self, message):
        assert type(message) is bytes
        return self.exchange(message)

    def bcast(self, message, root):
        assert type(message) is bytes
        return self.exchange(message)[root]

    def barrier(self):
        self.exchange(None)

    def split(self, color, key):
        entries = self.exchange((color, key))
        members = sorted((k, r) for r, (c, k) in enumerate(entries) if c == color)
        group = StandIn(len(members), self.group.timeout_sec)
        created = self.exchange(group)
        return StandInMember(created[members[0][1]], members.index((key, self.rank)))


class StandInCore:
    LocalGroup = StandIn

    @staticmethod
    def UnixSocketBackend(path, rank, world_size, timeout_sec):
        return (path, rank, world_size, timeout_sec)


@pytest.fixture
def stand_in_core(monkeypatch):
    monkeypatch.setattr("moe_ep.comm.native._core", lambda: StandInCore)


def over_local(rank, group, size):
    assert group.backend(rank) is group.backend(rank)
    check_all(group.backend(rank), rank, size)


def test_local_group_over_a_stand_in(stand_in_core):
    group = LocalGroup(4, timeout_sec=20)
    assert group.size == 4
    spawn_ranks(over_local, 4, mode="threads", args=(group, 4))


def test_unix_socket_backend_passes_its_arguments(stand_in_core, tmp_path):
    backend = UnixSocketBackend(tmp_path / "socket", 1, 3, timeout_sec=7)
    assert backend.core == (str(tmp_path / "socket"), 1, 3, 7)


@pytest.mark.parametrize("size", [0, 257, True])
def test_local_group_size_is_checked(stand_in_core, size):
    with pytest.raises(ValueError, match="LocalGroup: size must be"):
        LocalGroup(size)
    with pytest.raises(ValueError, match="rank must be"):
        LocalGroup(2).backend(2)
    with pytest.raises(ValueError, match="UnixSocketBackend: rank"):
        UnixSocketBackend("x", 2, 2)


@pytest.fixture
def core():
    pytest.importorskip("moe_ep._core")


def test_local_group(core):
    group = LocalGroup(4, timeout_sec=20)
    spawn_ranks(over_local, 4, mode="threads", args=(group, 4))


def over_unix_socket(context, path, size):
    check_all(UnixSocketBackend(path, context.rank, size, timeout_sec=20), context.rank, size)


def test_unix_socket(core, ranks, tmp_path):
    path = str(tmp_path / "socket")
    ranks.run(over_unix_socket, path, 4, ranks=range(4))
    assert not os.path.exists(path)


def test_group_of_one():
    comm = SingleRankBackend()
    assert (comm.Get_rank(), comm.Get_size()) == (0, 1)
    assert comm.allgather("x") == ("x",)
    assert comm.bcast("x", 0) == "x"
    comm.barrier()
    assert comm.Split(1, 1).allgather(2) == (2,)
    with pytest.raises(ValueError, match="root must be 0"):
        comm.bcast("x", 1)


def bootstrap(world_size=2, rank=0, **changes):
    return moe_ep.BootstrapConfig(world_size, rank, **changes)


class Given:
    """A comm backend of two ranks that is told apart by what it is."""

    def Get_rank(self):
        return 0

    def Get_size(self):
        return 2

    def allgather(self, obj):
        return [obj, obj]

    def bcast(self, obj, root):
        return obj

    def barrier(self):
        pass

    def Split(self, color, key):
        return self


def test_the_config_s_comm_backend_comes_first():
    comm = Given()
    config = moe_ep.HostAlltoAllConfig(comm_backend=comm)
    assert default_comm_backend(bootstrap(tcp_store=dist.HashStore()), config) is comm


def test_the_store_comes_next():
    comm = default_comm_backend(bootstrap(tcp_store=dist.HashStore()), moe_ep.HostAlltoAllConfig())
    assert isinstance(comm, TCPStoreBackend)
    assert (comm.Get_rank(), comm.Get_size()) == (0, 2)


def test_one_rank_needs_nothing():
    assert default_comm_backend(bootstrap(1)).allgather(5) == (5,)


def test_several_ranks_need_something():
    with pytest.raises(moe_ep.MoEEpError) as caught:
        default_comm_backend(bootstrap(2), operation="HostAlltoAll")
    for words in ("HostAlltoAll: 2 ranks", "comm_backend", "tcp_store", "process_group"):
        assert words in str(caught.value)


def test_a_backend_of_another_size_is_refused():
    """FR-021, FR-144: at once, without a collective."""
    comm = Given()
    comm.allgather = None.__init__
    config = moe_ep.HostAlltoAllConfig(comm_backend=comm)
    with pytest.raises(ValueError, match=r"world_size = 3 ranks, got Get_size\(\) = 2"):
        default_comm_backend(bootstrap(3), config)


@pytest.mark.parametrize("method", ["Get_rank", "allgather", "Split"])
def test_a_backend_without_a_method_is_refused(method):
    """FR-165: the message names what is missing."""
    comm = Given()
    setattr(comm, method, None)
    with pytest.raises(TypeError, match=f"got Given without {method}"):
        check_comm_backend("x", comm)


def groups_by_default(context):
    comm = default_comm_backend(moe_ep.BootstrapConfig(8, context.rank))
    assert comm.group is dist.group.WORLD
    part = context.state.group((0, 1, 2))
    if context.rank < 3:
        given = moe_ep.BootstrapConfig(3, context.rank, process_group=part)
        assert default_comm_backend(given).group is part
        store = moe_ep.BootstrapConfig(
            3, context.rank, process_group=part, tcp_store=dist.HashStore()
        )
        assert isinstance(default_comm_backend(store), TCPStoreBackend)
    assert default_comm_backend(moe_ep.BootstrapConfig(1, 0)).allgather(1) == (1,)
    with pytest.raises(ValueError, match=r"got Get_size\(\) = 8"):
        default_comm_backend(moe_ep.BootstrapConfig(4, context.rank % 4))


def test_groups_come_last(ranks):
    ranks.run(groups_by_default)
