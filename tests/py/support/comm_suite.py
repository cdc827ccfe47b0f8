"""What every CommBackend must do; run on each rank of a group of at least three."""

import pytest

from moe_ep.comm import CommBackend

CHECKS = []


def check(function):
    CHECKS.append(function)
    return function


def check_all(comm, rank, size):
    for function in CHECKS:
        function(comm, rank, size)


@check
def it_knows_rank_and_size(comm, rank, size):
    assert isinstance(comm, CommBackend)
    assert (comm.Get_rank(), comm.Get_size()) == (rank, size)


@check
def allgather_returns_a_tuple_in_rank_order(comm, rank, size):
    gathered = comm.allgather({"rank": rank, "list": [rank] * rank, "pair": (rank, None)})
    assert type(gathered) is tuple
    assert gathered == tuple({"rank": r, "list": [r] * r, "pair": (r, None)} for r in range(size))
    assert type(gathered[-1]["pair"]) is tuple


@check
def messages_have_any_length(comm, rank, size):
    for unit in (0, 1, 5, 100_000):
        gathered = comm.allgather(b"x" * (unit * rank))
        assert [len(message) for message in gathered] == [unit * r for r in range(size)]
    assert comm.allgather(None) == (None,) * size


@check
def bcast_sends_the_root_s(comm, rank, size):
    for root in range(size):
        assert comm.bcast({"from": rank, "data": b"\0" * root}, root) == {
            "from": root,
            "data": b"\0" * root,
        }
    # What the others pass is ignored, whatever it is.
    assert comm.bcast("root's" if rank == 1 else object(), 1) == "root's"
    for root in (-1, size, None):
        with pytest.raises((ValueError, TypeError), match="bcast: root"):
            comm.bcast(1, root)


@check
def barrier_returns(comm, rank, size):
    for _ in range(5):
        comm.barrier()


@check
def many_operations_in_a_row(comm, rank, size):
    for index in range(40):
        assert comm.allgather((index, rank)) == tuple((index, r) for r in range(size))
        if index % 3 == 0:
            comm.barrier()


@check
def what_cannot_be_sent_raises_before_anything_is(comm, rank, size):
    with pytest.raises(TypeError, match="to send must"):
        comm.allgather(object())
    assert comm.allgather(rank) == tuple(range(size))


@check
def split_orders_by_key_then_by_rank(comm, rank, size):
    reverse = comm.Split(0, -rank)
    assert (reverse.Get_rank(), reverse.Get_size()) == (size - 1 - rank, size)
    assert reverse.allgather(rank) == tuple(reversed(range(size)))
    same_key = comm.Split(3, 7)
    assert same_key.allgather(rank) == tuple(range(size))


@check
def split_separates_colors(comm, rank, size):
    for color_of in (lambda r: r % 2, lambda r: -1 if r == 0 else 5):
        members = [r for r in range(size) if color_of(r) == color_of(rank)]
        part = comm.Split(color_of(rank), rank)
        assert (part.Get_rank(), part.Get_size()) == (members.index(rank), len(members))
        assert part.allgather(rank) == tuple(members)
        assert part.bcast(rank, len(members) - 1) == members[-1]
        part.barrier()
        # The parts do not wait for each other, and the whole still works.
        if rank == 0:
            part.allgather("once more")
        else:
            part.Split(0, 0).barrier() if 0 not in members else part.allgather("once more")
    assert comm.allgather(rank) == tuple(range(size))


@check
def split_of_a_split(comm, rank, size):
    part = comm.Split(0, -rank).Split(1 if rank == 0 else 0, 0)
    expected = (0,) if rank == 0 else tuple(reversed(range(1, size)))
    assert part.allgather(rank) == expected


@check
def split_wants_ints(comm, rank, size):
    for color, key in ((None, 0), (0, 1.5), (True, 0)):
        with pytest.raises(TypeError, match=r"Split: (color|key)"):
            comm.Split(color, key)
