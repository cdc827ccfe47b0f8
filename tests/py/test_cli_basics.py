"""moe-ep as a command: help, version, and what it costs to ask for them."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from moe_ep.cli.app import app

COMMANDS = ("demo", "doctor", "plan", "bench", "cmake-dir")


def run(*arguments, code=0, timeout=100):
    """Run ``python -m moe_ep``; returns standard output and standard error."""
    done = subprocess.run(
        [sys.executable, "-m", "moe_ep", *arguments],
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout, done.stderr


def test_version_is_the_packages():
    out, _ = run("--version")
    assert out.startswith("moe-ep ")
    assert out.split()[1][0].isdigit() or "not installed" in out


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(command):
    result = CliRunner().invoke(app, [command, "--help"])
    assert result.exit_code == 0
    assert "Usage" in result.stdout


def test_help_lists_every_command():
    out, _ = run("--help")
    for command in COMMANDS:
        assert command in out


def test_without_a_command_there_is_help_and_an_error_code():
    result = CliRunner().invoke(app, [])
    assert result.exit_code == 2
    assert "demo" in result.output


@pytest.mark.parametrize(
    "arguments", [["--version"], ["--help"], ["demo", "--help"], ["bench", "-h"]]
)
def test_asking_for_help_loads_neither_torch_nor_numpy(arguments):
    program = (
        "import sys\n"
        "from moe_ep.cli import main\n"
        f"sys.argv[1:] = {arguments!r}\n"
        "try:\n"
        "    main()\n"
        "except SystemExit as leave:\n"
        "    assert not leave.code, leave.code\n"
        "loaded = {'torch', 'numpy'} & set(sys.modules)\n"
        "assert not loaded, loaded\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr


# Words of typer's own messages depend on its version: there the option's name has to do.
BAD = {
    ("demo", "--ranks", "0"): "'--ranks'",
    ("demo", "--ranks", "257"): "'--ranks'",
    ("demo", "--tokens", "0"): "'--tokens'",
    ("demo", "--hidden", "0"): "'--hidden'",
    ("demo", "--hidden", "many"): "'--hidden'",
    ("demo", "--experts", "0"): "'--experts'",
    ("demo", "--experts", "7", "--ranks", "2"): "multiple of --ranks (2), got 7",
    ("demo", "--top-k", "65"): "'--top-k'",
    ("demo", "--top-k", "9", "--experts", "8"): "at most --experts (8), got 9",
    ("demo", "--backend", "smoke"): "got smoke",
    ("demo", "--steps", "0"): "'--steps'",
    ("demo", "--seed", "-1"): "'--seed'",
    ("demo", "--dtype", "int8"): "'--dtype'",
    ("demo", "--threads", "0"): "'--threads'",
    ("demo", "--timeout", "0"): "'--timeout'",
    ("demo", "--no-such-option"): "No such option",
    ("plan", "--model", "gpt-9"): "got gpt-9",
    ("plan", "--ranks", "0"): "'--ranks'",
    ("plan", "--ranks", "3"): "multiple of --ranks (3), got 256",
    ("plan", "--tokens", "0"): "'--tokens'",
    ("plan", "--hidden", "-5"): "'--hidden'",
    ("plan", "--top-k", "0"): "'--top-k'",
    ("plan", "--experts", "4"): "at most --experts (4), got 8",
    ("plan", "--dtype", "fp8"): "'--dtype'",
    ("plan", "--format", "FP2"): "'--format'",
    ("plan", "--extra", "-1"): "'--extra'",
    ("plan", "--eplb", "-1"): "'--eplb'",
    ("plan", "--eplb", "257"): "eplb_stats_num_experts must be at most num_experts (256), got 257",
    ("plan", "--lamport-max-tokens", "0"): "'--lamport-max-tokens'",
    ("plan", "--lamport", "--cft"): "lamport and cft must not both be True",
    ("bench", "--backend", "smoke"): "got smoke",
    ("bench", "--ranks", "0"): "'--ranks'",
    ("bench", "--threads", "0"): "'--threads'",
    ("bench", "--model", "gpt-9"): "got gpt-9",
    ("bench", "--hidden", "0"): "'--hidden'",
    ("bench", "--top-k", "65"): "'--top-k'",
    ("bench", "--experts", "9"): "multiple of --ranks (2), got 9",
    ("bench", "--tokens", "few"): "must be counts",
    ("bench", "--tokens", "0"): "must be positive",
    ("bench", "--tokens", "8..4"): "must be positive and ascending",
    ("bench", "--routing", "lucky"): "'--routing'",
    ("bench", "--dtype", "fp8"): "'--dtype'",
    ("bench", "--format", "FP2"): "'--format'",
    ("bench", "--iters", "0"): "'--iters'",
    ("bench", "--warmup", "0"): "'--warmup'",
    ("bench", "--seconds", "0"): "'--seconds'",
    ("bench", "--seed", "-1"): "'--seed'",
    ("bench", "--jsonl", "/"): "is a directory",
    ("doctor", "--no-such-option"): "No such option",
    ("cmake-dir", "surplus"): "unexpected extra argument",
}


@pytest.mark.parametrize("arguments", BAD, ids=" ".join)
def test_a_bad_value_is_refused_with_code_2_and_a_message(arguments):
    result = CliRunner(env={"COLUMNS": "300"}).invoke(app, list(arguments))
    assert result.exit_code == 2, result.output
    # The message is boxed and may be wrapped.
    words = " ".join(result.output.replace("│", " ").split())
    assert BAD[arguments] in words


def test_documented_options_exist():
    import typer

    known = {"--help", "--version"}
    for command in typer.main.get_command(app).commands.values():
        for parameter in command.params:
            known |= {*parameter.opts, *parameter.secondary_opts}
    root = Path(__file__).parents[2]
    program = (root / "benchmarks/cuda_pair.cu").read_text()
    of_pair = set(re.findall(r'name == "(--[a-z0-9-]+)"', program))
    for name, options in (("cli.md", known), ("benchmarks.md", known | of_pair)):
        text = (root / "docs" / name).read_text()
        named = set(re.findall(r"(?<![\w-])--[a-z][a-z0-9-]*", text))
        assert named <= options, name
