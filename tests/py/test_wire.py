"""Objects as bytes, without pickle."""

import contextlib
import enum
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moe_ep import MoEEpError
from moe_ep.comm.wire import decode, encode

LEAVES = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False)
    | st.text(max_size=8)
    | st.binary(max_size=8)
)
KEYS = st.text(max_size=4) | st.integers(-5, 5) | st.tuples(st.integers(0, 3), st.booleans())
OBJECTS = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(KEYS, inner, max_size=4)
    ),
    max_leaves=20,
)


def types_of(obj):
    if isinstance(obj, list | tuple):
        return type(obj), [types_of(entry) for entry in obj]
    if isinstance(obj, dict):
        return dict, [(types_of(key), types_of(value)) for key, value in obj.items()]
    return type(obj)


@settings(max_examples=150, deadline=None, derandomize=True, database=None)
@given(OBJECTS)
def test_objects_arrive_as_they_were(obj):
    received = decode(encode(obj))
    assert received == obj
    assert types_of(received) == types_of(obj)


class Colour(enum.IntEnum):
    RED = 1


class Text(str):
    __slots__ = ()


@pytest.mark.parametrize(
    "obj",
    [
        2**64,
        -(2**63) - 1,
        [1, (2, 2**64)],
        {1, 2},
        object(),
        Colour.RED,
        Text("x"),
        np.int64(3),
        np.zeros(2),
        1j,
        ValueError("x"),
        {"a": [object]},
        "\ud800",
    ],
    ids=repr,
)
def test_what_cannot_be_sent_raises_a_type_error(obj):
    with pytest.raises(TypeError, match="to send must"):
        encode(obj)


def test_nesting_without_end_raises_a_type_error():
    endless = []
    endless.append(endless)
    with pytest.raises(TypeError, match="to send must"):
        encode(endless)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        encode([1, 2, 3])[:-1],
        encode("abc") + b"\0",
        b"\xdd\xff\xff\xff\xff",  # an array of four thousand million entries
        b"\xc6\xff\xff\xff\xffab",  # bytes that are not there
        b"\xc7\x01\x05x",  # an unknown extension type
        b"\xd4\x01\xc1",  # a tuple that is none
        b"\xa1\xff",  # a str that is no UTF-8
        pickle.dumps({"a": 1}),
    ],
    ids=bytes.hex,
)
def test_what_is_no_message_raises_and_names_the_sender(data):
    with pytest.raises(MoEEpError, match="from rank 3 must be msgpack"):
        decode(data, 3)


@settings(max_examples=150, deadline=None, derandomize=True, database=None)
@given(st.binary(max_size=40))
def test_any_bytes_decode_or_raise_an_error_of_ours(data):
    with contextlib.suppress(MoEEpError):
        decode(data)
