"""moe_ep.compat.flashinfer: the names, their signatures, and a program that knows no other."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import types
from pathlib import Path

import pytest

import moe_ep
import moe_ep.comm
import test_interface as interface
from moe_ep.compat import flashinfer as compat

PROGRAM = Path(__file__).with_name("flashinfer_program.py")


@pytest.fixture(params=[False, True], ids=["as it is", "on the host"])
def installed(request):
    compat.install(nvlink_on_host=request.param)
    yield importlib.import_module("flashinfer")
    compat.uninstall()


def test_a_program_runs_unchanged(tmp_path):
    ranks = [
        subprocess.Popen(
            [sys.executable, "-m", "moe_ep.compat.flashinfer", "--nvlink-on-host", PROGRAM],
            env={
                **os.environ,
                "RANK": str(rank),
                "WORLD_SIZE": "2",
                "RENDEZVOUS": str(tmp_path / "rendezvous"),
                "GLOO_SOCKET_IFNAME": "lo",
                "OMP_NUM_THREADS": "1",
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        outputs = [rank.communicate(timeout=60)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    for number, (rank, output) in enumerate(zip(ranks, outputs, strict=True)):
        assert rank.returncode == 0, output
        assert output.endswith(f"rank {number} done\n")


def test_signatures_are_those_of_the_interface(installed):
    module = installed.moe_ep
    for name, text in {**interface.CONFIGS, **interface.FUNCTIONS}.items():
        interface.compare(getattr(module, name), text)
    for name, (constructor, methods) in interface.CLASSES.items():
        cls = getattr(module, name)
        assert issubclass(cls, module.MoEEpCommunication)
        interface.compare(cls.__init__, constructor)
        for method, text in methods.items():
            interface.compare(getattr(cls, method), text)
    for name, text in interface.COMM_FUNCTIONS.items():
        interface.compare(getattr(installed.comm, name), text)
    for name, text in interface.COMM_CLASSES.items():
        interface.compare(getattr(installed.comm, name).__init__, text)


def test_names_are_our_objects(installed):
    from flashinfer.comm import MoeAlltoAll
    from flashinfer.moe_ep import MoEEpCommParams
    from flashinfer.moe_ep.errors import MoEEpTimeoutError

    assert MoeAlltoAll is moe_ep.comm.MoeAlltoAll
    assert MoEEpCommParams is moe_ep.MoEEpCommParams
    assert MoEEpTimeoutError is moe_ep.MoEEpTimeoutError
    assert moe_ep.__name__ == moe_ep.__spec__.name == "moe_ep"
    assert sorted(installed.moe_ep.__all__) == sorted(moe_ep.__all__)
    assert set(moe_ep.__all__) <= set(dir(installed.moe_ep))


def test_other_names_are_refused(installed):
    with pytest.raises(AttributeError, match="moe_ep stands in its place"):
        _ = installed.gemm
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = installed.moe_ep.no_such_name
    for name in ("flashinfer.gemm", "flashinfer.moe_ep.no", "flashinfer.moe_ep.errors.inner"):
        with pytest.raises(ModuleNotFoundError):
            importlib.import_module(name)


def test_uninstall_leaves_nothing():
    before = (list(sys.meta_path), set(sys.modules))
    compat.install()
    compat.install()
    assert compat.is_installed()
    importlib.import_module("flashinfer.moe_ep.errors")
    compat.uninstall()
    compat.uninstall()
    assert not compat.is_installed()
    assert sys.meta_path == before[0]
    assert not {name for name in sys.modules if name.startswith("flashinfer")}


def test_an_imported_original_stays(monkeypatch):
    original = types.ModuleType("flashinfer")
    original.__file__ = "/somewhere/flashinfer/__init__.py"
    monkeypatch.setitem(sys.modules, "flashinfer", original)
    with pytest.raises(RuntimeError, match=r"not be imported yet, got the one of /somewhere"):
        compat.install()
    compat.uninstall()
    assert sys.modules["flashinfer"] is original


def test_ways_to_install_do_not_mix():
    compat.install()
    try:
        with pytest.raises(RuntimeError, match="nvlink_on_host"):
            compat.install(nvlink_on_host=True)
    finally:
        compat.uninstall()


def test_wrong_configs_on_the_host():
    compat.install(nvlink_on_host=True)
    try:
        from flashinfer.moe_ep import CakeAlltoAll, NVLinkOneSidedConfig

        with pytest.raises(TypeError, match="CakeAlltoAll: config must be a CakeAlltoAllConfig"):
            CakeAlltoAll(
                moe_ep.BootstrapConfig(1, 0),
                moe_ep.MoEEpCommParams(2, 1, 1, 4),
                NVLinkOneSidedConfig(),
            )
    finally:
        compat.uninstall()
