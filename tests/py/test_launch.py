"""RankTeam: ranks that find each other, and failures that name the rank."""

import os
import signal
import time
from pathlib import Path

import pytest

from moe_ep.launch import RankTeam, assign_cores, meeting_of
from moe_ep.testing import RankError


def introduce(seat, greeting):
    """Who everybody is, as everybody says."""
    return greeting, seat.rank, list(seat.comm.allgather(seat.rank))


def remember(seat):
    seat.objects["count"] = seat.objects.get("count", 0) + 1
    return seat.objects["count"]


def place(seat):
    return seat.cores, sorted(os.sched_getaffinity(0))


def fail_on(seat, rank):
    if seat.rank == rank:
        raise RuntimeError("no luck today")
    return seat.rank


def die_on(seat, rank):
    if seat.rank == rank:
        os.kill(os.getpid(), signal.SIGKILL)
    return seat.rank


def hang_on(seat, rank):
    if seat.rank == rank:
        time.sleep(60)
    return seat.rank


def own_pid(_seat):
    return os.getpid()


@pytest.mark.parametrize("meeting", ["gloo", "socket"])
def test_ranks_find_each_other_and_keep_their_state(meeting):
    if meeting == "socket":
        pytest.importorskip("moe_ep._core")
    with RankTeam(3, meeting=meeting) as team:
        said = team.run(introduce, "hello")
        assert said == [("hello", rank, [0, 1, 2]) for rank in range(3)]
        assert team.run(remember) == [1, 1, 1]
        assert team.run(remember) == [2, 2, 2]
        folder = Path(team._folder.name)
        pids = team.run(own_pid)
    assert not folder.exists()
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


@pytest.mark.parametrize(
    ("work", "said"),
    [
        (fail_on, "rank 1: RuntimeError: no luck today"),
        (die_on, "rank 1: died of SIGKILL"),
        (hang_on, "rank 1: did not return within"),
    ],
)
def test_a_rank_that_fails_is_named_and_nothing_stays(work, said):
    team = RankTeam(2)
    folder = Path(team._folder.name)
    pids = team.run(own_pid)
    with pytest.raises(RankError) as caught, team:
        team.run(work, 1, timeout=3.0)
    assert said in str(caught.value)
    assert set(caught.value.failures) == {1}
    assert not folder.exists()
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


def test_a_team_that_never_ran_leaves_nothing():
    with RankTeam(2) as team:
        folder = Path(team._folder.name)
    assert not folder.exists()


def test_pinned_ranks_have_cores_of_their_own():
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("needs two cores")
    with RankTeam(2, is_pinned=True) as team:
        assert team.is_pinned
        seats = team.run(place)
    assert all(list(cores) == bound for cores, bound in seats)
    assert not set(seats[0][1]) & set(seats[1][1])


def test_without_enough_cores_nobody_is_pinned(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {4, 5, 6})
    assert assign_cores(2, 2) == [None, None]
    assert assign_cores(3, 1) == [(4,), (5,), (6,)]
    assert assign_cores(1, 2) == [(4, 5)]


def test_only_the_host_backend_does_without_a_process_group():
    assert meeting_of("host") == "socket"
    assert meeting_of("torch_dist") == "gloo"
    assert meeting_of("auto") == "gloo"
