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
from moe_ep.bench.floor import h200_floor_us
from moe_ep.bench.gpu.graph import pairs_of, phase_times
from moe_ep.bench.gpu.limits import rate_gbps
from moe_ep.bench.gpu.report import make_gpu_rows
from moe_ep.bench.gpu.worker import GpuResult
from moe_ep.bench.inputs import make_inputs, visits
from moe_ep.bench.plot import has_matplotlib, plot_rows, series_of
from moe_ep.bench.timing import Samples, summarize, summarize_replays, time_steps
from moe_ep.cli._bench_gpu import make_gpu_table
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
        assert row["transport"] in ("fence", "lamport", "counted")
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
        ("--dispatch-format", "fp8", "--fp8-combine", "--transport", "fence"),
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


LIMITS = {
    "gpu": "NVIDIA H200",
    "cuda": "13.0",
    "nccl": "2.0",
    "compute_capability": [9, 0],
    "two_way_gbps": 400.0,
    "graph_kernel_us": 1.0,
}


def gpu_rows(case=None, **options):
    """Records of two ranks that each send 6 rows to the other and 4 to themselves."""
    ranks = []
    for rank, scale in enumerate((1000.0, 2000.0)):
        samples = {
            ("graph", "library", "pair"): [scale, 3 * scale, 2 * scale],
            ("graph", "nccl_all_to_all", "pair"): [8 * scale] * 3,
            ("eager", "library", "pair"): [2 * scale] * 3,
            ("eager", "library", "host"): [500.0] * 3,
        }
        ranks.append(GpuResult(samples, [4, 6] if rank == 0 else [6, 4], "fence", 1, ["said"]))
    case = case or Case("custom", 2, 10, 256, 4, 8, backend="nvlink_one_sided")
    return make_gpu_rows({"git": "abc"}, case, LIMITS, ranks, **{"is_one_gpu": False, **options})


def test_gpu_records_count_physical_bytes_against_the_link():
    graph, eager = gpu_rows()
    assert (graph["mode"], eager["mode"]) == ("graph", "eager")
    pair = graph["pair"]
    physical = 6 * (512 + 4 * 8) + 6 * 512
    assert pair["physical_bytes"] == physical
    assert pair["logical_bytes"] == physical * 10 // 6
    assert pair["p50_us"] == 4.0  # of 2, 6 and 4: the slower rank
    assert (pair["rank_min_us"], pair["rank_max_us"]) == (2.0, 4.0)
    assert pair["link_percent"] == pytest.approx(physical / 4e3 / 400 * 100, abs=0.01)
    assert graph["ratios"] == {"pair_to_nccl_all_to_all": 0.25}
    assert graph["floor_us"] == round(h200_floor_us(physical), 3)
    assert graph["checked"] is True
    assert graph["pdl"] is True
    assert graph["host"] is None
    assert eager["host"]["p50_us"] == 0.5
    json.dumps([graph, eager])


def test_ranks_on_one_gpu_are_held_against_no_link():
    graph, _ = gpu_rows(is_one_gpu=True)
    assert graph["pair"]["link_percent"] is graph["floor_us"] is None
    assert graph["processes"] == 1


def test_an_fp8_combine_moves_codes_and_scales():
    case = Case("custom", 2, 10, 256, 4, 8, is_fp8_combine=True, pdl=False)
    graph, _ = gpu_rows(case)
    assert graph["pair"]["physical_bytes"] == 6 * (512 + 4 * 8) + 6 * (256 + 8)
    assert graph["pdl"] is False


def test_a_replay_lasts_as_long_as_its_slowest_rank():
    summary = summarize_replays([[1000, 5000, 1000], [2000, 1000, 3000]])
    assert (summary.p50, summary.rank_min, summary.rank_max) == (3.0, 1.0, 2.0)


def test_phases_between_marks_and_rates():
    assert phase_times([0, 10, 30, 42, 60]) == {"dispatch": 11, "combine": 19}
    assert (pairs_of(1024), pairs_of(2048)) == (20, 6)
    assert rate_gbps(4e9, 10) == 400


def test_the_picture_has_the_floor_and_the_link(tmp_path):
    rows = gpu_rows()
    times, shares = series_of(rows)
    assert {"custom floor", "custom copy engines", "custom nccl_all_to_all graph"} <= set(times)
    assert len(shares) == 2
    if not has_matplotlib():
        pytest.skip("matplotlib is missing")
    plot_rows(rows, tmp_path / "run.svg")
    assert (tmp_path / "run.svg").stat().st_size > 1000


def test_the_gpu_table_has_a_line_a_record():
    assert make_gpu_table(gpu_rows()).row_count == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--one-gpu",), "--one-gpu needs a GPU backend"),
        (("--dispatch-format", "fp7"), "got fp7"),
        (("--replays", "3"), "20"),
    ],
)
def test_wrong_options(options, message):
    result = bench(*options)
    assert result.exit_code == 2
    assert message in result.stderr


def test_a_gpu_backend_without_gpus_says_so(monkeypatch):
    monkeypatch.setattr("moe_ep.bench.gpu.run.count_gpus", lambda: 0)
    result = bench("--backend", "nvlink_one_sided")
    assert result.exit_code == 2
    assert "needs a GPU" in result.stderr


def test_a_picture_without_matplotlib_is_refused_before_anything_runs(monkeypatch, tmp_path):
    monkeypatch.setattr("moe_ep.bench.plot.has_matplotlib", lambda: False)
    result = bench("--plot", str(tmp_path / "run.svg"))
    assert result.exit_code == 2
    assert "matplotlib" in result.stderr


@pytest.mark.gpu
@pytest.mark.parametrize("options", [(), ("--one-gpu", "--ranks", "2")], ids=["gpus", "one-gpu"])
def test_bench_on_gpus(options, tmp_path):
    if not torch.cuda.is_available():
        pytest.skip("there is no GPU")
    file = tmp_path / "rows.jsonl"
    result = CliRunner().invoke(
        app,
        [
            *("bench", "--backend", "nvlink_one_sided", "--hidden", "256", "--top-k", "4"),
            *("--experts", "64", "--tokens", "1,16,1024", "--replays", "20"),
            *("--jsonl", str(file), *options),
        ],
    )
    assert result.exit_code == 0, result.output
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    assert [(row["T"], row["mode"]) for row in rows] == [
        (tokens, mode) for tokens in (1, 16, 1024) for mode in ("graph", "eager")
    ]
    assert all(row["checked"] and row["pair"]["p50_us"] > 0 for row in rows)
    assert rows[4]["dispatch"]["p50_us"] > 0
