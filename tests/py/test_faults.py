"""Interpreters that fork, are interrupted or end at an unfortunate moment break nothing.

Every scenario is run by two processes, which are forked by one program, because importing torch is
what takes time.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

# name -> what each rank does with `comm`, `x` and `ids`, after one good step.
SCENARIOS = {
    "end between dispatch and combine": "received = comm.dispatch(x, ids)",
    "drop between dispatch and combine": "received = comm.dispatch(x, ids)\ndel comm\ngc.collect()",
    "fork": """
for how in ("destroyed", "alive"):
    child = os.fork()
    if child == 0 and how == "destroyed":
        comm.destroy()
        os._exit(0)
    if child == 0:
        sys.exit(0)
    assert os.waitpid(child, 0)[1] == 0
    step(comm)
comm.destroy()
""",
    "interrupt": """
if rank == 1:
    comm.destroy()
    sys.exit(0)
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in a shell's background jobs
timer = threading.Timer(0.2, signal.raise_signal, [signal.SIGINT])
timer.start()
start = time.monotonic()
interrupted = False
try:
    try:
        comm.dispatch(x, ids)
    finally:
        timer.join()  # a busy machine may let it sleep for longer than the step waits
        time.sleep(0.01)  # a pending interrupt is raised here at the latest
except KeyboardInterrupt:
    interrupted = True
assert interrupted and time.monotonic() - start < 10
try:
    comm.dispatch(x, ids)
except RuntimeError as error:
    assert "recover" in str(error)
else:
    raise AssertionError("a step after a time-out must be refused")
comm.destroy()
""",
}

PROGRAM = """
import gc, os, signal, sys, threading, time
import torch
import moe_ep
from moe_ep.comm import UnixSocketBackend

directory = sys.argv[1]


def run(rank, scenario, text):
    output = os.open(f"{directory}/{scenario}.{rank}", os.O_CREAT | os.O_WRONLY)
    os.dup2(output, 2)
    group = UnixSocketBackend(f"{directory}/group", rank, 2)
    comm = moe_ep.HostAlltoAll(
        moe_ep.BootstrapConfig(2, rank),
        moe_ep.MoEEpCommParams(4, 2, 8, 16),
        config=moe_ep.HostAlltoAllConfig(comm_backend=group, timeout_sec=1, num_threads=1),
    )
    x = torch.full((3, 16), rank + 1.0).bfloat16()
    ids = torch.tensor([[0, 3]] * 3)

    def step(comm):
        received = comm.dispatch(x, ids)
        out = comm.combine(received.hidden_states.clone())
        assert torch.equal(out, 2 * x), out

    step(comm)
    names = globals() | locals()
    del comm, group
    exec(text, names)
    globals()["kept"] = names  # until the interpreter's own end


for scenario, text in enumerate(eval(sys.argv[2])):
    ranks = []
    for rank in range(2):
        ranks.append(os.fork())
        if ranks[-1] == 0:
            run(rank, scenario, text)
            sys.exit(0)
    for rank in ranks:
        print(os.waitstatus_to_exitcode(os.waitpid(rank, 0)[1]))
"""


@pytest.fixture(scope="module")
def endings(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[tuple[int, str]]]:
    """Exit status and stderr of both ranks of every scenario."""
    directory = tmp_path_factory.mktemp("faults")
    script = directory / "program.py"
    script.write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, script, directory, repr(list(SCENARIOS.values()))],
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert done.returncode == 0, done.stderr
    statuses = [int(line) for line in done.stdout.split()]
    return {
        name: [
            (statuses[2 * number + rank], (directory / f"{number}.{rank}").read_text())
            for rank in range(2)
        ]
        for number, name in enumerate(SCENARIOS)
    }


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_both_ranks_end_well(endings: dict[str, list[tuple[int, str]]], scenario: str) -> None:
    assert endings[scenario] == [(0, "")] * 2
