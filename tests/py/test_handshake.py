"""The first collective of a constructor."""

import pytest

import moe_ep
from moe_ep._handshake import agree, format_values, params_fields

BOOTSTRAP = moe_ep.BootstrapConfig(3, 1)
FIELDS = {"hidden_size": 64, "dtype": "bfloat16"}


class Comm:
    """Rank 1 of 3; `answer` makes what allgather returns of this rank's object."""

    def __init__(self, answer, rank=1):
        self.answer, self.rank = answer, rank

    def Get_rank(self):
        return self.rank

    def Get_size(self):
        return 3

    def allgather(self, obj):
        return self.answer(obj)


def honest(obj, *, failures=None, fields=None):
    """The records of three ranks like this one, with what some of them say instead."""
    records = [{**obj, "rank": rank, "failure": None} for rank in range(3)]
    records[obj["rank"]]["failure"] = obj["failure"]
    for rank, failure in (failures or {}).items():
        records[rank]["failure"] = failure
    for rank, changed in (fields or {}).items():
        records[rank]["fields"] = {**obj["fields"], **changed}
    return records


def test_ranks_that_agree():
    agree(Comm(honest), BOOTSTRAP, "X", FIELDS)
    agree(Comm(lambda obj: tuple(honest(obj))), BOOTSTRAP, "X", FIELDS)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (lambda obj: [obj], "one object for each of 3 ranks, got 1"),
        (lambda obj: honest(obj)[:2], "got 2"),
        (lambda obj: [obj] * 3, r"in rank order, got those of ranks \[1, 1, 1\]"),
        (lambda obj: honest(obj)[::-1], r"in rank order, got those of ranks \[2, 1, 0\]"),
        (lambda obj: [None, obj, None], "the same class at the same time, got None from rank 0"),
        (lambda obj: [{}, obj, {}], "from rank 0"),
    ],
)
def test_a_comm_backend_that_does_not_gather_is_found_out(answer, words):
    """FR-165: in the constructor, not in a kernel."""
    with pytest.raises(ValueError, match=rf"X: .*{words}"):
        agree(Comm(answer), BOOTSTRAP, "X", FIELDS)


def test_a_difference_names_field_values_and_ranks():
    """FR-018."""
    answer = lambda obj: honest(obj, fields={2: {"hidden_size": 65}})  # noqa: E731
    with pytest.raises(ValueError, match="hidden_size") as caught:
        agree(Comm(answer), BOOTSTRAP, "X", FIELDS)
    assert str(caught.value) == (
        "X: hidden_size must be equal on every rank, got 64 on ranks 0, 1 and 65 on rank 2"
    )


@pytest.mark.parametrize(
    ("failures", "kind"),
    [
        ({0: ("value", "max_sms must be positive")}, ValueError),
        ({2: ("type", "config must be one")}, moe_ep.TypeMismatchError),
        ({0: ("value", "bad"), 2: ("error", "no memory")}, moe_ep.MoEEpError),
    ],
)
def test_failures_of_others_raise_here(failures, kind):
    """FR-111: with the ranks and their reasons."""
    with pytest.raises(kind) as caught:
        agree(Comm(lambda obj: honest(obj, failures=failures)), BOOTSTRAP, "X", FIELDS)
    for rank, (_, reason) in failures.items():
        assert f"rank {rank}: {reason}" in str(caught.value)


def test_an_own_failure_raises_with_its_cause():
    failure = OSError("no memory")
    with pytest.raises(moe_ep.MoEEpError, match="rank 1: no memory") as caught:
        agree(Comm(honest), BOOTSTRAP, "X", FIELDS, failure)
    assert caught.value.__cause__ is failure


def test_a_wrong_rank_is_told_to_everybody():
    """FR-144: Get_rank() is not the bootstrap's."""
    comm = Comm(lambda obj: honest(obj), rank=2)
    with pytest.raises(ValueError, match=r"rank 2: comm_backend must have .* = 1, got .* = 2"):
        agree(comm, BOOTSTRAP, "X", FIELDS)


def test_params_can_be_sent():
    from moe_ep.comm.wire import decode, encode

    params = moe_ep.MoEEpCommParams(8, 2, 4, 16, dispatch_format=moe_ep.QuantFormat.NVFP4)
    fields = params_fields(params)
    assert decode(encode(fields)) == fields
    assert fields["dtype"] == "bfloat16"
    assert fields["dispatch_format"] == "NVFP4"
    assert set(fields) == set(params.__dataclass_fields__)


def test_values_are_listed_by_rank():
    assert format_values([1, 2, 1, 3]) == "1 on ranks 0, 2, 2 on rank 1 and 3 on rank 3"
    assert format_values(["a", "b"]) == "a on rank 0 and b on rank 1"
