"""spawn_ranks and RankPool: results, deadlines, and what went wrong."""

import os
import signal
import threading
import time

import pytest

from moe_ep.testing import RankError, RankPool, spawn_ranks


def double(rank, *values):
    return rank, [2 * value for value in values]


def fail_on_one(rank):
    if rank == 1:
        raise KeyError("the reason")
    return rank


def hang_on_one(rank):
    while rank == 1:
        time.sleep(0.05)
    return rank


def fail_while_others_wait(rank):
    if rank == 0:
        raise ValueError("the first cause")
    time.sleep(100)


@pytest.mark.parametrize("mode", ["threads", "processes"])
def test_results_come_in_rank_order(mode):
    expected = [(0, [2, 4]), (1, [2, 4]), (2, [2, 4])]
    assert spawn_ranks(double, 3, mode=mode, args=(1, 2)) == expected


@pytest.mark.parametrize("mode", ["threads", "processes"])
def test_an_exception_names_its_rank(mode):
    with pytest.raises(RankError, match="rank 1: KeyError: 'the reason'") as caught:
        spawn_ranks(fail_on_one, 2, mode=mode)
    assert list(caught.value.failures) == [1]
    failure = caught.value.failures[1]
    assert isinstance(failure.exception, KeyError)
    assert caught.value.__cause__ is failure.exception
    assert "in fail_on_one" in failure.traceback


def test_threads_have_a_deadline():
    started = time.monotonic()
    with pytest.raises(RankError, match=r"rank 1: did not return within \d"):
        spawn_ranks(lambda rank: time.sleep(30 if rank == 1 else 0), 2, mode="threads", timeout=1)
    assert time.monotonic() - started < 20


def test_an_unknown_mode_is_refused():
    with pytest.raises(ValueError, match="mode must be processes or threads, got 'fibers'"):
        spawn_ranks(double, 2, mode="fibers")


def test_processes_need_a_module_s_function():
    with pytest.raises(TypeError, match="a function of a module"):
        spawn_ranks(lambda rank: rank, 2)


@pytest.fixture(scope="module")
def pool():
    with RankPool(3, start_method="forkserver", setup=remember, setup_args=("x",)) as made:
        yield made


def remember(rank, world_size, word):
    return [word, rank, world_size]


def what_it_knows(context, value):
    context.state.append(value)
    return context.rank, context.world_size, context.state, os.getpid()


def test_processes_stay(pool):
    first = pool.run(what_it_knows, 1)
    second = pool.run(what_it_knows, 2)
    assert [entry[:2] for entry in first] == [(0, 3), (1, 3), (2, 3)]
    assert [entry[2] for entry in second] == [["x", rank, 3, 1, 2] for rank in range(3)]
    assert [entry[3] for entry in first] == [entry[3] for entry in second] == pool.pids()


def test_some_ranks_can_run(pool):
    assert [entry[0] for entry in pool.run(what_it_knows, 0, ranks=[2, 0])] == [2, 0]


class UnpicklableError(Exception):
    def __init__(self, one, two):
        super().__init__(one)
        self.lock = threading.Lock()


def raise_unpicklable(context):
    raise UnpicklableError("cannot travel", 2)


def return_unpicklable(context):
    return threading.Lock()


def test_exceptions_that_do_not_pickle_arrive_as_text(pool):
    with pytest.raises(RankError, match="UnpicklableError: cannot travel") as caught:
        pool.run(raise_unpicklable)
    assert caught.value.failures[0].exception is None
    with pytest.raises(RankError, match="pickle"):
        pool.run(return_unpicklable)
    assert len(pool.run(what_it_knows, 0)) == 3


def die(context, how):
    if context.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL) if how == "signal" else os._exit(7)
    return context.rank


@pytest.mark.parametrize(("how", "words"), [("signal", "died of SIGKILL"), ("exit", "code 7")])
def test_a_dead_rank_is_named_and_replaced(pool, how, words):
    pool.run(what_it_knows, 0)
    before = pool.pids()
    with pytest.raises(RankError, match=rf"rank 1: .*{words} before it returned") as caught:
        pool.run(die, how)
    assert list(caught.value.failures) == [1]
    pool.run(what_it_knows, 0)
    assert not set(before) & set(pool.pids())
    for pid in before:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def hang(context):
    return hang_on_one(context.rank)


def test_a_hung_rank_is_named_and_ended(pool):
    pool.run(what_it_knows, 0)
    with pytest.raises(RankError, match=r"rank 1: did not return within 2\.\d s \(killed\)"):
        pool.run(hang, timeout=2)
    assert len(pool.run(what_it_knows, 0)) == 3


def fail_first(context):
    return fail_while_others_wait(context.rank)


def test_the_first_cause_comes_first(pool):
    started = time.monotonic()
    with pytest.raises(RankError) as caught:
        pool.run(fail_first, timeout=50)
    assert time.monotonic() - started < 30
    lines = str(caught.value).splitlines()
    assert lines[0] == "rank 0: ValueError: the first cause"
    assert lines[1].startswith("rank 1: did not return")


def fail_to_start(rank, world_size):
    raise OSError("no port")


def test_a_failed_start_is_reported():
    pool = RankPool(2, start_method="forkserver", setup=fail_to_start)
    for _ in range(2):
        with pytest.raises(RankError, match="rank 0: OSError: no port"):
            pool.run(what_it_knows, 0)
    assert pool.pids() == []


def test_plain_fork_is_not_offered():
    with pytest.raises(ValueError, match="spawn or forkserver, got 'fork'"):
        RankPool(2, start_method="fork")
