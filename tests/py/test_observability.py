"""Metrics, ranges and records of instances, as the tools behind them see them."""

from __future__ import annotations

import contextlib
import gc
import logging
import sys
import types

import prometheus_client
import pytest
import torch

import moe_ep
import moe_ep.comm
import moe_ep.testing
from moe_ep.observability import instrument, register_metrics


@pytest.fixture
def instance():
    comm = moe_ep.HostAlltoAll(
        moe_ep.BootstrapConfig(1, 0),
        moe_ep.MoEEpCommParams(2, 2, 4, 16),
        moe_ep.HostAlltoAllConfig(timeout_sec=5),
    )
    yield comm
    comm.destroy()


def run_step(comm):
    received = comm.dispatch(torch.ones(3, 16, dtype=torch.bfloat16), torch.tensor([[0, 1]] * 3))
    return comm.combine(received.hidden_states.clone())


@pytest.fixture
def registry():
    registry = prometheus_client.CollectorRegistry()
    register_metrics(registry)
    return registry


def instances(registry):
    """Numbers of the instances that have series; other tests may have left some."""
    return {
        int(sample.labels["instance"]) for family in registry.collect() for sample in family.samples
    }


def own_labels(registry, **labels):
    """Labels of the youngest instance's series."""
    return {
        "instance": str(max(instances(registry))),
        "backend": "HostAlltoAll",
        "rank": "0",
        "world_size": "1",
        **labels,
    }


def test_metrics_follow_the_stats(instance, registry):
    for _ in range(3):
        run_step(instance)
    value = registry.get_sample_value
    for phase in ("dispatch", "combine"):
        labels = own_labels(registry, phase=phase)
        assert value("moe_ep_steps_total", labels) == 3
        assert value("moe_ep_tokens_total", labels) == 9
        assert value("moe_ep_bytes_total", {**labels, "direction": "sent"}) == 0
    assert value("moe_ep_dispatches_total", own_labels(registry, transport="fence")) == 3
    assert value("moe_ep_events_total", own_labels(registry, event="timeouts")) == 0
    assert b"moe_ep_rows_total{" in prometheus_client.generate_latest(registry)


def test_series_end_with_their_instance(registry):
    before = instances(registry)
    comm = moe_ep.HostAlltoAll(moe_ep.BootstrapConfig(1, 0), moe_ep.MoEEpCommParams(2, 2, 4, 16))
    (own,) = instances(registry) - before
    assert own > max(before, default=-1)
    comm.destroy()
    assert own in instances(registry)
    del comm
    gc.collect()
    assert own not in instances(registry)


def test_metrics_register_once(registry):
    with pytest.raises(ValueError, match="moe_ep_steps"):
        register_metrics(registry)


def test_metrics_without_the_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(ModuleNotFoundError):
        register_metrics()


@pytest.fixture
def ranges(monkeypatch):
    """What a tool would show, made by a stand-in for torch without CUDA and for nvtx."""
    seen = []

    @contextlib.contextmanager
    def annotate(name):
        seen.append(f"begin {name}")
        yield
        seen.append(f"end {name}")

    monkeypatch.setattr(torch.version, "cuda", None)
    monkeypatch.setitem(sys.modules, "nvtx", types.SimpleNamespace(annotate=annotate))
    return seen


def test_ranges_enclose_the_phases(instance, ranges):
    watched = instrument(instance, nvtx=True)
    run_step(instance)
    assert ranges == [
        "begin moe_ep.dispatch",
        "end moe_ep.dispatch",
        "begin moe_ep.combine",
        "end moe_ep.combine",
    ]
    with pytest.raises(RuntimeError, match="once"):
        instrument(instance)
    watched.remove()
    watched.remove()
    run_step(instance)
    assert len(ranges) == 4


def test_ranges_without_a_package(instance, monkeypatch):
    monkeypatch.setattr(torch.version, "cuda", None)
    monkeypatch.setitem(sys.modules, "nvtx", None)
    with pytest.raises(ModuleNotFoundError):
        instrument(instance, nvtx=True)
    run_step(instance)  # and is as it was


def test_records_have_fields(instance, caplog):
    caplog.set_level(logging.INFO)
    instrument(instance, logger=logging.getLogger("engine"))
    run_step(instance)
    assert not caplog.records
    with pytest.raises(RuntimeError, match="combine: a dispatch must come first"):
        instance.combine(torch.zeros(4, 16, dtype=torch.bfloat16))
    instance.destroy()
    failed, destroyed = caplog.records
    assert (failed.levelname, failed.name) == ("ERROR", "engine")
    assert failed.moe_ep_event == "combine"
    assert failed.moe_ep_error == "RuntimeError"
    assert (failed.moe_ep_backend, failed.moe_ep_rank) == ("HostAlltoAll", 0)
    assert (destroyed.levelname, destroyed.moe_ep_event) == ("INFO", "destroy")


def test_records_of_timeouts_name_the_ranks(caplog):
    group = moe_ep.comm.LocalGroup(2)

    def make(rank):
        return moe_ep.HostAlltoAll(
            moe_ep.BootstrapConfig(2, rank),
            moe_ep.MoEEpCommParams(2, 2, 4, 16),
            moe_ep.HostAlltoAllConfig(timeout_sec=1, comm_backend=group.backend(rank)),
        )

    first, second = moe_ep.testing.spawn_ranks(make, 2, mode="threads", timeout=30)
    instrument(first, logger=logging.getLogger("engine"))
    with pytest.raises(moe_ep.MoEEpTimeoutError):
        run_step(first)
    (record,) = caplog.records
    assert record.moe_ep_missing_ranks == [1]
    assert first.stats().timeouts == 1
    assert first.stats().dispatch.steps == second.stats().dispatch.steps == 0
