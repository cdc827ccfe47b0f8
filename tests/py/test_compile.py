"""Compiled graphs keep dispatch and combine."""

import pytest
import torch

import moe_ep
from support.cases import Case
from support.oracle import run_round

CASE = Case(
    tokens=(5,),
    num_experts=4,
    hidden_size=16,
    capacity=6,
    weights="float32",
    scale=("float32", 1),
    extras=(("b", "int32", 2), ("a", "uint8", 3)),
    eplb=4,
)


def make(case, **options):
    config = moe_ep.HostAlltoAllConfig(**case.options, **options)
    return moe_ep.HostAlltoAll(moe_ep.BootstrapConfig(1, 0), case.params, config)


def same(one, two):
    """Equal bytes: NaN is like NaN."""
    return one.shape == two.shape and torch.equal(
        one.contiguous().view(torch.uint8), two.contiguous().view(torch.uint8)
    )


def layer(instance, arguments, *, in_buffer=False, output=None):
    result = instance.dispatch(**arguments)
    rows = result.hidden_states * 2
    if in_buffer:
        buffer = instance.get_combine_input_buffer(torch.bfloat16)
        buffer.copy_(rows)
        rows = buffer
    combined = instance.combine(rows, output=output)
    return combined + 1, result


@pytest.mark.parametrize("given_output", [False, True], ids=["fresh", "output"])
@pytest.mark.parametrize("in_buffer", [False, True], ids=["tensor", "buffer"])
def test_a_compiled_layer_gives_the_eager_one_s_bits(in_buffer, given_output):
    """All optional tensors travel; results keep their names; the graph does not break."""
    arguments = CASE.tensors(0)
    instance = make(CASE)
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    outputs = [torch.zeros(5, 16, dtype=torch.bfloat16) if given_output else None] * 2
    for _ in range(3):
        eager, eager_result = layer(instance, arguments, in_buffer=in_buffer, output=outputs[0])
        traced, result = compiled(instance, arguments, in_buffer=in_buffer, output=outputs[1])
        assert same(traced, eager)
        assert result.tokens_per_rank == eager_result.tokens_per_rank
        assert list(result.extra_payloads) == ["a", "b"]
        taken = int(eager_result.recv_counts.sum())
        for name in ("hidden_states", "topk_ids", "topk_weights", "hidden_states_scale"):
            one, two = getattr(result, name), getattr(eager_result, name)
            assert same(one[:taken], two[:taken]), name
        assert same(result.recv_counts, eager_result.recv_counts)
        assert same(result.eplb_gathered_stats, eager_result.eplb_gathered_stats)
        for name, rows in eager_result.extra_payloads.items():
            assert same(result.extra_payloads[name][:taken], rows[:taken])


def test_eager_steps_go_on_after_compiled_ones():
    case = Case(tokens=(5,), num_experts=4, hidden_size=16)
    instance = make(case)
    torch.compile(layer, backend="aot_eager", fullgraph=True)(instance, case.tensors(0))

    class Rank:
        rank = 0

    run_round(Rank, instance, case.again(1))


def test_operators_pass_torchs_own_checks():
    """Schema and fake implementation fit what combine does; dispatch's results share memory."""
    case = Case(tokens=(3,), num_experts=4, hidden_size=16)
    instance = make(case)
    instance.dispatch(**case.tensors(0))
    rows = torch.zeros(3, 16, dtype=torch.bfloat16)
    combine = (torch.zeros(1, dtype=torch.uint8), instance._traced.number, rows, 3, None)
    torch.library.opcheck(torch.ops.moe_ep.combine.default, combine, test_utils="test_schema")


def test_eager_steps_do_not_care_who_compiles(monkeypatch):
    """torch's flag of a compilation is the whole process's; steps of other threads go on."""
    case = Case(tokens=(3,), num_experts=4, hidden_size=16)
    instance = make(case)
    monkeypatch.setattr(torch.compiler, "_is_compiling_flag", True)
    result = instance.dispatch(**case.tensors(0))
    assert result.tokens_per_rank == 3
    assert instance.combine(result.hidden_states).shape == (3, 16)


def test_results_of_a_graph_are_memory_of_its_own():
    """Compilers write other things into results that a graph has read."""
    case = Case(tokens=(3,), num_experts=4, hidden_size=16)
    instance = make(case)
    arguments = case.tensors(0)
    view = instance.dispatch(**arguments)
    instance.combine(view.hidden_states)
    kept = view.recv_counts.clone()
    _, result = torch.compile(layer, backend="aot_eager", fullgraph=True)(instance, arguments)
    for tensor in (result.hidden_states, result.topk_ids, result.topk_weights, result.recv_counts):
        tensor.zero_()
    assert torch.equal(view.recv_counts, kept)


def test_a_compiled_combine_knows_the_tokens_of_an_eager_dispatch():
    case = Case(tokens=(3,), num_experts=4, hidden_size=16, capacity=6)
    instance = make(case)
    result = instance.dispatch(**case.tensors(0))

    @torch.compile(backend="aot_eager", fullgraph=True)
    def finish(rows):
        combined = instance.combine(rows)
        return combined + combined.new_ones(combined.shape[0], 1)

    assert finish(result.hidden_states).shape == (3, 16)


def test_no_gradient_passes_a_compiled_layer():
    case = Case(tokens=(3,), num_experts=4, hidden_size=16)
    instance = make(case)
    arguments = case.tensors(0)
    arguments["hidden_states"].requires_grad_()
    traced, _ = torch.compile(layer, backend="aot_eager", fullgraph=True)(instance, arguments)
    assert not traced.requires_grad


def test_too_many_extra_payloads_are_refused_in_a_graph():
    case = Case(tokens=(3,), num_experts=4, hidden_size=16)
    instance = make(case)
    arguments = case.tensors(0)
    arguments["extra_payloads"] = {str(i): torch.zeros(3, 1) for i in range(5)}
    with pytest.raises(Exception, match="at most 4 tensors"):
        torch.compile(layer, backend="aot_eager")(instance, arguments)


def test_a_graph_whose_instance_is_gone_says_so():
    token = torch.zeros(1, dtype=torch.uint8)
    with pytest.raises(RuntimeError, match="instance must be alive"):
        torch.ops.moe_ep.combine(token, 0, torch.zeros(1, 4), 1, None)
