"""Rank masks: steps that leave ranks out."""

import pytest
import torch

from support.cases import Case
from support.oracle import run_round, supported

CASE = Case(tokens=(5, 3, 4, 6), num_experts=16, top_k=4, hidden_size=24, eplb=16)


@pytest.fixture
def masked(backend):
    if not backend.has("enable_rank_mask"):
        pytest.skip("the backend has no rank mask")
    return backend


def create(rank, case=CASE, **options):
    return rank.create(case.params, **supported(rank, [case]), **options)


def without(rank, left_out, by_argument):
    active = [r for r in range(rank.world_size) if r not in left_out]
    instance = create(rank, enable_rank_mask=True)
    run_round(rank, instance, CASE)
    rank.comm.barrier()  # a rank that is dropped in the middle of a step has no result of it
    if rank.rank in left_out:
        rank.comm.barrier()
        return
    if not by_argument:
        instance.set_active_ranks(active)
    for seed in range(6):
        case = CASE.again(seed, picks="void" if seed == 3 else "random")
        run_round(
            rank,
            instance,
            case,
            active=active,
            by_argument=by_argument,
            in_buffer=seed % 2 == 1,
        )
    rank.comm.barrier()


@pytest.mark.parametrize("by_argument", [True, False], ids=["argument", "default"])
@pytest.mark.parametrize("left_out", [[3], [0], [1, 2], [0, 1, 3]], ids=str)
def test_ranks_left_out_get_and_give_nothing(masked, left_out, by_argument):
    """FR-094: their tokens are dropped, nobody waits for them, their statistics are zero."""
    masked.run(4, without, left_out, by_argument)


def all_ones(rank):
    plain = create(rank)
    masking = create(rank, enable_rank_mask=True, share_workspace=False)
    for seed in range(3):
        case = CASE.again(seed)
        one = run_round(rank, plain, case)
        two = run_round(rank, masking, case, active=list(range(rank.world_size)))
        assert torch.equal(one.view(torch.int16), two.view(torch.int16))


def test_a_mask_of_all_ranks_is_no_mask(masked):
    """FR-094: to the bit."""
    masked.run(4, all_ones)


def bad_masks(rank):
    plain = create(rank)
    instance = create(rank, enable_rank_mask=True, share_workspace=False)
    arguments = CASE.tensors(rank.rank)
    everybody = instance.active_rank_mask(range(4))
    with pytest.raises(ValueError, match=r"dispatch: .*enable_rank_mask"):
        plain.dispatch(**arguments, active_rank_mask=everybody)
    others = instance.active_rank_mask([r for r in range(4) if r != rank.rank])
    with pytest.raises(ValueError, match=rf"dispatch: .*own rank {rank.rank}"):
        instance.dispatch(**arguments, active_rank_mask=others)
    beyond = torch.tensor([0b11111, 0, 0, 0], dtype=torch.uint64, device="cpu")
    for mask in (beyond, torch.tensor([15, 1, 0, 0], dtype=torch.uint64, device="cpu")):
        with pytest.raises(ValueError, match=r"dispatch: .*got"):
            instance.dispatch(**arguments, active_rank_mask=mask)
    for mask in (everybody.to(torch.int64), everybody[:0], everybody.view(2, 2), [15]):
        with pytest.raises((ValueError, TypeError), match=r"dispatch: .*got"):
            instance.dispatch(**arguments, active_rank_mask=mask)
    for ranks in ([4], [-1]):
        with pytest.raises(ValueError, match="got"):
            instance.active_rank_mask(ranks)
        with pytest.raises(ValueError, match="got"):
            instance.set_active_ranks(ranks)
    run_round(rank, instance, CASE, active=[0, 1, 2, 3])
    run_round(rank, plain, CASE)


def test_bad_masks_are_refused(masked):
    """Without the option, without the own bit, with bits of ranks that are not there."""
    masked.run(4, bad_masks)


def combine_with(rank):
    instance = create(rank, enable_rank_mask=True)
    rows = torch.zeros(24, 24, dtype=torch.bfloat16)
    mask = instance.active_rank_mask
    active = [0, 1, 2]
    if rank.rank in active:
        for seed in range(2):
            arguments = CASE.again(seed).tensors(rank.rank)
            instance.dispatch(**arguments, active_rank_mask=mask(active))
            with pytest.raises(RuntimeError, match="combine"):
                instance.combine(rows, active_rank_mask=mask(range(4)))
            instance.combine(rows, active_rank_mask=mask(active) if seed else None)
    rank.comm.barrier()


def test_combine_inherits_the_mask(masked):
    """The same mask may be repeated; another one is an error."""
    masked.run(4, combine_with)


def one_word(rank):
    instance = create(rank, enable_rank_mask=True)
    mask = torch.tensor([15], dtype=torch.uint64, device="cpu")
    result = instance.dispatch(**CASE.tensors(rank.rank), active_rank_mask=mask)
    instance.combine(torch.zeros_like(result.hidden_states), active_rank_mask=mask)


def test_a_mask_may_be_as_short_as_the_group(masked):
    masked.run(4, one_word)


def argument_wins(rank):
    instance = create(rank, enable_rank_mask=True)
    if rank.rank < 2:
        instance.set_active_ranks([0, 1])
    run_round(rank, instance, CASE, active=[0, 1, 2, 3])
    rank.comm.barrier()
    if rank.rank < 2:
        run_round(rank, instance, CASE.again(1), active=[0, 1], by_argument=False)
    rank.comm.barrier()


def test_an_argument_wins_over_the_default(masked):
    masked.run(4, argument_wins)
