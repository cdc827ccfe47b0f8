"""MoeAlltoAll: the stateless family with a workspace of its own and the pairing of its calls."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

import moe_ep._core as _core

from .._views import over_memory
from .a2a import (
    A2aBackend,
    SfLayout,
    moe_a2a_combine,
    moe_a2a_dispatch,
    moe_a2a_get_workspace_size_per_rank,
    moe_a2a_initialize,
    moe_a2a_sanitize_expert_ids,
    moe_a2a_wrap_payload_tensor_in_workspace,
)
from .default import SingleRankBackend

if TYPE_CHECKING:
    from .mapping import Mapping, MnnvlConfig
    from .protocol import CommBackend

__all__ = ["MoeAlltoAll"]

_BYTES_PER_ELEMENT = 2  # of the rows that hidden_size describes: bfloat16 or float16


def _allocate(
    comm: CommBackend, num_bytes: int, device: torch.device | str | None
) -> _core.SymmetricWorkspace:
    if device is None:
        device = "cpu" if _core.explain_nvlink_one_sided() else "cuda"
    where = torch.device(device)
    if where.type == "cpu":
        return _core.SymmetricWorkspace.create_host(comm, comm, num_bytes)
    if where.type != "cuda":
        raise ValueError(f"MoeAlltoAll: device must be a CPU or CUDA device, got {device}")
    # A device without a number is the current one.
    ordinal = torch.cuda._utils._get_device_index(where, optional=True)
    return _core.SymmetricWorkspace.create_cuda(comm, comm, num_bytes, ordinal)


class MoeAlltoAll:
    """Dispatch and combine of up to 8 payload tensors over a symmetric workspace.

    Construction is collective over the expert-parallel group that `mapping` describes.

    Parameters
    ----------
    mapping
        Who the caller is; its moe_ep_size ranks form the group.
    max_num_tokens
        Most tokens one rank sends in a step.
    top_k, num_experts
        K and E; E need not be a multiple of the group's size.
    workspace_size_per_rank
        Bytes of a slice, as `get_moe_workspace_size_per_rank` says; None takes `hidden_size`.
    hidden_size
        Sizes the workspace for 16-bit rows of this many elements each way, with int32 ids and
        float32 weights.
    mnnvl_config
        The comm backend; None is the default process group.
    eplb_stats_num_experts
        Length of the statistics that dispatches gather; 0 for none.
    enable_rank_mask
        Whether dispatch and combine take a mask.
    backend
        ``'trtllm'`` or ``'cake'``; see `moe_a2a_initialize`.
    device
        Where the workspace lies. None is the current CUDA device where CUDA steps can run, else the
        CPU.

    Raises
    ------
    ValueError
        Neither workspace_size_per_rank nor hidden_size, or a bad size.
    """

    def __init__(
        self,
        mapping: Mapping,
        max_num_tokens: int,
        top_k: int,
        num_experts: int,
        workspace_size_per_rank: int | None = None,
        hidden_size: int | None = None,
        mnnvl_config: MnnvlConfig | None = None,
        eplb_stats_num_experts: int = 0,
        enable_rank_mask: bool = False,
        *,
        backend: A2aBackend = "trtllm",
        device: torch.device | str | None = None,
    ) -> None:
        self.ep_rank, self.ep_size = mapping.moe_ep_rank, mapping.moe_ep_size
        self.max_num_tokens, self.top_k, self.num_experts = max_num_tokens, top_k, num_experts
        self.eplb_stats_num_experts = eplb_stats_num_experts
        self.enable_rank_mask = enable_rank_mask
        self.backend: A2aBackend = backend
        if workspace_size_per_rank is None:
            if hidden_size is None:
                raise ValueError(
                    "MoeAlltoAll: workspace_size_per_rank or hidden_size must be given, got neither"
                )
            workspace_size_per_rank = self.get_moe_workspace_size_per_rank(
                self.ep_size,
                max_num_tokens,
                hidden_size,
                top_k=top_k,
                eplb_stats_num_experts=eplb_stats_num_experts,
            )
        self.workspace_size_per_rank = workspace_size_per_rank
        comm = _group(mapping, mnnvl_config)
        self._memory = _allocate(comm, workspace_size_per_rank, device)
        self._comm: CommBackend = comm
        self.workspace: torch.Tensor = over_memory(self._memory)
        self._views: dict[Any, Any] = {}
        self._round: tuple[int, int] | None = None
        self._stats: torch.Tensor | None = None
        self._initialize()

    def _initialize(self) -> None:
        self.metainfo = moe_a2a_initialize(
            self.workspace,
            self.ep_rank,
            self.ep_size,
            self.max_num_tokens,
            self.eplb_stats_num_experts,
            backend=self.backend,
        )
        self._comm.barrier()

    @staticmethod
    def get_moe_workspace_size_per_rank(
        ep_size: int,
        max_num_tokens: int,
        hidden_size: int,
        extra_payload_bytes_per_token: int = 0,
        *,
        top_k: int = 64,
        eplb_stats_num_experts: int = 0,
    ) -> int:
        """Bytes of a slice for 16-bit rows of `hidden_size` each way, int32 ids, float32 weights.

        Parameters
        ----------
        ep_size, max_num_tokens, hidden_size
            R, the most tokens of a rank, H.
        extra_payload_bytes_per_token
            Room for further payloads.
        top_k
            K; the default covers every K.
        eplb_stats_num_experts
            Length of the statistics that dispatches gather.
        """
        row = hidden_size * _BYTES_PER_ELEMENT
        return moe_a2a_get_workspace_size_per_rank(
            ep_size,
            max_num_tokens,
            row + top_k * 8 + extra_payload_bytes_per_token,
            row,
            eplb_stats_num_experts,
        )

    @property
    def eplb_gathered_stats(self) -> torch.Tensor | None:
        """[R, eplb_stats_num_experts] int32 view of the open round's statistics, or None."""
        return self._stats

    def dispatch(
        self,
        token_selected_experts: torch.Tensor,
        input_payloads: list[torch.Tensor],
        runtime_max_tokens_per_rank: int,
        invalid_token_expert_id: int | None = None,
        expert_id_payload_index: int | None = None,
        eplb_local_stats: torch.Tensor | None = None,
        active_rank_mask: torch.Tensor | None = None,
        *,
        enable_pdl: bool | None = None,
    ) -> list[torch.Tensor]:
        """Send each token's payload rows to the ranks that own its experts.

        Parameters
        ----------
        token_selected_experts, input_payloads, runtime_max_tokens_per_rank
            As for `moe_a2a_dispatch`.
        invalid_token_expert_id
            Written over all ids of rows without a token; None leaves them unspecified.
        expert_id_payload_index
            Which payload the ids are; needed with `invalid_token_expert_id`.
        eplb_local_stats, active_rank_mask, enable_pdl
            As for `moe_a2a_dispatch`.

        Returns
        -------
        list of torch.Tensor
            Views [R, T, *], one a payload, valid until the matching `combine`.

        Raises
        ------
        RuntimeError
            The last round is not combined yet.
        """
        if self._round is not None:
            raise RuntimeError("dispatch: the last round must be combined first, got a second one")
        if (invalid_token_expert_id is None) != (expert_id_payload_index is None):
            raise ValueError(
                "dispatch: invalid_token_expert_id and expert_id_payload_index go together, "
                f"got {invalid_token_expert_id} and {expert_id_payload_index}"
            )
        received, self._combine_offset, self._stats = moe_a2a_dispatch(
            token_selected_experts,
            input_payloads,
            self.workspace,
            self.metainfo,
            runtime_max_tokens_per_rank,
            self.ep_rank,
            self.ep_size,
            self.top_k,
            self.num_experts,
            enable_pdl,
            eplb_local_stats,
            self.enable_rank_mask,
            active_rank_mask,
            backend=self.backend,
            recv_view_cache=self._views,
        )
        if invalid_token_expert_id is not None and expert_id_payload_index is not None:
            moe_a2a_sanitize_expert_ids(
                received[expert_id_payload_index],
                self.workspace,
                self.metainfo,
                self.ep_rank,
                invalid_token_expert_id,
                enable_pdl,
                backend=self.backend,
            )
        self._round = (token_selected_experts.shape[0], runtime_max_tokens_per_rank)
        self._mask = active_rank_mask
        return received

    def get_combine_payload_tensor_in_workspace(
        self, runtime_max_tokens_per_rank: int, hidden_size: int, dtype: torch.dtype
    ) -> torch.Tensor:
        """[R, T, hidden_size] memory for the experts' output; pass it on with payload_in_workspace.

        Raises
        ------
        RuntimeError
            No round is open.
        """
        self._open_round("get_combine_payload_tensor_in_workspace")
        num_bytes = self.ep_size * runtime_max_tokens_per_rank * hidden_size * dtype.itemsize
        return moe_a2a_wrap_payload_tensor_in_workspace(
            self.workspace[self.ep_rank],
            [self.ep_size, runtime_max_tokens_per_rank],
            self._combine_offset,
            self._combine_offset + num_bytes,
            dtype,
        )

    def combine(
        self,
        payload: torch.Tensor,
        runtime_max_tokens_per_rank: int,
        payload_in_workspace: bool = False,
        output_dtype: torch.dtype | None = None,
        output_scales: torch.Tensor | None = None,
        output_scalar_scale: float = 1.0,
        sf_layout: SfLayout = SfLayout.layout_linear,
        output: torch.Tensor | None = None,
        active_rank_mask: torch.Tensor | None = None,
        *,
        use_low_precision: bool = False,
        enable_pdl: bool | None = None,
    ) -> torch.Tensor:
        """Sum, for every local token, the rows that its ranks produced; closes the round.

        Parameters
        ----------
        payload, payload_in_workspace, output_dtype, output_scales, output_scalar_scale, sf_layout
            As for `moe_a2a_combine`.
        output, use_low_precision, enable_pdl
            As for `moe_a2a_combine`.
        runtime_max_tokens_per_rank
            T, as in the dispatch.
        active_rank_mask
            None, which is the dispatch's, or the same mask.

        Raises
        ------
        RuntimeError
            No round is open.
        """
        num_tokens, tokens_per_rank = self._open_round("combine")
        if runtime_max_tokens_per_rank != tokens_per_rank:
            raise ValueError(
                "combine: runtime_max_tokens_per_rank must be the dispatch's, "
                f"{tokens_per_rank}, got {runtime_max_tokens_per_rank}"
            )
        result = moe_a2a_combine(
            payload,
            num_tokens,
            self.workspace,
            self.metainfo,
            tokens_per_rank,
            self.ep_rank,
            self.ep_size,
            self.top_k,
            self._combine_offset,
            payload_in_workspace,
            output_dtype,
            output_scales,
            output_scalar_scale,
            sf_layout,
            output,
            use_low_precision=use_low_precision,
            enable_pdl=enable_pdl,
            enable_rank_mask=self.enable_rank_mask,
            active_rank_mask=self._mask if active_rank_mask is None else active_rank_mask,
            backend=self.backend,
        )
        self._round = self._stats = None
        return result

    def _open_round(self, operation: str) -> tuple[int, int]:
        if self._round is None:
            raise RuntimeError(f"{operation}: a dispatch must come first, got no open round")
        return self._round

    def checkpoint_prepare(self) -> None:
        """Free the workspace's physical memory and keep its addresses. Collective, between rounds.

        Raises
        ------
        RuntimeError
            A round is open.
        """
        if self._round is not None:
            raise RuntimeError("checkpoint_prepare: no round may be open, got one")
        if self._memory.mapped:
            self._memory.checkpoint_prepare(self._comm, self._comm)

    def checkpoint_restore(self, comm_backend: CommBackend) -> None:
        """Put new memory at the old addresses and initialise it. Collective over `comm_backend`.

        Raises
        ------
        RuntimeError
            `comm_backend` has another rank or size.
        """
        if self._memory.mapped:
            return
        place = (comm_backend.Get_rank(), comm_backend.Get_size())
        if place != (self.ep_rank, self.ep_size):
            raise RuntimeError(
                f"checkpoint_restore: comm_backend must have rank {self.ep_rank} of "
                f"{self.ep_size}, got rank {place[0]} of {place[1]}"
            )
        self._memory.checkpoint_restore(comm_backend, comm_backend)
        self._comm = comm_backend
        self._initialize()


def _group(mapping: Mapping, config: MnnvlConfig | None) -> CommBackend:
    """Return the comm backend of the caller's expert-parallel group."""
    comm = None if config is None else config.comm_backend
    if comm is None:
        if mapping.world_size == 1:
            return SingleRankBackend()
        from .torch_dist import TorchDistBackend

        comm = TorchDistBackend()
    if comm.Get_size() == mapping.moe_ep_size:
        return comm
    return comm.Split(mapping.moe_ep_group_color, mapping.moe_ep_rank)
