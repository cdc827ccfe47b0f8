"""torch.library operators behind dispatch and combine, so that compiled graphs keep the calls.

A graph holds no Python object, so an instance goes by its number. Every operator writes the
instance's token, a tensor of one element: that keeps the calls in the graph and in their order.
A graph takes every result for memory of its own and writes other things there once it has read it,
so results are copies; those of eager steps are views of the workspace.
"""

from __future__ import annotations

import itertools
import weakref
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ..config import MoEEpDispatchResult
    from .native import _NativeCommunication

__all__ = ["MAX_EXTRAS", "number_of", "unpack"]

_numbers = itertools.count(1)
_instances: weakref.WeakValueDictionary[int, _NativeCommunication] = weakref.WeakValueDictionary()


def number_of(instance: _NativeCommunication) -> int:
    """Give an instance its number. It may be collected all the same."""
    number = next(_numbers)
    _instances[number] = instance
    return number


def _instance(number: int) -> _NativeCommunication:
    instance = _instances.get(number)
    if instance is None:
        raise RuntimeError(
            "a compiled graph: its instance must be alive, got one that has been collected"
        )
    return instance


def _split(names: str, lengths: Sequence[int]) -> list[str]:
    """Operators take no list of strings, but all of them in a row."""
    ends = list(itertools.accumulate(lengths, initial=0))
    return [names[begin:end] for begin, end in itertools.pairwise(ends)]


# Hidden states, ids, counts, weights, scales, statistics, extra payloads. What a step lacks has no
# elements: operators that write a tensor cannot return lists.
Received = tuple[
    Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor
]  # fmt: skip
MAX_EXTRAS = 4


def _fill(token: Tensor, tensors: Sequence[Tensor | None], extras: Sequence[Tensor]) -> Received:
    row = [*tensors, *extras, *[None] * (MAX_EXTRAS - len(extras))]
    return cast(
        "Received", tuple(token.new_empty(0) if tensor is None else tensor for tensor in row)
    )


def _pack(token: Tensor, result: MoEEpDispatchResult) -> Received:
    def copy(view: Tensor | None) -> Tensor | None:
        return None if view is None else view.clone()

    return _fill(
        token,
        [
            copy(result.hidden_states),
            copy(result.topk_ids),
            copy(result.recv_counts),
            copy(result.topk_weights),
            copy(result.hidden_states_scale),
            copy(result.eplb_gathered_stats),
        ],
        [rows.clone() for rows in (result.extra_payloads or {}).values()],
    )


def unpack(
    tensors: Received,
    *,
    has_weights: bool,
    has_scale: bool,
    has_stats: bool,
    extra_names: list[str],
    tokens_per_rank: int,
) -> dict[str, object]:
    """Arguments of a `MoEEpDispatchResult` from what the operator returned."""
    hidden, ids, counts, weights, scale, stats, *extras = tensors
    return {
        "hidden_states": hidden,
        "topk_ids": ids,
        "topk_weights": weights if has_weights else None,
        "tokens_per_rank": tokens_per_rank,
        "hidden_states_scale": scale if has_scale else None,
        "eplb_gathered_stats": stats if has_stats else None,
        "recv_counts": counts,
        "extra_payloads": dict(zip(extra_names, extras, strict=False)) or None,
    }


def _dispatch(
    token: Tensor,
    number: int,
    hidden_states: Tensor,
    topk_ids: Tensor,
    topk_weights: Tensor | None,
    hidden_states_scale: Tensor | None,
    tokens_per_rank: int,
    eplb_local_stats: Tensor | None,
    active_rank_mask: Tensor | None,
    extra_names: str,
    extra_name_lengths: Sequence[int],
    extra_payloads: Sequence[Tensor],
) -> Received:
    return _pack(
        token,
        _instance(number).dispatch(
            hidden_states,
            topk_ids,
            topk_weights,
            hidden_states_scale=hidden_states_scale,
            runtime_max_tokens_per_rank=tokens_per_rank,
            eplb_local_stats=eplb_local_stats,
            active_rank_mask=active_rank_mask,
            extra_payloads=dict(
                zip(_split(extra_names, extra_name_lengths), extra_payloads, strict=True)
            )
            or None,
        ),
    )


def _fake_dispatch(
    token: Tensor,
    number: int,
    hidden_states: Tensor,
    topk_ids: Tensor,
    topk_weights: Tensor | None,
    hidden_states_scale: Tensor | None,
    tokens_per_rank: int,
    eplb_local_stats: Tensor | None,
    active_rank_mask: Tensor | None,
    extra_names: str,
    extra_name_lengths: Sequence[int],
    extra_payloads: Sequence[Tensor],
) -> Received:
    num_ranks = _instance(number).bootstrap.world_size
    rows = num_ranks * tokens_per_rank

    def received(sent: Tensor | None, dtype: torch.dtype | None = None) -> Tensor | None:
        return None if sent is None else sent.new_empty((rows, *sent.shape[1:]), dtype=dtype)

    stats = eplb_local_stats
    return _fill(
        token,
        [
            received(hidden_states),
            received(topk_ids, torch.int32),
            topk_ids.new_empty((num_ranks,), dtype=torch.int32),
            received(topk_weights),
            received(hidden_states_scale),
            None if stats is None else stats.new_empty((num_ranks, *stats.shape)),
        ],
        [
            hidden_states.new_empty((rows, *sent.shape[1:]), dtype=sent.dtype)
            for sent in extra_payloads
        ],
    )


def _combine(
    token: Tensor,
    number: int,
    expert_output: Tensor,
    num_tokens: int,
    active_rank_mask: Tensor | None,
) -> Tensor:
    return _instance(number).combine(expert_output, active_rank_mask=active_rank_mask)


def _fake_combine(
    token: Tensor,
    number: int,
    expert_output: Tensor,
    num_tokens: int,
    active_rank_mask: Tensor | None,
) -> Tensor:
    return expert_output.new_empty((num_tokens, expert_output.shape[-1]))


def _combine_into(
    token: Tensor,
    number: int,
    expert_output: Tensor,
    output: Tensor,
    active_rank_mask: Tensor | None,
) -> None:
    _instance(number).combine(expert_output, output=output, active_rank_mask=active_rank_mask)


def _fake_combine_into(
    token: Tensor,
    number: int,
    expert_output: Tensor,
    output: Tensor,
    active_rank_mask: Tensor | None,
) -> None:
    return None


_RECEIVED = "(" + ", ".join(["Tensor"] * (6 + MAX_EXTRAS)) + ")"
_SCHEMAS = f"""
dispatch(Tensor(a!) token, int number, Tensor hidden_states, Tensor topk_ids, Tensor? topk_weights,
    Tensor? hidden_states_scale, SymInt tokens_per_rank, Tensor? eplb_local_stats,
    Tensor? active_rank_mask, str extra_names, int[] extra_name_lengths,
    Tensor[] extra_payloads) -> {_RECEIVED}
combine(Tensor(a!) token, int number, Tensor expert_output, SymInt num_tokens,
    Tensor? active_rank_mask) -> Tensor
combine_into(Tensor(a!) token, int number, Tensor expert_output, Tensor(b!) output,
    Tensor? active_rank_mask) -> ()
"""
# What runs an operator, and what makes its results' shapes.
_IMPLEMENTATIONS: dict[str, tuple[Callable[..., object], Callable[..., object]]] = {
    "dispatch": (_dispatch, _fake_dispatch),
    "combine": (_combine, _fake_combine),
    "combine_into": (_combine_into, _fake_combine_into),
}

_library: Any = cast("Any", torch.library).Library("moe_ep", "DEF")
for _schema in _SCHEMAS.replace("\n    ", " ").strip().splitlines():
    _name = _schema[: _schema.index("(")]
    _run, _fake = _IMPLEMENTATIONS[_name]
    _library.define(_schema)
    _library.impl(_name, _run, "CompositeExplicitAutograd")
    torch.library.register_fake(f"moe_ep::{_name}", _fake, lib=_library)
