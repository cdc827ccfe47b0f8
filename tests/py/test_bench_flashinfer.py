"""The benchmark's FlashInfer baseline, over a stand-in with FlashInfer's signatures and habits.

The stand-in moves rows by the host backend and then puts each block's rows in another order, a new
one in every step, as FlashInfer's kernels do.
"""

import dataclasses
import enum
import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch

import moe_ep
from moe_ep.bench.cases import Case
from moe_ep.bench.checks import CheckError, Expectation
from moe_ep.bench.gpu.flashinfer import FlashInferStep
from moe_ep.comm import LocalGroup
from moe_ep.launch import Seat
from moe_ep.testing import spawn_ranks

R = 3
CASE = Case("custom", R, 9, 64, 3, 12)

Formats = enum.Enum("QuantFormat", list(moe_ep.QuantFormat.__members__))


@dataclasses.dataclass(frozen=True)
class Params:
    num_experts: int
    top_k: int
    max_tokens_per_rank: int
    hidden_size: int
    dtype: torch.dtype | None = None
    dispatch_format: Formats | None = None
    invalid_expert_id: int = -1


@dataclasses.dataclass
class Config:
    use_low_precision_combine: bool = False
    comm_backend: object = None


@dataclasses.dataclass(frozen=True)
class Bootstrap:
    world_size: int
    rank: int
    process_group: object = None


@dataclasses.dataclass(frozen=True)
class Result:
    hidden_states: torch.Tensor
    topk_ids: torch.Tensor
    topk_weights: torch.Tensor | None
    tokens_per_rank: int
    hidden_states_scale: torch.Tensor | None = None


class StandIn:
    """`break_dispatch(result)` and `break_combine(rows)` spoil what it gives."""

    group: LocalGroup
    break_dispatch = break_combine = staticmethod(lambda rows: None)

    def __init__(self, bootstrap: Bootstrap, params: Params, config: Config | None = None) -> None:
        fields = dataclasses.asdict(params)
        if params.dispatch_format is not None:
            assert isinstance(params.dispatch_format, Formats)
            fields["dispatch_format"] = moe_ep.QuantFormat[params.dispatch_format.name]
        self._ours = moe_ep.create_communication(
            moe_ep.BootstrapConfig(bootstrap.world_size, bootstrap.rank),
            moe_ep.MoEEpCommParams(**fields),
            moe_ep.HostAlltoAllConfig(
                use_low_precision_combine=config.use_low_precision_combine,
                comm_backend=self.group.backend(bootstrap.rank),
                lamport=False,
            ),
        )
        self._random = torch.Generator().manual_seed(bootstrap.rank)
        self._rows = torch.zeros(R * params.max_tokens_per_rank, params.hidden_size).bfloat16()
        self._order = torch.arange(0)

    def dispatch(self, hidden_states, topk_ids, topk_weights=None, *, hidden_states_scale=None):
        got = self._ours.dispatch(
            hidden_states, topk_ids, topk_weights, hidden_states_scale=hidden_states_scale
        )
        blocks = []
        for src, count in enumerate(got.recv_counts.tolist()):
            rows = torch.arange(got.tokens_per_rank) + src * got.tokens_per_rank
            rows[:count] = rows[:count][torch.randperm(count, generator=self._random)]
            blocks.append(rows)
        self._order = torch.cat(blocks)
        payloads = (got.hidden_states, got.topk_ids, got.topk_weights, got.hidden_states_scale)
        hidden, ids, weights, scale = (
            None if rows is None else rows.view(torch.uint8)[self._order].view(rows.dtype)
            for rows in payloads
        )
        result = Result(hidden, ids, weights, got.tokens_per_rank, scale)
        type(self).break_dispatch(result)
        return result

    def get_combine_input_buffer(self, dtype):
        return self._rows

    def combine(self, expert_output, *, output=None):
        rows = torch.empty_like(expert_output)
        rows[self._order] = expert_output
        type(self).break_combine(rows)
        return self._ours.combine(rows, output=output)

    def destroy(self):
        self._ours.destroy()


@pytest.fixture
def stand_in(monkeypatch):
    monkeypatch.setattr(StandIn, "group", LocalGroup(R), raising=False)
    names = {
        "moe_ep": {
            "MoEEpCommParams": Params,
            "NVLinkOneSidedConfig": Config,
            "BootstrapConfig": Bootstrap,
            "NVLinkOneSidedAlltoAll": StandIn,
        },
        "fused_moe": {"QuantFormat": Formats},
    }
    monkeypatch.setitem(sys.modules, "flashinfer", ModuleType("flashinfer"))
    for name, members in names.items():
        module = ModuleType(f"flashinfer.{name}")
        vars(module).update(members)
        monkeypatch.setitem(sys.modules, module.__name__, module)


def run(case, use):
    """Call `use(step)` on every rank; return what it raised on each."""
    group = LocalGroup(R)

    def work(rank):
        comm = group.backend(rank)
        gpu = SimpleNamespace(seat=Seat(rank, R, comm), settle=comm.barrier)
        step = FlashInferStep(gpu, Expectation(case, rank))
        raised = ""
        try:
            use(step)
        except CheckError as error:
            raised = str(error)
        comm.barrier()
        step.close()
        return raised

    return spawn_ranks(work, R, mode="threads", timeout=60)


def measure(step):
    """What a run does with a step."""
    step.check()
    step.prepare()
    step.probe()
    step.check_probe()
    for _ in range(3):
        step.dispatch()
        step.combine()
    step.check_last()


@pytest.mark.parametrize(
    "fields",
    [{}, {"is_in_place": False}, {"format_name": "DeepSeekFp8"}, {"is_fp8_combine": True}],
    ids=["bf16", "external", "fp8", "fp8-combine"],
)
@pytest.mark.usefixtures("stand_in")
def test_a_right_step_passes(fields):
    assert run(dataclasses.replace(CASE, **fields), measure) == [""] * R


def flip(result):
    (row, *_) = (result.topk_ids[:, 0] >= 0).nonzero().flatten().tolist()
    result.hidden_states.view(torch.uint8)[row, 40] ^= 1


def fill_empty_row(result):
    (row, *_) = (result.topk_ids[:, 0] == -1).nonzero().flatten().tolist()
    result.topk_ids[row, 0] = 5


def lose_a_weight(result):
    (row, *_) = (result.topk_ids[:, 0] >= 0).nonzero().flatten().tolist()
    result.topk_weights[row, -1] = 0


@pytest.mark.parametrize(
    ("spoil", "what"),
    [
        (flip, "hidden_states from rank"),
        (fill_empty_row, "number of rows from rank"),
        (lose_a_weight, "topk_weights from rank"),
    ],
)
@pytest.mark.usefixtures("stand_in")
def test_a_wrong_dispatch_is_found(monkeypatch, spoil, what):
    monkeypatch.setattr(StandIn, "break_dispatch", staticmethod(spoil))
    assert all(what in raised for raised in run(CASE, FlashInferStep.check))


@pytest.mark.usefixtures("stand_in")
def test_a_wrong_sum_is_found(monkeypatch):
    monkeypatch.setattr(StandIn, "break_combine", staticmethod(lambda rows: rows.mul_(1.02)))
    assert all("combined rows" in raised for raised in run(CASE, FlashInferStep.check))
