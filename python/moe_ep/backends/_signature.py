"""Step signature: what all ranks must agree on, as int64 words that travel with the counts."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from .._handshake import format_values
from ..errors import MoEEpMismatchError
from ..limits import MAX_EXTRA_PAYLOADS

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from ._validate import DispatchStep, Payload

__all__ = ["NUM_WORDS", "check_signatures", "step_signature"]

_ABSENT = -1

# Position is the code that travels.
_DTYPES = (
    "uint8",
    "int8",
    "int16",
    "int32",
    "int64",
    "float16",
    "float32",
    "float64",
    "bfloat16",
    "bool",
    "float8_e4m3fn",
    "float8_e4m3fnuz",
    "float8_e5m2",
    "float8_e5m2fnuz",
    "float8_e8m0fnu",
    "float4_e2m1fn_x2",
    "uint16",
    "uint32",
    "uint64",
    "complex64",
    "complex128",
)

# Names of the words; a payload takes two: bytes of a row, dtype.
_WORDS = (
    "the number of dispatches so far",
    "runtime_max_tokens_per_rank",
    "hidden_states bytes a row",
    "hidden_states dtype",
    "topk_weights bytes a row",
    "topk_weights dtype",
    "hidden_states_scale bytes a row",
    "hidden_states_scale dtype",
    "eplb_local_stats length",
    *(
        word
        for index in range(MAX_EXTRA_PAYLOADS)
        for word in (
            f"extra_payloads name {index}",
            f"extra_payloads[{index}] bytes a row",
            f"extra_payloads[{index}] dtype",
        )
    ),
)
NUM_WORDS = len(_WORDS)
"""Words of a signature."""


def step_signature(step: DispatchStep, step_idx: int) -> list[int]:
    """Return the words of one rank's step.

    Parameters
    ----------
    step
        The checked arguments.
    step_idx
        Dispatches of the instance before this one.
    """
    stats = step.eplb_local_stats
    words = [
        step_idx,
        step.tokens_per_rank,
        *_payload_words(step.hidden_states),
        *_payload_words(step.topk_weights),
        *_payload_words(step.hidden_states_scale),
        _ABSENT if stats is None else stats.shape[0],
    ]
    # By name: the order in which a rank lists its payloads means nothing.
    for payload in sorted(step.extra_payloads, key=lambda payload: payload.name):
        words += [_name_code(payload.name), *_payload_words(payload)]
    return words + [_ABSENT] * (NUM_WORDS - len(words))


def check_signatures(signatures: Sequence[Sequence[int]], names: Sequence[str]) -> None:
    """Raise unless all ranks' signatures are equal.

    Parameters
    ----------
    signatures
        One for each rank, in rank order.
    names
        This rank's names of extra payloads, for the message.

    Raises
    ------
    MoEEpMismatchError
        Names every field that differs, and each rank's value.
    """
    if all(list(signature) == list(signatures[0]) for signature in signatures):
        return
    known = {_name_code(name): repr(name) for name in names}
    differences = []
    for index, word in enumerate(_WORDS):
        values = [signature[index] for signature in signatures]
        if any(value != values[0] for value in values):
            texts = [_format_word(word, value, known) for value in values]
            differences.append(f"{word} must be equal on every rank, got {format_values(texts)}")
    raise MoEEpMismatchError("dispatch: " + "; ".join(differences))


def _payload_words(payload: Payload | None) -> list[int]:
    if payload is None:
        return [_ABSENT, _ABSENT]
    return [payload.row_bytes, _dtype_code(payload.tensor.dtype)]


def _dtype_code(dtype: torch.dtype) -> int:
    name = str(dtype).removeprefix("torch.")
    return _DTYPES.index(name) if name in _DTYPES else _name_code(name)


def _name_code(name: str) -> int:
    digest = hashlib.blake2b(name.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1  # never negative


def _format_word(word: str, value: int, known: dict[int, str]) -> str:
    if value == _ABSENT:
        return "none"
    if word.endswith("dtype"):
        return _DTYPES[value] if value < len(_DTYPES) else f"another dtype ({value:#x})"
    if "name" in word:
        return known.get(value, f"another name ({value:#x})")
    return str(value)
