"""moe-ep inspect: ranks that hang are seen from outside, and who they wait for."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from moe_ep.cli.app import app
from moe_ep.inspection import inspect_processes, processes

# argv: socket, JSON of config options, where rank 1 stops itself. Forks the ranks, as importing
# torch is what takes time, and prints their process ids.
PROGRAM = """
import json, os, signal, sys
import torch
import moe_ep
import moe_ep.backends.native
from moe_ep.comm import UnixSocketBackend

socket, options, where = sys.argv[1:]


def run(rank):
    comm = moe_ep.HostAlltoAll(
        moe_ep.BootstrapConfig(3, rank),
        moe_ep.MoEEpCommParams(6, 4, 8, 64),
        moe_ep.HostAlltoAllConfig(
            comm_backend=UnixSocketBackend(socket, rank, 3), timeout_sec=100, **json.loads(options)
        ),
    )
    x = torch.ones(1, 64, dtype=torch.bfloat16)
    ids = torch.tensor([[0, 1, 2, 5]])

    def stop(here):
        if rank == 1 and where == here:
            os.kill(os.getpid(), signal.SIGSTOP)

    for number in (1, 2):
        stop(f"before dispatch {number}")
        comm.dispatch(x, ids)
        stop(f"before combine {number}")
        comm.combine(torch.zeros(24, 64, dtype=torch.bfloat16))


pids = []
for rank in range(3):
    pid = os.fork()
    if pid == 0:
        run(rank)
        sys.exit(0)
    pids.append(pid)
print(json.dumps(pids), flush=True)
for pid in pids:
    os.waitpid(pid, 0)
"""


@pytest.fixture
def start(tmp_path):
    """Start three ranks, of which rank 1 stops itself; returns their process ids."""
    started = []

    def run(where, **options):
        process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, tmp_path / "socket", json.dumps(options), where],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        started.append(process)
        return json.loads(process.stdout.readline())

    yield run
    for process in started:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def wait_until(pids, holds):
    """Look until the report is the expected one; processes are on their way to it."""
    deadline = time.monotonic() + 60
    while True:
        reports = inspect_processes(pids)
        if len(reports) == 1 and len(reports[0].slices) == 3 and holds(reports[0]):
            return reports[0]
        assert time.monotonic() < deadline, reports
        os.sched_yield()


def states(report):
    return [(slice_.step, slice_.state, slice_.waits_for) for slice_ in report.slices]


TRANSPORTS = {
    "fence": {"lamport": False},
    "lamport": {"lamport": True, "lamport_max_tokens": 8},
    "counted": {"cft": True},
}


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_rank_that_stops_in_a_step_is_behind(start, transport):
    ranks = start("before combine 2", **TRANSPORTS[transport])
    report = wait_until(
        [ranks[0]],
        lambda report: (
            states(report)
            == [
                (2, "waits in combine", [1]),
                (2, "between dispatch and combine", []),
                (2, "waits in combine", [1]),
            ]
        ),
    )
    assert report.behind == [1]
    assert "rank 1 is behind: the last word was the dispatch of step 2" in report.explanation
    assert [slice_.pid for slice_ in report.slices] == ranks
    assert report.unseen == []
    assert report.num_ranks == 3
    assert report.max_tokens == 8
    heard = report.slices[0].peers[1]
    # Every token has picks on all three ranks.
    assert (heard["rows_received"], heard["rows_sent"]) == (1, 1)
    if transport != "lamport":
        assert heard["transport"] == transport
        assert (heard["dispatch_flag"], heard["combine_flag"]) == (2, 1)
    else:
        assert sorted(heard["line_tags"]) == [1, 2]

    # The command says the same, of any of the ranks, and of all processes.
    out = CliRunner().invoke(app, ["inspect", str(ranks[2])])
    assert out.exit_code == 0, out.output
    assert "rank 1 is behind: the last word was the dispatch of step 2" in out.stdout
    assert "between dispatch and combine" in out.stdout
    found = json.loads(CliRunner().invoke(app, ["inspect", "--json"]).stdout)
    mine = [entry for entry in found if entry["slices"][0]["pid"] == ranks[0]]
    assert [entry["behind"] for entry in mine] == [[1]]


def test_a_rank_that_does_not_dispatch_is_behind(start):
    ranks = start("before dispatch 2")
    report = wait_until(
        [ranks[1]],
        lambda report: (
            states(report)
            == [
                (2, "waits in dispatch", [1]),
                (1, "done with the step", []),
                (2, "waits in dispatch", [1]),
            ]
        ),
    )
    assert report.behind == [1]
    assert report.explanation.endswith("the last word was the combine of step 1")


def test_processes_without_slices():
    assert inspect_processes([os.getpid()]) == []
    out = CliRunner().invoke(app, ["inspect", str(os.getpid())])
    assert out.exit_code == 1
    assert "got none among these processes" in out.stderr


def test_processes_that_are_not_there_or_not_ours(monkeypatch):
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    out = CliRunner().invoke(app, ["inspect", str(child.pid)])
    assert out.exit_code == 1
    assert f"a process must be running, got {child.pid}" in out.stderr
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    with pytest.raises(PermissionError, match=r"must be of this user \(12345\)"):
        inspect_processes([os.getpid()])


def test_a_memory_map_that_may_not_be_read_is_said(monkeypatch):
    """A process of this user may still refuse to be looked at."""

    def refuse(_path):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_text", refuse)
    with pytest.raises(PermissionError, match="memory map of process 7 must be readable"):
        processes.views(7)
