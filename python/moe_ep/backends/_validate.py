"""Checks of the arguments of `dispatch` and `combine`, all made before anything is sent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from .._check import check_int
from ..errors import TypeMismatchError
from ..limits import MAX_EXTRA_PAYLOADS

if TYPE_CHECKING:
    from ..config import MoEEpCommParams

__all__ = ["DispatchStep", "Payload", "check_combine", "check_dispatch", "describe"]

_ID_DTYPES = (torch.int32, torch.int64)
_MAX_WEIGHT_BYTES = 4


@dataclass(frozen=True)
class Payload:
    """One tensor of a step, row by row.

    Parameters
    ----------
    name
        What the caller knows it as.
    tensor
        [n, *] with contiguous rows at any distance.
    """

    name: str
    tensor: torch.Tensor

    @property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        return self.tensor.element_size() * _row_elements(self.tensor)

    def rows(self) -> torch.Tensor:
        """[n, row_bytes] uint8, without a copy where torch can view it so."""
        num_rows = self.tensor.shape[0]
        if num_rows == 0:  # whose strides may be anything
            return self.tensor.new_empty((0, self.row_bytes), dtype=torch.uint8)
        flat = self.tensor.reshape(num_rows, _row_elements(self.tensor))
        if flat.shape[1] == 1 and flat.stride(1) != 1:
            flat = flat.contiguous()
        return flat.view(torch.uint8)


@dataclass(frozen=True)
class DispatchStep:
    """Checked arguments of one dispatch. The tensors are the caller's."""

    num_tokens: int
    tokens_per_rank: int
    hidden_states: Payload
    topk_ids: torch.Tensor
    topk_weights: Payload | None
    hidden_states_scale: Payload | None
    eplb_local_stats: torch.Tensor | None
    extra_payloads: tuple[Payload, ...]

    @property
    def device(self) -> torch.device:
        """Device of every tensor of the step."""
        return self.hidden_states.tensor.device


def describe(value: object) -> str:
    """'bfloat16 [4, 7168]' for a tensor, its type for anything else."""
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}"
    return "None" if value is None else type(value).__name__


def check_dispatch(
    params: MoEEpCommParams,
    hidden_states: object,
    topk_ids: object,
    topk_weights: object,
    hidden_states_scale: object,
    runtime_max_tokens_per_rank: int | None,
    eplb_local_stats: object,
    extra_payloads: object,
) -> DispatchStep:
    """Return the arguments of a dispatch, if they are in contract.

    Raises
    ------
    ValueError
        A shape, device or size out of contract.
    TypeMismatchError
        A wrong Python type or dtype.
    """
    capacity = params.max_tokens_per_rank
    check_int(
        "dispatch",
        "runtime_max_tokens_per_rank",
        runtime_max_tokens_per_rank,
        low=1,
        high=capacity,
        optional=True,
    )
    tokens_per_rank = (
        capacity if runtime_max_tokens_per_rank is None else runtime_max_tokens_per_rank
    )
    hidden = _check_rows("hidden_states", hidden_states, "[n, *]", ndims=(2,))
    num_tokens, device = hidden.shape[0], hidden.device
    if num_tokens > tokens_per_rank:
        raise ValueError(
            f"dispatch: hidden_states must have at most runtime_max_tokens_per_rank = "
            f"{tokens_per_rank} rows, got {describe(hidden)}"
        )
    ids = _check_picks("topk_ids", topk_ids, params.top_k, num_tokens, device)
    weights = scale = None
    if topk_weights is not None:
        weights = _check_picks("topk_weights", topk_weights, params.top_k, num_tokens, device)
    if hidden_states_scale is not None:
        scale = _check_rows("hidden_states_scale", hidden_states_scale, "[n, *]")
        _check_like("hidden_states_scale", scale, num_tokens, device)
    return DispatchStep(
        num_tokens=num_tokens,
        tokens_per_rank=tokens_per_rank,
        hidden_states=Payload("hidden_states", hidden),
        topk_ids=ids,
        topk_weights=None if weights is None else Payload("topk_weights", weights),
        hidden_states_scale=None if scale is None else Payload("hidden_states_scale", scale),
        eplb_local_stats=_check_stats(eplb_local_stats, device),
        extra_payloads=_check_extras(extra_payloads, num_tokens, device),
    )


def check_combine(
    params: MoEEpCommParams,
    world_size: int,
    tokens_per_rank: int,
    num_tokens: int,
    device: torch.device,
    expert_output: object,
    output: object,
) -> torch.Tensor:
    """Return `expert_output` as [R * T, hidden_size], if the arguments are in contract.

    Raises
    ------
    ValueError
        A shape, device or size out of contract.
    TypeMismatchError
        A wrong Python type or dtype.
    """
    rows, hidden, dtype = world_size * tokens_per_rank, params.hidden_size, params.token_dtype
    name = str(dtype).removeprefix("torch.")
    requirement = (
        f"combine: expert_output must be {name} [{rows}, {hidden}] or "
        f"[{world_size}, {tokens_per_rank}, {hidden}] on {device} with contiguous rows"
    )
    if not isinstance(expert_output, torch.Tensor) or expert_output.dtype != dtype:
        raise TypeMismatchError(f"{requirement}, got {describe(expert_output)}")
    shapes = [(rows, hidden), (world_size, tokens_per_rank, hidden)]
    if tuple(expert_output.shape) not in shapes:
        raise ValueError(f"{requirement}, got {describe(expert_output)}")
    if expert_output.device != device:
        raise ValueError(f"{requirement}, got it on {expert_output.device}")
    if hidden > 1 and expert_output.stride(-1) != 1:
        raise ValueError(f"{requirement}, got strides {list(expert_output.stride())}")
    if output is not None:
        requirement = (
            f"combine: output must be contiguous {name} [{num_tokens}, {hidden}] on {device}"
        )
        if not isinstance(output, torch.Tensor) or output.dtype != dtype:
            raise TypeMismatchError(f"{requirement}, got {describe(output)}")
        if tuple(output.shape) != (num_tokens, hidden):
            raise ValueError(f"{requirement}, got {describe(output)}")
        if output.device != device:
            raise ValueError(f"{requirement}, got it on {output.device}")
        if not output.is_contiguous():
            raise ValueError(f"{requirement}, got strides {list(output.stride())}")
    return expert_output.reshape(rows, hidden)


def _row_elements(tensor: torch.Tensor) -> int:
    elements = 1
    for extent in tensor.shape[1:]:
        elements *= extent
    return elements


def _has_contiguous_rows(tensor: torch.Tensor) -> bool:
    if tensor.shape[0] == 0:
        return True
    expected = 1
    for dim in range(tensor.dim() - 1, 0, -1):
        if tensor.shape[dim] != 1 and tensor.stride(dim) != expected:
            return False
        expected *= tensor.shape[dim]
    return True


def _check_rows(
    name: str, value: object, shape: str, *, ndims: tuple[int, ...] = (1, 2, 3, 4)
) -> torch.Tensor:
    """Return a dense tensor of one row a token, whose rows are contiguous."""
    requirement = f"dispatch: {name} must be a tensor {shape} with contiguous rows"
    if not isinstance(value, torch.Tensor):
        raise TypeMismatchError(f"{requirement}, got {describe(value)}")
    if value.layout != torch.strided or value.is_meta or value.is_conj() or value.is_neg():
        raise ValueError(f"{requirement} in memory, got {describe(value)} of {value.layout} layout")
    if value.dim() not in ndims or _row_elements(value) == 0:
        raise ValueError(f"{requirement}, got {describe(value)}")
    if not _has_contiguous_rows(value):
        raise ValueError(f"{requirement}, got strides {list(value.stride())}")
    return value


def _check_like(name: str, tensor: torch.Tensor, num_tokens: int, device: torch.device) -> None:
    if tensor.shape[0] != num_tokens:
        raise ValueError(
            f"dispatch: {name} must have a row for each of the {num_tokens} rows of "
            f"hidden_states, got {describe(tensor)}"
        )
    if tensor.device != device:
        raise ValueError(
            f"dispatch: {name} must be on hidden_states' device {device}, got {tensor.device}"
        )


def _check_picks(
    name: str, value: object, top_k: int, num_tokens: int, device: torch.device
) -> torch.Tensor:
    """Return topk_ids or topk_weights."""
    is_ids = name == "topk_ids"
    kind = "int32 or int64" if is_ids else f"of a dtype of at most {_MAX_WEIGHT_BYTES} bytes,"
    requirement = f"dispatch: {name} must be {kind} [n, {top_k}]"
    if not isinstance(value, torch.Tensor):
        raise TypeMismatchError(f"{requirement}, got {describe(value)}")
    if is_ids:
        is_good = value.dtype in _ID_DTYPES
    else:
        is_good = value.element_size() <= _MAX_WEIGHT_BYTES
    if not is_good:
        raise TypeMismatchError(f"{requirement}, got {describe(value)}")
    if value.dim() != 2 or value.shape[1] != top_k:
        raise ValueError(f"{requirement}, got {describe(value)}")
    tensor = _check_rows(name, value, f"[n, {top_k}]")
    _check_like(name, tensor, num_tokens, device)
    return tensor


def _check_stats(value: object, device: torch.device) -> torch.Tensor | None:
    if value is None:
        return None
    requirement = f"dispatch: eplb_local_stats must be contiguous int32 [n] on {device}"
    if not isinstance(value, torch.Tensor) or value.dtype != torch.int32:
        raise TypeMismatchError(f"{requirement}, got {describe(value)}")
    if value.dim() != 1 or value.shape[0] == 0:
        raise ValueError(f"{requirement}, got {describe(value)}")
    if value.device != device:
        raise ValueError(f"{requirement}, got it on {value.device}")
    if not value.is_contiguous():
        raise ValueError(f"{requirement}, got strides {list(value.stride())}")
    return value


def _check_extras(value: object, num_tokens: int, device: torch.device) -> tuple[Payload, ...]:
    if value is None:
        return ()
    if not isinstance(value, dict) or not all(isinstance(name, str) for name in value):
        raise TypeMismatchError(
            f"dispatch: extra_payloads must be a dict from str to tensor, got {describe(value)}"
        )
    if len(value) > MAX_EXTRA_PAYLOADS:
        raise ValueError(
            f"dispatch: extra_payloads must hold at most {MAX_EXTRA_PAYLOADS} tensors, "
            f"got {len(value)}"
        )
    payloads = []
    for name, tensor in value.items():
        label = f"extra_payloads[{name!r}]"
        checked = _check_rows(label, tensor, "[n, *]")
        _check_like(label, checked, num_tokens, device)
        payloads.append(Payload(name, checked))
    return tuple(payloads)
