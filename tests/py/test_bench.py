"""The benchmark: its inputs, its checks, its statistics, and moe-ep bench itself."""

import dataclasses
import importlib.util
import json
import statistics

import pytest
import torch
from typer.testing import CliRunner

from moe_ep.bench.cases import LADDER, Case, RoutingName
from moe_ep.bench.checks import CheckError, Expectation, check_combine, check_dispatch
from moe_ep.bench.inputs import make_inputs, visits
from moe_ep.bench.timing import Samples, summarize, time_steps
from moe_ep.cli.app import app
from moe_ep.cli.bench import tokens_of
from moe_ep.config import MoEEpDispatchResult, QuantFormat

CASE = Case("custom", 3, 10, 16, 4, 24)
TINY = ("--hidden", "34", "--top-k", "3", "--experts", "8", "--seconds", "0.02", "--iters", "8")


def bench(*arguments):
    return CliRunner().invoke(app, ["bench", *TINY, *arguments])


@pytest.mark.parametrize("routing", RoutingName)
def test_picks_are_distinct_valid_and_reproducible(routing):
    case = dataclasses.replace(CASE, routing=routing)
    ids = make_inputs(case, 1).topk_ids
    assert ids.dtype == torch.int32
    assert ids.shape == (10, 4)
    assert all(len(set(row)) == 4 and min(row) >= 0 and max(row) < 24 for row in ids.tolist())
    assert torch.equal(ids, make_inputs(case, 1).topk_ids)


def test_perfect_routing_gives_every_rank_and_expert_the_same():
    case = dataclasses.replace(CASE, num_tokens=12, routing=RoutingName.perfect)
    ids = torch.cat([make_inputs(case, rank).topk_ids for rank in range(3)])
    assert set(torch.bincount(ids.flatten(), minlength=24).tolist()) == {12 * 4 * 3 // 24}
    rows = [visits(case, make_inputs(case, rank).topk_ids).sum(dim=0) for rank in range(3)]
    assert set(torch.stack(rows).flatten().tolist()) == {12}


def test_random_routing_is_uniform_and_skewed_is_not():
    def share_of_first_rank(routing):
        case = dataclasses.replace(CASE, num_tokens=2000, routing=routing)
        return (make_inputs(case, 0).topk_ids < 8).float().mean().item()

    assert share_of_first_rank(RoutingName.random) == pytest.approx(1 / 3, abs=0.03)
    assert share_of_first_rank(RoutingName.skewed) > 0.5


@pytest.mark.parametrize("name", QuantFormat.__members__)
def test_quantised_rows_have_the_bytes_of_their_format(name):
    case = dataclasses.replace(CASE, hidden_size=130, format_name=name)
    inputs = make_inputs(case, 0)
    width = inputs.hidden_states[0].nbytes
    width += 0 if inputs.scales is None else inputs.scales[0].nbytes
    assert width == QuantFormat[name].bytes_per_token(130) == case.payload_bytes


def receive(case, rank):
    """What a correct dispatch gives."""
    expected = Expectation(case, rank)
    shape = (case.world_size * case.num_tokens,)
    ids = torch.full((*shape, case.top_k), -1, dtype=torch.int32)
    hidden = torch.zeros((*shape, case.hidden_size), dtype=case.torch_dtype)
    weights = torch.zeros((*shape, case.top_k))
    for src, sent in enumerate(expected.received):
        rows = slice(src * case.num_tokens, src * case.num_tokens + len(expected.tokens[src]))
        hidden[rows], ids[rows], weights[rows] = (
            sent.hidden_states,
            sent.topk_ids,
            sent.topk_weights,
        )
    counts = torch.tensor(expected.rows_from, dtype=torch.int32)
    return expected, MoEEpDispatchResult(hidden, ids, weights, case.num_tokens, recv_counts=counts)


def test_a_correct_dispatch_passes():
    check_dispatch(*receive(CASE, 1), "fence")


@pytest.mark.parametrize("name", ["hidden_states", "topk_ids", "topk_weights", "recv_counts"])
def test_one_wrong_element_is_found(name):
    expected, result = receive(CASE, 1)
    tensor = getattr(result, name)
    if name == "hidden_states":
        tensor.view(torch.int16)[0, 3] ^= 1
    else:
        tensor.view(-1)[0] += 1
    with pytest.raises(CheckError, match="on rank 1"):
        check_dispatch(expected, result, "fence")


def test_an_id_in_an_empty_row_is_found():
    expected, result = receive(CASE, 1)
    (row,) = (result.topk_ids == -1).all(dim=1).nonzero()[:1].flatten().tolist()
    result.topk_ids[row, 0] = 5
    with pytest.raises(CheckError, match="rows without a token"):
        check_dispatch(expected, result, "fence")


def test_one_wrong_bit_of_a_combine_is_found():
    expected = Expectation(CASE, 2)
    output = expected.output.clone()
    check_combine(expected, output)
    output.view(torch.int16)[9, 15] ^= 1
    with pytest.raises(CheckError, match="combined rows"):
        check_combine(expected, output)


def test_the_ladder_and_how_tokens_are_asked_for():
    assert tuple(tokens_of("1..8192")) == LADDER
    assert tokens_of("1,8,256") == [1, 8, 256]
    assert tokens_of("3..20,3") == [3, 6, 12]


def test_statistics_over_ranks():
    first, second = [1000 * value for value in range(1, 102)], [2000] * 101
    summary = summarize([first, second])
    assert summary.rank_min == 2.0
    assert summary.rank_max == statistics.median(first) / 1000 == 51.0
    assert summary.p50 == statistics.median(first + second) / 1000
    assert 60 < summary.p90 < 90 < summary.p99 <= 101


def test_timing_runs_each_phase_as_often_as_it_says():
    class Step:
        calls = ""

        def wait(self):
            self.calls += "w"

        def dispatch(self):
            self.calls += "d"

        def combine(self):
            self.calls += "c"

    step = Step()
    samples = time_steps(step, 3)
    assert step.calls == "wdc" * 4
    assert len(samples.dispatch) == len(samples.combine) == len(samples.pair) == 3
    assert Samples([1, 2], [10, 20]).pair == [11, 22]


@pytest.mark.parametrize("backend", ["torch_dist", "host"])
def test_bench_writes_one_row_a_case(backend, tmp_path):
    if backend == "host" and importlib.util.find_spec("moe_ep._core") is None:
        pytest.skip("the compiled module is missing")
    file = tmp_path / "rows.jsonl"
    result = bench("--backend", backend, "--tokens", "1,5", "--jsonl", str(file))
    assert result.exit_code == 0, result.output
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    assert [row["T"] for row in rows] == [1, 5]
    for row in rows:
        assert row["checked"] is True
        assert (row["R"], row["H"], row["K"], row["E"]) == (2, 34, 3, 8)
        assert row["transport"] == "fence"
        assert set(row["baselines"]) == {"memcpy", "gloo", "gloo_wire"}
        for phase in ("dispatch", "combine", "pair"):
            times = row[phase]
            assert 0 < times["rank_min_us"] <= times["rank_max_us"]
            assert 0 < times["p50_us"] <= times["p90_us"] <= times["p99_us"]
            assert times["logical_bytes"] >= times["physical_bytes"]
            assert row["ratios"][f"{phase}_to_gloo"] > 0
        assert {"git", "cpu", "routing", "seed", "threads", "pinned", "mode", "pdl"} <= set(row)
    assert "/memcpy" in result.stdout


def test_bench_prints_json_lines():
    result = bench("--backend", "torch_dist", "--tokens", "2", "--json", "--no-baselines")
    assert result.exit_code == 0, result.output
    (row,) = [json.loads(line) for line in result.stdout.splitlines()]
    assert row["baselines"] == row["ratios"] == {}


@pytest.mark.parametrize(
    "options",
    [
        ("--combine-external",),
        ("--routing", "skewed", "--dtype", "fp32"),
        ("--routing", "perfect", "--format", "DeepSeekFp8", "--no-pin"),
    ],
    ids=" ".join,
)
def test_bench_variants(options):
    if importlib.util.find_spec("moe_ep._core") is None:
        pytest.skip("the compiled module is missing")
    result = bench("--tokens", "3", *options)
    assert result.exit_code == 0, result.output


def test_what_does_not_fit_into_memory_is_left_out_and_said(monkeypatch):
    monkeypatch.setattr("moe_ep.machine.memory.available_bytes", lambda: 1000)
    result = bench("--backend", "torch_dist", "--tokens", "4")
    assert result.exit_code == 1
    assert "left out: custom T=4" in result.stderr
