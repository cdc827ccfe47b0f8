"""Objects as bytes: typed and length-checked, no pickle.

A message is msgpack. Tuples travel as an extension type, so that they arrive as tuples. What
msgpack cannot hold raises TypeMismatchError at the sender; what does not decode raises MoEEpError
at the receiver.
"""

from __future__ import annotations

from typing import Any

import msgpack

from ..errors import MoEEpError, TypeMismatchError

__all__ = ["decode", "encode"]

_TUPLE = 1
_SENDABLE = "None, bool, int, float, str, bytes or a list, tuple or dict of these"


def _encode_other(obj: object) -> msgpack.ExtType:
    # strict_types hands every type here that is not exactly one of msgpack's own.
    if type(obj) is tuple:
        return msgpack.ExtType(_TUPLE, _pack(list(obj)))
    raise TypeMismatchError(f"comm: objects to send must be {_SENDABLE}, got {type(obj).__name__}")


def _pack(obj: object) -> bytes:
    packed = msgpack.packb(obj, default=_encode_other, strict_types=True, use_bin_type=True)
    assert packed is not None
    return packed


def encode(obj: object) -> bytes:
    """Bytes of `obj`.

    Raises
    ------
    TypeMismatchError
        A type that is not sent, an int of more than 64 bits, or nesting too deep.
    """
    try:
        return _pack(obj)
    except OverflowError as error:
        raise TypeMismatchError(
            f"comm: ints to send must fit 64 bits, got one that does not ({error})"
        ) from None
    except TypeMismatchError:
        raise
    except (TypeError, ValueError, RecursionError) as error:
        raise TypeMismatchError(f"comm: objects to send must be {_SENDABLE}, got {error}") from None


def _decode_extension(code: int, data: bytes) -> object:
    if code == _TUPLE:
        return tuple(_unpack(data))
    raise ValueError(f"extension type {code}")


def _unpack(data: bytes) -> Any:
    return msgpack.unpackb(data, ext_hook=_decode_extension, raw=False, strict_map_key=False)


def decode(data: bytes, source: int | None = None) -> Any:
    """Object of the bytes `data`.

    Parameters
    ----------
    data
        One whole message of `encode`.
    source
        Rank that sent it, for the message of an error.

    Raises
    ------
    MoEEpError
        The bytes are no message of `encode`.
    """
    try:
        return _unpack(data)
    except (ValueError, TypeError, RecursionError, msgpack.exceptions.UnpackException) as error:
        sender = "" if source is None else f" from rank {source}"
        raise MoEEpError(
            f"comm: a message{sender} must be msgpack, got {len(data)} bytes that are not "
            f"({type(error).__name__}: {error})"
        ) from error
