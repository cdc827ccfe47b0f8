"""moe-ep doctor: facts about this machine, as tables and as JSON."""

import json
import os

from typer.testing import CliRunner

import moe_ep
from moe_ep.cli.app import app
from moe_ep.machine import gpu, nvml


def doctor(*arguments):
    result = CliRunner().invoke(app, ["doctor", *arguments])
    assert result.exit_code == 0, result.output
    return result.stdout


def test_json_has_every_section_and_every_backend():
    found = json.loads(doctor("--json"))
    assert list(found) == ["package", "cpu", "memory", "gpu", "software", "backends"]
    states = found["backends"]["backends"]
    assert sorted(states) == moe_ep.available_communication_backends()
    for name, state in states.items():
        assert state["runs"] == (state["reason"] == ""), name
    assert states["torch_dist"]["runs"]
    assert found["backends"]["auto"] in states
    assert found["cpu"]["usable_cores"] == len(os.sched_getaffinity(0))
    assert found["memory"]["memfd"] == "yes"
    assert found["software"]["torch"]["gloo"] is True


def test_tables_say_why_a_backend_does_not_run():
    out = doctor()
    found = json.loads(doctor("--json"))["backends"]
    assert f"auto takes: {found['auto']}" in out
    for name, state in found["backends"].items():
        assert name in out
        assert state["reason"][:30] in out


def test_no_cuda_is_started():
    """Neither by asking the backends nor by asking for devices."""
    import torch

    doctor("--json")
    assert not torch.cuda.is_initialized()


def test_without_nvml_there_is_a_reason(monkeypatch):
    def refuse():
        raise nvml.NvmlError("libnvidia-ml.so.1 does not load")

    monkeypatch.setattr(nvml, "query", refuse)
    monkeypatch.setattr(gpu, "_DRIVER", gpu.Path("/nowhere"))
    found = gpu.describe_gpus()
    assert found["devices"] == []
    assert "no NVIDIA driver is loaded" in found["missing"]
    assert found["handle_types"] == {"posix_fd": "no (no GPU)", "fabric": "no (no GPU)"}


def test_gpus_of_the_kernel_module_are_listed_where_nvml_is_missing(monkeypatch, tmp_path):
    def refuse():
        raise nvml.NvmlError("libnvidia-ml.so.1 does not load")

    folder = tmp_path / "gpus" / "0000:01:00.0"
    folder.mkdir(parents=True)
    (folder / "information").write_text("Model: \t\t NVIDIA Test\nGPU UUID: GPU-1\n")
    (tmp_path / "version").write_text("NVRM version: NVIDIA 580.1\nGCC version: 12\n")
    monkeypatch.setattr(nvml, "query", refuse)
    monkeypatch.setattr(gpu, "_DRIVER", tmp_path)
    found = gpu.describe_gpus()
    assert found["kernel_module"] == "NVIDIA 580.1"
    assert found["missing"] == "libnvidia-ml.so.1 does not load"
    assert found["devices"][0]["name"] == "NVIDIA Test"
    assert found["devices"][0]["pci"] == "0000:01:00.0"


def test_fabric_handles_need_a_finished_fabric_and_a_channel(monkeypatch, tmp_path):
    monkeypatch.setattr(gpu, "_CHANNELS", tmp_path)
    assert gpu._handle_types([{"fabric": "not supported"}])["fabric"].startswith("no (fabric state")
    assert gpu._handle_types([{"fabric": "completed"}])["fabric"].startswith("no (no usable IMEX")
    (tmp_path / "channel0").touch()
    assert gpu._handle_types([{"fabric": "completed"}]) == {"posix_fd": "yes", "fabric": "yes"}
