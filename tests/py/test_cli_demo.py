"""moe-ep demo: the main job, on every backend that runs on a CPU."""

import importlib.util
import os
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from moe_ep import moe_layer
from moe_ep.cli.app import app
from moe_ep.testing import RankError

SMALL = ("--tokens", "7", "--hidden", "32", "--steps", "2")
BACKENDS = ["torch_dist", "host", "auto"]


def needs(backend):
    if backend == "host" and importlib.util.find_spec("moe_ep._core") is None:
        pytest.skip("the compiled module is missing")


def demo(*arguments):
    return CliRunner().invoke(app, ["demo", *SMALL, *arguments])


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_layer_matches_the_dense_layer(backend):
    needs(backend)
    result = demo("--ranks", "2", "--backend", backend)
    assert result.exit_code == 0, result.output
    last = result.stdout.strip().splitlines()[-1]
    assert last.startswith("OK: 2 ranks, 2 steps: the output matches the dense layer (max error ")
    assert " <= " in last


@pytest.mark.parametrize("backend", ["torch_dist", "host"])
@pytest.mark.parametrize(
    "sizes",
    [
        ("--ranks", "3", "--top-k", "5", "--hidden", "130"),
        ("--ranks", "1", "--top-k", "1", "--hidden", "1"),
        ("--ranks", "2", "--top-k", "8", "--experts", "8", "--hidden", "17", "--dtype", "fp16"),
        ("--ranks", "2", "--tokens", "1", "--dtype", "fp32", "--threads", "2", "--seed", "3"),
    ],
    ids=" ".join,
)
def test_odd_sizes(backend, sizes):
    needs(backend)
    result = demo("--backend", backend, *sizes)
    assert result.exit_code == 0, result.output
    assert "OK:" in result.stdout


def test_tables_show_rows_bytes_times_and_memory():
    needs("host")
    result = demo("--ranks", "2", "--backend", "host")
    for word in (
        *("HostAlltoAll", "transport fence", "dispatch", "experts", "combine", "workspace"),
        *("total", "slowest", "physical / logical"),
    ):
        assert word in result.stdout, word
    # 2 ranks x 7 tokens x 2 steps.
    total = next(line for line in result.stdout.splitlines() if "total" in line)
    assert "28" in total


@pytest.mark.parametrize("how", ["wrong", "nan"])
def test_an_output_that_differs_is_exit_code_1(monkeypatch, how):
    """The dense layer is falsified, as the ranks are other processes."""
    genuine = moe_layer.DenseLayer.__call__

    def falsified(self, tokens):
        output, bound = genuine(self, tokens)
        output[0, 0] = float("nan") if how == "nan" else output[0, 0] + 1.0
        return output, bound

    monkeypatch.setattr(moe_layer.DenseLayer, "__call__", falsified)
    result = demo("--ranks", "2", "--backend", "torch_dist")
    assert result.exit_code == 1
    assert "FAILED: 2 ranks, 2 steps: the output differs" in result.stdout
    assert "OK" not in result.stdout


def test_a_rank_that_fails_is_exit_code_1_and_named(monkeypatch):
    def refuse(_spec, _on_progress):
        from moe_ep.testing import Failure

        raise RankError({1: Failure("died of SIGKILL before it returned")})

    monkeypatch.setattr("moe_ep.demo.run_demo", refuse)
    result = demo("--ranks", "2")
    assert result.exit_code == 1
    assert "error: rank 1: died of SIGKILL" in result.stderr


def test_a_backend_that_does_not_run_here_says_why():
    if importlib.util.find_spec("moe_ep._core") is None:
        pytest.skip("the compiled module is missing")
    from moe_ep import NVLinkOneSidedAlltoAll

    reason = NVLinkOneSidedAlltoAll.explain_platform()
    if not reason:
        pytest.skip("it runs here")
    result = demo("--ranks", "2", "--backend", "nvlink_one_sided")
    assert result.exit_code == 1
    assert reason in result.stderr.replace("\n", " ")


def test_as_a_command_in_another_folder_without_a_terminal(tmp_path):
    """Nothing but the result goes to standard output, and nothing is left behind."""
    before = set(os.listdir("/dev/shm"))
    done = subprocess.run(
        [sys.executable, "-m", "moe_ep", "demo", *SMALL, "--ranks", "2"],
        capture_output=True,
        text=True,
        timeout=100,
        cwd=tmp_path,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().splitlines()[-1].startswith("OK:")
    assert "\x1b" not in done.stdout
    assert os.listdir(tmp_path) == []
    assert {name for name in os.listdir("/dev/shm") if "moe_ep" in name} <= before
