"""moe-ep plan says what an instance then takes, and what a step then moves."""

import itertools
import json

import pytest
from typer.testing import CliRunner

import moe_ep
from moe_ep.cli.app import app
from moe_ep.comm import LocalGroup
from moe_ep.models import MODELS
from moe_ep.testing import spawn_ranks
from moe_ep.traffic import count_bytes, dispatch_row_bytes, expected_bytes, ranks_per_token

pytest.importorskip("moe_ep._core")


def plan(*arguments):
    result = CliRunner().invoke(app, ["plan", "--json", *map(str, arguments)])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def workspace_bytes(ranks, params, **options):
    """What real instances allocate."""
    group = LocalGroup(ranks, timeout_sec=30)

    def work(rank):
        config = moe_ep.HostAlltoAllConfig(comm_backend=group.backend(rank), **options)
        bootstrap = moe_ep.BootstrapConfig(ranks, rank)
        comm = moe_ep.HostAlltoAll(bootstrap, params, config)
        try:
            return comm.workspace_bytes
        finally:
            comm.destroy()

    (size,) = set(spawn_ranks(work, ranks, mode="threads"))
    return size


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_plan_equals_what_an_instance_allocates(ranks):
    made = plan(
        *("--ranks", ranks, "--tokens", 17, "--hidden", 130, "--top-k", 5, "--experts", 12),
        *("--extra", 7, "--eplb", 12),
    )
    params = moe_ep.MoEEpCommParams(12, 5, 17, 130)
    got = workspace_bytes(ranks, params, extra_payload_bytes_per_token=7, eplb_stats_num_experts=12)
    assert made["bytes_per_rank"] == got
    assert made["bytes_all_ranks"] == ranks * got


@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32"])
@pytest.mark.parametrize("name", [None, *moe_ep.QuantFormat.__members__])
def test_plan_equals_an_instance_in_every_dtype_and_format(dtype, name):
    import torch

    chosen = () if name is None else ("--format", name)
    made = plan(
        *("--ranks", 2, "--tokens", 3, "--hidden", 257, "--top-k", 2, "--experts", 4),
        *("--dtype", dtype, *chosen),
    )
    dtypes = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
    params = moe_ep.MoEEpCommParams(
        *(4, 2, 3, 257),
        dtype=dtypes[dtype],
        dispatch_format=None if name is None else moe_ep.QuantFormat[name],
    )
    assert made["bytes_per_rank"] == workspace_bytes(2, params)
    assert made["row_bytes"] == dispatch_row_bytes(params.dispatch_bytes_per_token, 2)
    assert made["combine_row_bytes"] == 257 * dtypes[dtype].itemsize


@pytest.mark.parametrize("name", MODELS)
def test_regions_cover_the_slice_for_every_model(name):
    made = plan("--model", name, "--ranks", 8, "--tokens", 128)
    end = 0
    for region in made["regions"]:
        assert region["offset"] == end, region
        end += region["num_bytes"]
    assert end == made["bytes_per_rank"]
    assert made["sizes"]["hidden_size"] == MODELS[name].hidden_size


def test_memory_is_payload_and_combine_and_one_per_cent():
    made = plan("--ranks", 2, "--tokens", 4096)
    rows = 2 * 4096
    assert made["bytes_per_rank"] <= 1.01 * rows * (2 * 7168 + 2 * 7168)


def test_the_table_shows_every_region_and_the_total():
    result = CliRunner().invoke(app, ["plan", "--model", "k22", "--ranks", "4"])
    assert result.exit_code == 0, result.output
    for word in ("header", "combine", "dispatch", "total", "physical", "logical", "100.00%"):
        assert word in result.stdout


def test_single_sizes_replace_those_of_a_model():
    made = plan("--model", "qwen3", "--hidden", 64)
    sizes = made["sizes"]
    assert (sizes["hidden_size"], sizes["top_k"], sizes["num_experts"]) == (64, 8, 128)


@pytest.mark.parametrize(("ranks", "remote"), [(2, 0.997), (4, 2.71), (8, 4.63)])
def test_ranks_a_token_visits(ranks, remote):
    """The figures that are quoted for E = 256, K = 8."""
    everywhere, others = ranks_per_token(256, 8, ranks)
    assert others == pytest.approx(remote, abs=0.006)
    assert everywhere / others == pytest.approx(ranks / (ranks - 1))


@pytest.mark.parametrize(
    ("experts", "top_k", "ranks"), [(6, 2, 3), (8, 3, 2), (4, 4, 4), (4, 1, 1)]
)
def test_ranks_a_token_visits_is_the_mean_over_all_picks(experts, top_k, ranks):
    per_rank = experts // ranks
    counts = [
        len({expert // per_rank for expert in picks})
        for picks in itertools.combinations(range(experts), top_k)
    ]
    everywhere, _ = ranks_per_token(experts, top_k, ranks)
    assert everywhere == pytest.approx(sum(counts) / len(counts))


def test_bytes_of_a_known_routing():
    step = count_bytes([3, 1, 0], rank=0, row_bytes=10, combine_row_bytes=4)
    assert (step.dispatch_logical, step.dispatch_physical) == (40, 10)
    assert (step.combine_logical, step.combine_physical) == (16, 4)


def test_expected_bytes_of_one_rank_stay_there():
    step = expected_bytes(8, 2, 1, 5, 10, 4)
    assert (step.dispatch_logical, step.dispatch_physical) == (50, 0)
