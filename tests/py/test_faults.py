"""Interpreters that fork, are interrupted or end at an unfortunate moment break nothing."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

WORLD = 2

PREAMBLE = """
import os, signal, sys, threading, time
import torch
import moe_ep
from moe_ep.comm import UnixSocketBackend

rank = int(sys.argv[1])
group = UnixSocketBackend(sys.argv[2] + "/group", rank, 2)
comm = moe_ep.HostAlltoAll(
    moe_ep.BootstrapConfig(2, rank),
    moe_ep.MoEEpCommParams(4, 2, 8, 16),
    config=moe_ep.HostAlltoAllConfig(comm_backend=group, timeout_sec=TIMEOUT),
)
x = torch.full((3, 16), rank + 1.0).bfloat16()
ids = torch.tensor([[0, 3]] * 3)


def step():
    received = comm.dispatch(x, ids)
    rows = received.hidden_states.clone()
    out = comm.combine(rows)
    assert torch.equal(out, 2 * x), out
"""


def run_ranks(directory: Path, body: str, timeout_sec: int = 20) -> list[tuple[int, str]]:
    """Run PREAMBLE and `body` once a rank; every rank's exit status and stderr."""
    script = directory / "program.py"
    preamble = PREAMBLE.replace("TIMEOUT", str(timeout_sec))
    script.write_text(preamble + textwrap.dedent(body))
    ranks = [
        subprocess.Popen(
            [sys.executable, script, str(rank), directory], stderr=subprocess.PIPE, text=True
        )
        for rank in range(WORLD)
    ]
    ended = []
    for rank in ranks:
        try:
            _, text = rank.communicate(timeout=60)
        finally:
            rank.kill()
        ended.append((rank.returncode, text))
    return ended


@pytest.mark.parametrize("how", ["", "sys.exit(0)", "comm = None", "import gc; del comm; gc.collect()"])
def test_interpreter_ends_between_dispatch_and_combine(tmp_path: Path, how: str) -> None:
    body = f"step()\nreceived = comm.dispatch(x, ids)\n{how}\n"
    assert run_ranks(tmp_path, body) == [(0, "")] * WORLD


def test_a_forked_child_leaves_the_parents_instance_alone(tmp_path: Path) -> None:
    body = """
    step()
    child = os.fork()
    if child == 0:
        comm.destroy()
        sys.exit(0)
    assert os.waitpid(child, 0)[1] == 0
    step()
    child = os.fork()
    if child == 0:
        sys.exit(0)  # with the instance alive
    assert os.waitpid(child, 0)[1] == 0
    step()
    comm.destroy()
    """
    assert run_ranks(tmp_path, body) == [(0, "")] * WORLD


def test_an_interrupt_in_a_wait_is_raised_when_the_wait_ends(tmp_path: Path) -> None:
    body = """
    step()
    if rank == 1:
        comm.destroy()
        sys.exit(0)
    threading.Timer(0.2, signal.raise_signal, [signal.SIGINT]).start()
    start = time.monotonic()
    interrupted = False
    try:
        try:
            comm.dispatch(x, ids)
        finally:
            time.sleep(0.01)  # a pending interrupt is raised here at the latest
    except KeyboardInterrupt:
        interrupted = True
    assert interrupted
    assert time.monotonic() - start < 10
    try:
        comm.dispatch(x, ids)
    except RuntimeError as error:
        assert "recover" in str(error)
    else:
        raise AssertionError("a step after a time-out must be refused")
    comm.destroy()
    """
    assert run_ranks(tmp_path, body, timeout_sec=1) == [(0, "")] * WORLD
