"""The backends of the C++ library: `HostAlltoAll` and the NVLink family."""

from __future__ import annotations

import dataclasses
import logging
from typing import TYPE_CHECKING, Any, ClassVar, Literal, cast

import torch

import moe_ep._core as _core

from .._leaving import destroy_at_exit
from .._views import View, cut, dtype_triple, over_memory
from ..comm.default import check_comm_backend, default_comm_backend
from ..comm.rank_mask import moe_a2a_active_rank_mask
from ..config import (
    CakeAlltoAllConfig,
    HostAlltoAllConfig,
    MoEEpDispatchResult,
    NVLinkOneSidedConfig,
    NVLinkTwoSidedConfig,
)
from ..errors import TypeMismatchError
from ..registry import register_communication
from ..stats import CommunicationStats, PhaseStats
from ..workspace_communication import WorkspaceCommunication
from ._traced import TracedSteps

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Self

    from ..backend_config import BackendConfig
    from ..comm.protocol import CommBackend
    from ..communication import TransportName
    from ..config import BootstrapConfig, MoEEpCommParams

__all__ = ["CakeAlltoAll", "HostAlltoAll", "NVLinkOneSidedAlltoAll", "NVLinkTwoSidedAlltoAll"]

_core.set_log_sink(logging.getLogger("moe_ep").warning)


def _core_bootstrap(bootstrap: BootstrapConfig) -> _core.BootstrapConfig:
    core = _core.BootstrapConfig()
    core.world_size, core.rank = bootstrap.world_size, bootstrap.rank
    core.stream, core.device = bootstrap.stream, bootstrap.device
    return core


def core_params(params: MoEEpCommParams) -> _core.MoEEpCommParams:
    """Return the compiled module's form of `params`."""
    core = _core.MoEEpCommParams()
    core.num_experts, core.top_k = params.num_experts, params.top_k
    core.max_tokens_per_rank, core.hidden_size = params.max_tokens_per_rank, params.hidden_size
    core.invalid_expert_id = params.invalid_expert_id
    core.set_dtype(dtype_triple(params.token_dtype))
    if params.dispatch_format is not None:
        core.set_dispatch_format(params.dispatch_format.name)
    return core


def core_config(config: BackendConfig) -> Any:
    """Return the compiled module's form of a backend's options, all but the comm backend."""
    core = getattr(_core, type(config).__name__)()
    for field in dataclasses.fields(cast("Any", config)):
        if field.name not in ("backend_name", "comm_backend"):
            setattr(core, field.name, getattr(config, field.name))
    return core


def _group_of(bootstrap: BootstrapConfig, comm: CommBackend, given: object) -> object:
    """Return what says which group this is: instances with the same one may share memory."""
    if given is not None:
        return given
    if bootstrap.tcp_store is not None:
        return bootstrap.tcp_store
    if bootstrap.process_group is not None:
        return bootstrap.process_group
    return torch.distributed.group.WORLD if bootstrap.world_size > 1 else comm


class _NativeCommunication(WorkspaceCommunication):
    """A backend of the C++ library, which does all the work."""

    _core_name: ClassVar[str]
    _needs_cuda: ClassVar[bool] = True
    _config_class: ClassVar[type[Any]]

    def __init__(self, bootstrap: BootstrapConfig, params: MoEEpCommParams, config: Any) -> None:
        super().__init__(bootstrap, params)
        self._impl = self._construct(bootstrap, params, config or self._config_class())
        self._finish()

    def _finish(self) -> None:
        kind, index = self._impl.device
        self._device = torch.device("cpu") if kind == 1 else torch.device("cuda", index)
        self._bytes: torch.Tensor | None = over_memory(self._impl.memory())
        self._combine_inputs: dict[View, torch.Tensor] = {}
        self._traced = TracedSteps(self)
        if self._device.type == "cpu":  # elsewhere it may wait for a peer
            destroy_at_exit(self)

    @classmethod
    def _construct(
        cls, bootstrap: BootstrapConfig, params: MoEEpCommParams, config: Any
    ) -> _core.Communication:
        name = cls.__name__
        if not isinstance(config, cls._config_class):
            raise TypeError(
                f"{name}: config must be a {cls._config_class.__name__} or None, "
                f"got {type(config).__name__}"
            )
        comm = default_comm_backend(bootstrap, config, operation=name)
        group = _group_of(bootstrap, comm, config.comm_backend)
        core_bootstrap = _core_bootstrap(bootstrap)
        try:
            config.validate(params, bootstrap.world_size)
            options = core_config(config)
        except (TypeError, ValueError) as error:
            # The others are on their way into the first collective: tell them there.
            _core.refuse_construction(core_bootstrap, comm, group, name, str(error))
        options.set_comm_backend(comm, group)
        make = getattr(_core, f"make_{cls._core_name}")
        return cast("_core.Communication", make(core_bootstrap, core_params(params), options))

    @classmethod
    def is_platform_supported(cls) -> bool:
        return not cls.explain_platform()

    @classmethod
    def explain_platform(cls) -> str:
        reason: str = getattr(_core, f"explain_{cls._core_name}")()
        if not reason and cls._needs_cuda and not cast("Any", torch.backends.cuda).is_built():
            return "this build of torch has no CUDA"
        return reason

    def dispatch(
        self,
        hidden_states: torch.Tensor,
        topk_ids: torch.Tensor,
        topk_weights: torch.Tensor | None = None,
        *,
        hidden_states_scale: torch.Tensor | None = None,
        runtime_max_tokens_per_rank: int | None = None,
        eplb_local_stats: torch.Tensor | None = None,
        active_rank_mask: torch.Tensor | None = None,
        extra_payloads: dict[str, torch.Tensor] | None = None,
    ) -> MoEEpDispatchResult:
        """See `MoEEpCommunication.dispatch`.

        Parameters
        ----------
        active_rank_mask
            Mask of `active_rank_mask`; tokens of ranks without a bit go nowhere, and nobody waits
            for these ranks. Needs enable_rank_mask. None is the default mask (all ranks, or what
            `set_active_ranks` or `recover` said).
        """
        if torch.compiler.is_dynamo_compiling():
            return self._traced.dispatch(
                hidden_states,
                topk_ids,
                topk_weights,
                hidden_states_scale,
                runtime_max_tokens_per_rank,
                eplb_local_stats,
                active_rank_mask,
                extra_payloads or {},
            )
        result = self._impl.dispatch(
            hidden_states,
            topk_ids,
            topk_weights,
            hidden_states_scale,
            runtime_max_tokens_per_rank,
            eplb_local_stats,
            active_rank_mask,
            extra_payloads,
            self._make_result,
        )
        self._traced.num_tokens = topk_ids.shape[0]
        return cast("MoEEpDispatchResult", result)

    def _make_result(self, views: tuple[Any, ...]) -> MoEEpDispatchResult:
        assert self._bytes is not None
        base = self._bytes
        hidden, ids, weights, tokens_per_rank, scale, stats, counts, extras = views
        return MoEEpDispatchResult(
            hidden_states=cut(base, hidden),
            topk_ids=cut(base, ids),
            topk_weights=None if weights is None else cut(base, weights),
            tokens_per_rank=tokens_per_rank,
            hidden_states_scale=None if scale is None else cut(base, scale),
            eplb_gathered_stats=None if stats is None else cut(base, stats),
            recv_counts=cut(base, counts),
            extra_payloads={name: cut(base, view) for name, view in extras} or None,
        )

    def combine(
        self,
        expert_output: torch.Tensor,
        *,
        output: torch.Tensor | None = None,
        active_rank_mask: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """See `MoEEpCommunication.combine`.

        Parameters
        ----------
        active_rank_mask
            None, or the mask that the dispatch had; another one is a RuntimeError.
        """
        if torch.compiler.is_dynamo_compiling():
            return self._traced.combine(expert_output, output, active_rank_mask)
        if output is None:
            num_tokens = self._impl.num_local_tokens()
            output = torch.empty(
                (num_tokens, self.params.hidden_size),
                dtype=self.params.token_dtype,
                device=self._device,
            )
        self._impl.combine(expert_output, output, active_rank_mask)
        return output

    def get_combine_input_buffer(self, dtype: torch.dtype) -> torch.Tensor:
        if not isinstance(dtype, torch.dtype):
            raise TypeMismatchError(
                f"get_combine_input_buffer: dtype must be a torch.dtype, got {dtype!r}"
            )
        if torch.compiler.is_dynamo_compiling():
            return self._traced.combine_input(dtype)
        view = self._impl.combine_input_buffer(*dtype_triple(dtype))
        if view not in self._combine_inputs:
            assert self._bytes is not None
            self._combine_inputs[view] = cut(self._bytes, view)
        return self._combine_inputs[view]

    @property
    def device(self) -> torch.device:
        """Where tensors lie."""
        return self._device

    @property
    def last_transport(self) -> TransportName | None:
        return cast('Literal["fence", "lamport", "counted"] | None', self._impl.last_transport)

    def stats(self) -> CommunicationStats:
        transports, dispatch, combine, events = self._impl.stats()
        return CommunicationStats(
            transports, PhaseStats(**dispatch), PhaseStats(**combine), **events
        )

    @property
    def lamport_enabled(self) -> bool:
        return self._impl.lamport_enabled

    @property
    def lamport_max_tokens(self) -> int | None:
        return self._impl.lamport_max_tokens

    @property
    def workspace_bytes(self) -> int:
        """Bytes of this rank's slice of the workspace, as ``moe-ep plan`` says."""
        return self._impl.workspace_bytes

    def active_rank_mask(self, active_ranks: Sequence[int]) -> torch.Tensor:
        return moe_a2a_active_rank_mask(active_ranks, self.bootstrap.world_size)

    def set_active_ranks(self, ranks: Sequence[int]) -> None:
        stream = self.bootstrap.stream
        if self._device.type == "cuda" and stream == 0:
            stream = torch.cuda.current_stream(self._device).cuda_stream
        self._impl.set_active_ranks(list(ranks), stream)

    def recover(self, active_ranks: Sequence[int], comm_backend: CommBackend) -> None:
        check_comm_backend(f"{type(self).__name__}.recover", comm_backend)
        self._impl.recover(list(active_ranks), comm_backend, comm_backend)

    @classmethod
    def rejoin(
        cls,
        bootstrap: BootstrapConfig,
        params: MoEEpCommParams,
        config: Any,
        *,
        active_ranks: Sequence[int],
        comm_backend: CommBackend,
    ) -> Self:
        check_comm_backend(f"{cls.__name__}.rejoin", comm_backend)
        config = config or cls._config_class()
        config.validate(params, bootstrap.world_size)
        rejoin = getattr(_core, f"rejoin_{cls._core_name}", None)
        if rejoin is None:
            raise RuntimeError(f"{cls.__name__}.rejoin: {cls.explain_platform()}")
        self = cls.__new__(cls)
        super(_NativeCommunication, self).__init__(bootstrap, params)
        self._impl = rejoin(
            _core_bootstrap(bootstrap),
            core_params(params),
            core_config(config),
            list(active_ranks),
            comm_backend,
            comm_backend,
        )
        self._finish()
        return self

    def checkpoint_prepare(self) -> None:
        self._impl.checkpoint_prepare()

    def checkpoint_restore(self, comm_backend: CommBackend) -> None:
        check_comm_backend(f"{type(self).__name__}.checkpoint_restore", comm_backend)
        self._impl.checkpoint_restore(comm_backend, comm_backend)

    def check(self) -> None:
        self._impl.check()

    def synchronize(self) -> None:
        self._impl.synchronize()

    def destroy(self) -> None:
        """Release this instance's share of the workspace.

        Idempotent and local: it waits for no peer. Memory that views of this instance show stays
        until the last of them is gone.
        """
        impl = getattr(self, "_impl", None)
        if impl is None:  # the constructor failed
            return
        impl.destroy()
        self._bytes = None
        self._combine_inputs.clear()
        # No process group outlives the instance on its account.
        self.bootstrap = dataclasses.replace(self.bootstrap, process_group=None, tcp_store=None)


@register_communication("host")
class HostAlltoAll(_NativeCommunication):
    """Dispatch and combine of CPU tensors over shared memory.

    Ranks are processes of one host or threads of one process, on any Linux CPU. `dispatch` and
    `combine` return when their data is there; they release the GIL meanwhile.

    Parameters
    ----------
    bootstrap, params
        As for `MoEEpCommunication`.
    config
        Options; None is the defaults.

    Raises
    ------
    ValueError
        A bad value on any rank, or a parameter that differs between ranks; raised on every rank.
    MoEEpError
        A failed allocation or exchange on any rank; raised on every rank.
    """

    _core_name = "host"
    _needs_cuda = False
    _config_class = HostAlltoAllConfig

    def __init__(
        self,
        bootstrap: BootstrapConfig,
        params: MoEEpCommParams,
        config: HostAlltoAllConfig | None = None,
    ) -> None:
        super().__init__(bootstrap, params, config)


@register_communication("nvlink_one_sided")
class NVLinkOneSidedAlltoAll(_NativeCommunication):
    """Dispatch and combine by one-sided puts over NVLink symmetric memory.

    Needs GPUs of compute capability 9.0 or later, NVLink between the group's GPUs (or any peer
    access with ``require_nvlink=False``), and a build with CUDA kernels. `explain_platform` says
    what is missing.

    Parameters
    ----------
    bootstrap, params
        As for `MoEEpCommunication`.
    config
        Options; None is the defaults.

    Raises
    ------
    ValueError
        A bad value on any rank, or a parameter that differs between ranks; raised on every rank.
    MoEEpError
        The platform lacks something on any rank; raised on every rank.
    """

    _core_name = "nvlink_one_sided"
    _config_class = NVLinkOneSidedConfig

    def __init__(
        self,
        bootstrap: BootstrapConfig,
        params: MoEEpCommParams,
        config: NVLinkOneSidedConfig | None = None,
    ) -> None:
        super().__init__(bootstrap, params, config)


@register_communication("cake")
class CakeAlltoAll(_NativeCommunication):
    """The contract of `NVLinkOneSidedAlltoAll` with kernels generated for exact shapes.

    Parameters
    ----------
    bootstrap, params
        As for `MoEEpCommunication`.
    config
        Options; None is the defaults.

    Raises
    ------
    ValueError, MoEEpError
        As `NVLinkOneSidedAlltoAll`.
    """

    _core_name = "cake"
    _config_class = CakeAlltoAllConfig

    def __init__(
        self,
        bootstrap: BootstrapConfig,
        params: MoEEpCommParams,
        config: CakeAlltoAllConfig | None = None,
    ) -> None:
        super().__init__(bootstrap, params, config)


@register_communication("nvlink_two_sided")
class NVLinkTwoSidedAlltoAll(_NativeCommunication):
    """All-to-all-v through bounded FIFOs over NVLink; memory independent of max_tokens_per_rank.

    Parameters
    ----------
    bootstrap, params
        As for `MoEEpCommunication`; num_experts is divisible by 4.
    config
        Options; None is the defaults.

    Raises
    ------
    ValueError, MoEEpError
        As `NVLinkOneSidedAlltoAll`.
    """

    _core_name = "nvlink_two_sided"
    _config_class = NVLinkTwoSidedConfig

    def __init__(
        self,
        bootstrap: BootstrapConfig,
        params: MoEEpCommParams,
        config: NVLinkTwoSidedConfig | None = None,
    ) -> None:
        super().__init__(bootstrap, params, config)
