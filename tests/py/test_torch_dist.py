"""TorchDistAlltoAll: what is its own, beyond the behaviour suite."""

import contextlib
import gc
import subprocess
import sys
import weakref
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

import moe_ep
from moe_ep.backends import _exchange
from moe_ep.comm import TorchDistBackend
from support.backends import BACKENDS, Rank
from support.cases import Case
from support.oracle import run_round, run_rounds

PARAMS = moe_ep.MoEEpCommParams(4, 2, 8, 16)


def rank_of(context, members, group):
    """`Rank` of this process in a group of these global ranks."""
    index = members.index(context.rank)
    backend = BACKENDS["torch_dist"]
    return Rank(backend, index, len(members), TorchDistBackend(group), group)


def run_in_group(context, members, *, reverse=False):
    group = dist.new_group(list(members), sort_ranks=not reverse)
    if context.rank in members:
        rank = rank_of(context, members, group)
        case = Case(tokens=(3, 1, 2, 4)[: len(members)], num_experts=12, top_k=3, capacity=4)
        run_rounds(rank, [case.again(seed) for seed in range(5)])
        rank.close()


@pytest.mark.parametrize("members", [(0, 1), (2, 3), (0, 2), (1, 3), (4, 5, 7)], ids=str)
def test_subgroups(ranks, members):
    """FR-143: with and without global rank 0."""
    ranks.run(run_in_group, members)


def run_reversed(context, members):
    run_in_group(context, members, reverse=True)


@pytest.mark.parametrize("members", [(3, 1), (2, 1, 0), (5, 0, 6)], ids=str)
def test_groups_in_another_order(ranks, members):
    """FR-143: the rank is the group's own."""
    ranks.run(run_reversed, members)


def run_two_groups(context):
    rows, columns = (0, 1), (0, 2)
    groups = {members: dist.new_group(list(members)) for members in (rows, (2, 3), columns, (1, 3))}
    mine = [members for members in groups if context.rank in members]
    made = [rank_of(context, members, groups[members]) for members in mine]
    case = Case(tokens=(2, 3), capacity=3)
    instances = [rank.create(case.params) for rank in made]
    for seed in range(5):
        for index, (rank, instance) in enumerate(zip(made, instances, strict=True)):
            run_round(rank, instance, case.again(10 * seed + index), in_buffer=True)
    for rank in made:
        rank.close()


def test_groups_of_different_members_do_not_meet(ranks):
    """FR-145: used alternately."""
    ranks.run(run_two_groups, ranks=range(8))


def where_the_group_comes_from(context):
    made = []
    if context.rank < 2:
        group = context.state.group((0, 1))
        bootstrap = moe_ep.BootstrapConfig(2, context.rank, process_group=group)
        made.append(moe_ep.TorchDistAlltoAll(bootstrap, PARAMS))
        config = moe_ep.TorchDistConfig(process_group=group)
        wrong = moe_ep.BootstrapConfig(2, context.rank, process_group=dist.group.WORLD)
        made.append(moe_ep.TorchDistAlltoAll(wrong, PARAMS, config))
        made.append(moe_ep.create_communication(bootstrap, PARAMS, "torch_dist"))
    world = moe_ep.BootstrapConfig(8, context.rank)
    made.append(moe_ep.TorchDistAlltoAll(world, moe_ep.MoEEpCommParams(8, 2, 8, 16)))
    for instance in made:
        instance.dispatch(torch.zeros(1, 16), torch.tensor([[0, 1]]))
        instance.destroy()


def test_where_the_group_comes_from(ranks):
    """The config's comes before the bootstrap's, and that before the default group."""
    ranks.run(where_the_group_comes_from)


def test_one_rank_needs_no_group():
    """FR-146: R = 1 without torch.distributed being initialised."""
    rank = Rank(BACKENDS["torch_dist"], 0, 1, None, None)
    case = Case(tokens=(5,), num_experts=6, top_k=3, eplb=6, extras=(("x", "uint8", 3),))
    run_rounds(rank, [case, case.again(1, picks="void"), case.again(2, tokens=(0,), capacity=5)])


def test_the_environment_says_nothing(monkeypatch):
    """FR-150: rank and size come from the bootstrap alone."""
    for name, value in {"RANK": "3", "WORLD_SIZE": "9", "LOCAL_RANK": "2"}.items():
        monkeypatch.setenv(name, value)
    instance = moe_ep.TorchDistAlltoAll(moe_ep.BootstrapConfig(1, 0), PARAMS)
    result = instance.dispatch(torch.zeros(1, 16), torch.tensor([[0, 3]]))
    assert result.recv_counts.tolist() == [1]


def test_several_ranks_need_a_group():
    with pytest.raises(moe_ep.MoEEpError, match=r"TorchDistAlltoAll: 2 ranks need a process group"):
        moe_ep.TorchDistAlltoAll(moe_ep.BootstrapConfig(2, 0), PARAMS)


def bad_constructions(context):
    group = context.state.group((0, 1))
    with pytest.raises(ValueError, match=r"bootstrap.world_size = 4 ranks, got 2"):
        moe_ep.TorchDistAlltoAll(
            moe_ep.BootstrapConfig(4, context.rank, process_group=group), PARAMS
        )
    # What only one rank does wrong, both hear of.
    swapped = moe_ep.BootstrapConfig(2, 1, process_group=group)
    with pytest.raises(ValueError, match=r"rank 0: comm_backend must have the bootstrap's rank"):
        moe_ep.TorchDistAlltoAll(swapped, PARAMS)
    good = moe_ep.BootstrapConfig(2, context.rank, process_group=group)
    config = moe_ep.HostAlltoAllConfig() if context.rank == 1 else None
    with pytest.raises(TypeError, match="rank 1: config must be a TorchDistConfig or None, got Ho"):
        moe_ep.TorchDistAlltoAll(good, PARAMS, config)
    moe_ep.TorchDistAlltoAll(good, PARAMS).destroy()


def test_bad_constructions_raise_on_every_rank(ranks):
    """FR-144: and a good one works afterwards."""
    ranks.run(bad_constructions, ranks=range(2))


def count_messages(context):
    group = context.state.group((0, 1))
    counted = []

    class Counting:
        def __getattr__(self, name):
            counted.append(name)
            return getattr(dist, name)

    rank = rank_of(context, (0, 1), group)
    case = Case(tokens=(3, 2), scale=("uint8", 3), extras=(("x", "uint8", 3),), eplb=5)
    instance = rank.create(case.params)
    _exchange.dist = Counting()
    try:
        result = instance.dispatch(**case.again(0, eplb=0).tensors(rank.rank))
        assert counted == ["all_to_all_single", "all_to_all_single"]
        instance.combine(torch.zeros_like(result.hidden_states))
        assert counted == ["all_to_all_single"] * 3
        instance.dispatch(**case.tensors(rank.rank))
        assert counted == ["all_to_all_single"] * 5 + ["all_gather"]
    finally:
        _exchange.dist = dist
    rank.close()


def test_a_step_takes_few_messages(ranks):
    """The signature travels with the counts, all payloads together."""
    ranks.run(count_messages, ranks=range(2))


def differ(context, changes):
    group = context.state.group((0, 1, 2))
    rank = rank_of(context, (0, 1, 2), group)
    case = Case(tokens=(2, 2, 2), num_experts=12)
    instance = rank.create(case.params)
    arguments = {**case.tensors(rank.rank), **changes[rank.rank]}
    with pytest.raises(moe_ep.MoEEpMismatchError) as caught:
        instance.dispatch(**arguments)
    message = str(caught.value)
    with pytest.raises(moe_ep.MoEEpMismatchError, match="must be equal"):
        instance.dispatch(**arguments)
    instance.recover([2, 0, 1], rank.comm)
    run_round(rank, instance, case)
    rank.close()
    return message


ROWS = torch.zeros(2, 3, dtype=torch.uint8)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            [{"extra_payloads": {"a": ROWS}}, {"extra_payloads": {"b": ROWS}}, {}],
            ["extra_payloads name 0", "none on rank 2"],
        ),
        (
            [{"extra_payloads": {"a": ROWS}}, {"extra_payloads": {"a": ROWS[:, :2]}}, {}],
            ["extra_payloads[0] bytes a row must", "got 3 on rank 0, 2 on rank 1 and none on ra"],
        ),
        (
            [{"eplb_local_stats": torch.zeros(n, dtype=torch.int32)} for n in (4, 5, 4)],
            ["eplb_local_stats length must", "got 4 on ranks 0, 2 and 5 on rank 1"],
        ),
        (
            [{"hidden_states_scale": ROWS}, {}, {"hidden_states_scale": ROWS}],
            ["hidden_states_scale bytes a row must", "got 3 on ranks 0, 2 and none on rank 1"],
        ),
        (
            [{}, {"hidden_states": torch.zeros(2, 16, dtype=torch.float16)}, {}],
            ["hidden_states dtype must", "got bfloat16 on ranks 0, 2 and float16 on rank 1"],
        ),
        (
            [{"topk_weights": torch.zeros(2, 2, dtype=torch.float16)}, {}, {}],
            ["topk_weights bytes a row must", "got 4 on rank 0 and 8 on ranks 1, 2"],
        ),
    ],
)
def test_differences_are_named_on_every_rank(ranks, changes, words):
    """FR-009: field and values, without a further message; `recover` ends it."""
    messages = ranks.run(differ, changes, ranks=range(3))
    for message in messages:
        for word in words:
            assert word in message
    if "extra_payloads" not in words[0]:  # a rank knows the names of its own payloads only
        assert len(set(messages)) == 1


def payloads_in_another_order(context):
    rank = rank_of(context, (0, 1), context.state.group((0, 1)))
    instance = rank.create(PARAMS)
    names = ["b", "a", "c"] if rank.rank == 0 else ["a", "c", "b"]
    rows = {name: torch.full((1, ord(name) - 96), ord(name)) for name in names}
    ids = torch.tensor([[0, 3]])
    result = instance.dispatch(torch.zeros(1, 16), ids, extra_payloads=rows)
    assert list(result.extra_payloads) == names
    for name, tensor in result.extra_payloads.items():
        assert tensor.shape == (16, ord(name) - 96)
        assert (tensor[[0, 8]] == ord(name)).all()
    rank.close()


def test_extra_payloads_go_by_name(ranks):
    ranks.run(payloads_in_another_order, ranks=range(2))


def late_peer(context):
    group = dist.new_group([0, 1], timeout=timedelta(seconds=4))
    if context.rank > 1:
        return None
    rank = rank_of(context, (0, 1), group)
    instance = rank.create(PARAMS)
    arguments = (torch.zeros(1, 16, dtype=torch.bfloat16), torch.tensor([[0, 3]]))
    instance.dispatch(*arguments)
    if context.rank == 1:
        return None  # it never combines
    rows = torch.zeros(16, 16, dtype=torch.bfloat16)
    with pytest.raises(moe_ep.MoEEpError, match=r"combine: .*process group"):
        instance.combine(rows)
    reference = weakref.ref(rows)
    del rows
    for call in (
        lambda: instance.dispatch(*arguments),
        lambda: instance.combine(torch.zeros(16, 16, dtype=torch.bfloat16)),
        lambda: instance.get_combine_input_buffer(torch.bfloat16),
        instance.check,
        instance.synchronize,
    ):
        with pytest.raises(moe_ep.MoEEpError, match=r"combine: .*process group"):
            call()
    gc.collect()
    assert reference() is None, "the instance keeps the error's frames, and so its tensors"
    instance.destroy()
    instance.check()
    return type(caught_error(instance)).__name__


def caught_error(instance):
    with pytest.raises(RuntimeError) as caught:
        instance.combine(torch.zeros(16, 16, dtype=torch.bfloat16))
    return caught.value


def test_a_peer_that_does_not_come(ranks):
    """FR-097: the error stays until `recover`; nothing of the round is returned."""
    assert ranks.run(late_peer)[0] == "RuntimeError"


def bad_recoveries(context):
    rank = rank_of(context, (0, 1), context.state.group((0, 1)))
    instance = rank.create(PARAMS)
    with pytest.raises(ValueError, match=r"recover: active_ranks must be all of 0\.\.1"):
        instance.recover([0], rank.comm)
    world = TorchDistBackend()
    with pytest.raises(ValueError, match=r"recover: comm_backend must have rank . of 2, got .*8"):
        instance.recover([0, 1], world)
    with pytest.raises(TypeError, match="recover: comm_backend must offer"):
        instance.recover([0, 1], None)
    instance.destroy()
    with pytest.raises(RuntimeError, match="destroyed"):
        instance.recover([0, 1], rank.comm)


def test_recover_checks_its_arguments(ranks):
    ranks.run(bad_recoveries, ranks=range(2))


def references_after_destroy(context):
    group = context.state.group((0, 1))
    bootstrap = moe_ep.BootstrapConfig(2, context.rank)
    config = moe_ep.TorchDistConfig(process_group=group)
    gc.collect()
    before = sys.getrefcount(group)
    instance = moe_ep.TorchDistAlltoAll(bootstrap, PARAMS, config)
    instance.dispatch(torch.zeros(1, 16, dtype=torch.bfloat16), torch.tensor([[0, 3]]))
    assert sys.getrefcount(group) > before
    instance.destroy()
    gc.collect()
    assert sys.getrefcount(group) == before


def test_destroy_drops_the_process_group(ranks):
    """FR-130: also with a round open."""
    ranks.run(references_after_destroy, ranks=range(2))


EXIT_PROGRAM = """
import sys
import torch, torch.distributed as dist
import moe_ep
rank, path, order = int(sys.argv[1]), sys.argv[2], sys.argv[3]
dist.init_process_group("gloo", init_method="file://" + path, rank=rank, world_size=2)
instance = moe_ep.TorchDistAlltoAll(
    moe_ep.BootstrapConfig(2, rank), moe_ep.MoEEpCommParams(4, 2, 8, 16)
)
result = instance.dispatch(torch.zeros(1, 16, dtype=torch.bfloat16), torch.tensor([[0, 3]]))
instance.combine(result.hidden_states)
for step in order.split("-"):
    if step == "instance":
        instance.destroy()
    if step == "group":
        dist.destroy_process_group()
"""


@pytest.mark.slow
@pytest.mark.parametrize("order", ["instance-group", "group-instance", "group"])
def test_any_order_of_leaving(order, tmp_path):
    """FR-130: exit code 0, in seconds.

    Not with a group that is never destroyed: its threads may then drop their last tensor while the
    interpreter ends, which ends the process.
    """
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", EXIT_PROGRAM, str(rank), str(tmp_path / "rendezvous"), order],
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        outcomes = [process.communicate(timeout=90)[1] for process in processes]
        assert [process.returncode for process in processes] == [0, 0], outcomes
        assert "Exception ignored" not in "".join(outcomes)
    finally:
        for process in processes:
            with contextlib.suppress(ProcessLookupError):
                process.kill()


def failed_constructor():
    with pytest.raises(moe_ep.MoEEpError):
        moe_ep.TorchDistAlltoAll(moe_ep.BootstrapConfig(2, 0), PARAMS)


def test_a_failed_constructor_leaves_nothing_behind(recwarn):
    """FR-129: nothing is raised when the half-made object goes."""
    failed_constructor()
    gc.collect()
    assert not [warning for warning in recwarn if "Exception ignored" in str(warning.message)]


def test_platform():
    assert moe_ep.TorchDistAlltoAll.is_platform_supported() is True
    assert moe_ep.TorchDistAlltoAll.explain_platform() == ""
