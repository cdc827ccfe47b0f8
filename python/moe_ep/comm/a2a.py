"""The stateless family ``moe_a2a_*``: dispatch and combine over a workspace the caller owns.

The workspace is a uint8 tensor [R, bytes] whose row r is rank r's slice and which every rank sees:
one tensor for ranks that are threads, a tensor in shared memory for processes. On every rank::

    metainfo = moe_a2a_initialize(workspace, rank, R, max_num_tokens)
    # ... a barrier between all ranks ...
    received, offset, _ = moe_a2a_dispatch(ids, [x, ids], workspace, metainfo, T, rank, R, K, E)
    # ... experts ...
    out = moe_a2a_combine(rows, n, workspace, metainfo, T, rank, R, K, offset)

The caller keeps the calls paired; no order is checked. On the CPU calls run to completion and
release the GIL. On CUDA dispatch, combine and sanitize only enqueue on the current stream; several
ranks of one process may share a GPU once all of them have initialised. Waits are bounded by the
environment variable ``MOE_EP_TIMEOUT_SEC`` (300 s); after
a MoEEpTimeoutError or MoEEpMismatchError, which on CUDA the next call raises, every rank
initialises again.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Any, Literal

import torch

import moe_ep._core as _core

from .._views import cut

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "SfLayout",
    "moe_a2a_combine",
    "moe_a2a_dispatch",
    "moe_a2a_get_workspace_size_per_rank",
    "moe_a2a_initialize",
    "moe_a2a_sanitize_expert_ids",
    "moe_a2a_wrap_payload_tensor_in_workspace",
]

A2aBackend = Literal["trtllm", "cake"]


class SfLayout(enum.Enum):
    """Where the block scales of a quantised combine output lie.

    Scales form a matrix [rows, cols], cols = H / block. The swizzled layouts store tiles of 128 x 4
    or 8 x 4 one after another and pad the matrix to whole tiles with zeros.
    """

    layout_128x4 = 0
    layout_8x4 = 1
    layout_linear = 2


def moe_a2a_get_workspace_size_per_rank(
    ep_size: int,
    max_num_tokens: int,
    total_dispatch_payload_size_per_token: int,
    combine_payload_size_per_token: int,
    eplb_stats_num_experts: int = 0,
    *,
    backend: A2aBackend = "trtllm",
) -> int:
    """Bytes that one rank's slice of the workspace needs.

    Parameters
    ----------
    ep_size
        R, the ranks of the group, 1..256.
    max_num_tokens
        Most tokens one rank sends in a step.
    total_dispatch_payload_size_per_token
        Bytes of one token's rows in all payloads of a dispatch, ids included.
    combine_payload_size_per_token
        Bytes of one row of the combine payload.
    eplb_stats_num_experts
        Length of the statistics that dispatches gather; 0 for none.
    backend
        As for `moe_a2a_initialize`.
    """
    return _core.a2a_workspace_size(
        ep_size,
        max_num_tokens,
        total_dispatch_payload_size_per_token,
        combine_payload_size_per_token,
        eplb_stats_num_experts,
        backend,
    )


def moe_a2a_initialize(
    workspace: torch.Tensor,
    ep_rank: int,
    ep_size: int,
    max_num_tokens: int,
    eplb_stats_num_experts: int = 0,
    *,
    backend: A2aBackend = "trtllm",
) -> torch.Tensor:
    """Arm this rank's slice. The caller puts a barrier between all ranks' calls and a dispatch.

    Parameters
    ----------
    workspace
        [R, bytes] uint8; slices start at multiples of 16 bytes.
    ep_rank, ep_size
        This rank and R.
    max_num_tokens, eplb_stats_num_experts
        As for `moe_a2a_get_workspace_size_per_rank`.
    backend
        ``'trtllm'`` for the one-sided kernels, ``'cake'`` for the specialised ones; the same in
        every call on this workspace. On the CPU both are the same code.

    Returns
    -------
    torch.Tensor
        metainfo, an opaque CPU int64 tensor for the other calls.

    Raises
    ------
    ValueError
        A workspace of another shape or dtype, or too small.
    """
    fields = _core.a2a_initialize(
        workspace, ep_rank, ep_size, max_num_tokens, eplb_stats_num_experts, backend
    )
    with torch.inference_mode(False):
        return torch.tensor(fields, dtype=torch.int64, device="cpu")


def moe_a2a_dispatch(
    token_selected_experts: torch.Tensor,
    input_payloads: list[torch.Tensor],
    workspace: torch.Tensor,
    metainfo: torch.Tensor,
    runtime_max_tokens_per_rank: int,
    ep_rank: int,
    ep_size: int,
    top_k: int,
    num_experts: int,
    enable_pdl: bool | None = None,
    eplb_local_stats: torch.Tensor | None = None,
    enable_rank_mask: bool = False,
    active_rank_mask: torch.Tensor | None = None,
    *,
    backend: A2aBackend = "trtllm",
    recv_view_cache: dict[Any, Any] | None = None,
) -> tuple[list[torch.Tensor], int, torch.Tensor | None]:
    """Send each token's payload rows to every rank that owns one of its experts.

    Parameters
    ----------
    token_selected_experts
        [n, top_k] int32 or int64 expert ids; ids outside [0, num_experts) go nowhere.
    input_payloads
        1 to 8 tensors [n, *] of any dtype, contiguous within a row.
    workspace, metainfo
        As `moe_a2a_initialize` took and returned them.
    runtime_max_tokens_per_rank
        T of this step: at least every rank's n, the same on every rank.
    ep_rank, ep_size, top_k, num_experts
        This rank, R, K, E. E need not be a multiple of R.
    enable_pdl
        Programmatic dependent launch, on CUDA; None decides by the device.
    eplb_local_stats
        [eplb_stats_num_experts] int32 to gather.
    enable_rank_mask, active_rank_mask
        Whether a mask is taken, and the mask (`moe_a2a_active_rank_mask`) with the own bit set.
    backend
        As for `moe_a2a_initialize`.
    recv_view_cache
        A dictionary, empty at first, that keeps the receive views, so that equal steps return the
        same tensors. It keeps `workspace` alive and is emptied when another one is passed.

    Returns
    -------
    output_payloads : list of torch.Tensor
        Views [R, T, *] of the own slice, one a payload: block `src` holds the tokens of rank src
        first, in ascending order. Rows beyond them are unspecified; see
        `moe_a2a_sanitize_expert_ids`.
    combine_payload_offset : int
        Where the combine payload may lie, in bytes from the start of the own slice.
    eplb_gathered_stats : torch.Tensor or None
        [R, eplb_stats_num_experts] int32 view.

    Raises
    ------
    ValueError
        A bad argument; nothing was sent.
    MoEEpTimeoutError, MoEEpMismatchError
        Ranks did not arrive, or passed steps of different shape.
    """
    views, combine_offset, stats = _core.a2a_dispatch(
        token_selected_experts,
        input_payloads,
        workspace,
        metainfo,
        runtime_max_tokens_per_rank,
        ep_rank,
        ep_size,
        top_k,
        num_experts,
        eplb_local_stats,
        enable_rank_mask,
        active_rank_mask,
        backend,
    )
    keep = _ViewCache(workspace, recv_view_cache)
    return (
        [keep.cut(view) for view in views],
        combine_offset,
        None if stats is None else keep.cut(stats),
    )


class _ViewCache:
    """Views of one workspace, kept in a caller's dictionary if there is one."""

    def __init__(self, workspace: torch.Tensor, cache: dict[Any, Any] | None) -> None:
        self._cache = cache
        if cache is not None and cache.get("workspace") is not workspace:
            cache.clear()
            cache["workspace"] = workspace
        self._workspace = workspace

    def cut(self, view: tuple[int, tuple[int, ...], tuple[int, int, int]]) -> torch.Tensor:
        if self._cache is None:
            return self._make(view)
        if view not in self._cache:
            self._cache[view] = self._make(view)
        made: torch.Tensor = self._cache[view]
        return made

    def _make(self, view: tuple[int, tuple[int, ...], tuple[int, int, int]]) -> torch.Tensor:
        # A view lies within one slice; rows of the workspace need not be packed.
        rows, stride = self._workspace.shape[0], self._workspace.stride(0)
        slice_index = min(view[0] // stride, rows - 1) if rows > 1 else 0
        start = slice_index * stride if rows > 1 else 0
        return cut(self._workspace[slice_index], (view[0] - start, view[1], view[2]))


def moe_a2a_combine(
    payload: torch.Tensor,
    local_num_tokens: int,
    workspace: torch.Tensor,
    metainfo: torch.Tensor,
    runtime_max_tokens_per_rank: int,
    ep_rank: int,
    ep_size: int,
    top_k: int,
    combine_payload_offset: int,
    payload_in_workspace: bool = False,
    output_dtype: torch.dtype | None = None,
    output_scales: torch.Tensor | None = None,
    output_scalar_scale: float = 1.0,
    sf_layout: SfLayout = SfLayout.layout_linear,
    output: torch.Tensor | None = None,
    *,
    use_low_precision: bool = False,
    enable_pdl: bool | None = None,
    enable_rank_mask: bool = False,
    active_rank_mask: torch.Tensor | None = None,
    backend: A2aBackend = "trtllm",
) -> torch.Tensor:
    """Sum, for every local token, the rows that its ranks produced.

    The sum is taken in float32 in ascending rank order and rounded once.

    Parameters
    ----------
    payload
        [R, T, H] or [R * T, H] in bfloat16, float16 or float32. Rows without a token are not read.
    local_num_tokens
        n, as in the dispatch.
    workspace, metainfo, runtime_max_tokens_per_rank, ep_rank, ep_size, top_k
        As in the dispatch.
    combine_payload_offset
        As the dispatch returned it.
    payload_in_workspace
        `payload` is the view of the own slice at `combine_payload_offset`; nothing is copied.
    output_dtype
        dtype of the result; None is `output`'s, else the payload's. bfloat16, float16 or float32,
        or quantised: float8_e4m3fn (MXFP8, [n, H]) or uint8 (packed FP4, [n, ceil(H / 2)], the even
        element in the low nibble).
    output_scales
        Receives the block scales of a quantised result: uint8 for MXFP8 and MXFP4 (UE8M0, per 32
        elements; OCP MX v1.0), float8_e4m3fn for NVFP4 (per 16). [rows, cols], padded to 128 x 4 or
        8 x 4 for the swizzled layouts.
    output_scalar_scale
        Global factor of NVFP4 block scales.
    sf_layout
        Where scales lie.
    output
        Tensor to write the result to, contiguous.
    use_low_precision
        Rows travel as FP8 (e4m3 with a float32 scale per 128 elements).
    enable_pdl, enable_rank_mask, active_rank_mask, backend
        As in the dispatch.

    Returns
    -------
    torch.Tensor
        [n, H] (packed FP4: [n, ceil(H / 2)]): `output`, or a new tensor.

    Raises
    ------
    ValueError
        A bad argument; nothing was sent.
    MoEEpTimeoutError, MoEEpMismatchError
        Ranks did not arrive, or passed rows of another size.
    """
    if output is None:
        dtype = output_dtype or payload.dtype
        hidden = payload.shape[-1]
        width = hidden if dtype.itemsize > 1 or dtype == torch.float8_e4m3fn else -(-hidden // 2)
        output = torch.empty((local_num_tokens, width), dtype=dtype, device=payload.device)
    elif output_dtype is not None and output.dtype != output_dtype:
        raise ValueError(
            f"moe_a2a_combine: output must have output_dtype {output_dtype}, got {output.dtype}"
        )
    _core.a2a_combine(
        payload,
        local_num_tokens,
        workspace,
        metainfo,
        runtime_max_tokens_per_rank,
        ep_rank,
        ep_size,
        top_k,
        combine_payload_offset,
        payload_in_workspace,
        output,
        output_scales,
        output_scalar_scale,
        SfLayout(sf_layout).value,
        use_low_precision,
        enable_rank_mask,
        active_rank_mask,
        backend,
    )
    return output


def moe_a2a_sanitize_expert_ids(
    expert_ids: torch.Tensor,
    workspace: torch.Tensor,
    metainfo: torch.Tensor,
    ep_rank: int,
    invalid_expert_id: int,
    enable_pdl: bool | None = None,
    *,
    backend: A2aBackend = "trtllm",
) -> None:
    """Write `invalid_expert_id` over the ids of rows that received no token.

    Parameters
    ----------
    expert_ids
        [R, T, top_k] int32: the view of the last dispatch.
    workspace, metainfo, ep_rank, enable_pdl, backend
        As in the dispatch.
    invalid_expert_id
        An int32.
    """
    _core.a2a_sanitize_expert_ids(
        expert_ids, workspace, metainfo, ep_rank, invalid_expert_id, backend
    )


def moe_a2a_wrap_payload_tensor_in_workspace(
    workspace: torch.Tensor,
    leading_shape: Sequence[int],
    slice_start: int,
    slice_end: int,
    dtype: torch.dtype,
) -> torch.Tensor:
    """View bytes of a workspace as a tensor.

    Parameters
    ----------
    workspace
        Contiguous uint8 tensor: a whole workspace or one slice of it.
    leading_shape
        All dimensions of the result but the last.
    slice_start, slice_end
        Bytes from the start of the tensor passed.
    dtype
        Of the result.

    Returns
    -------
    torch.Tensor
        [*leading_shape, rest] view.

    Raises
    ------
    ValueError
        Bytes outside the workspace, or that do not divide into the shape.
    """
    name = "moe_a2a_wrap_payload_tensor_in_workspace"
    if workspace.dtype != torch.uint8 or not workspace.is_contiguous():
        raise ValueError(
            f"{name}: workspace must be a contiguous uint8 tensor, got {workspace.dtype} "
            f"{list(workspace.shape)}"
        )
    if not 0 <= slice_start <= slice_end <= workspace.numel():
        raise ValueError(
            f"{name}: slice_start..slice_end must lie in 0..{workspace.numel()}, "
            f"got {slice_start}..{slice_end}"
        )
    rows = 1
    for extent in leading_shape:
        rows *= extent
    num_bytes = slice_end - slice_start
    if rows < 1 or num_bytes % (rows * dtype.itemsize) != 0:
        raise ValueError(
            f"{name}: {num_bytes} bytes must divide into leading_shape {list(leading_shape)} of "
            f"{dtype}, got a remainder"
        )
    part = workspace.view(-1)[slice_start:slice_end].view(dtype)
    return part.view(*leading_shape, num_bytes // rows // dtype.itemsize)
