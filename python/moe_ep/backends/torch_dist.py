"""TorchDistAlltoAll: dispatch and combine over any torch.distributed process group."""

from __future__ import annotations

import contextlib
import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from .._groups import group_size, resolve_group
from .._handshake import agree, params_fields
from .._leaving import destroy_at_exit
from ..comm.default import SingleRankBackend, check_comm_backend
from ..comm.torch_dist import TorchDistBackend
from ..communication import MoEEpCommunication
from ..config import TorchDistConfig
from ..errors import (
    MoEEpError,
    MoEEpMismatchError,
    MoEEpTimeoutError,
    Phase,
    TypeMismatchError,
)
from ..registry import register_communication
from ._counts import Counts
from ._exchange import Exchange
from ._results import Results, packed_payloads, write
from ._routing import Routing, block_rows, route, sent_ids
from ._signature import check_signatures, step_signature
from ._validate import DispatchStep, check_combine, check_dispatch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from ..comm.protocol import CommBackend
    from ..communication import TransportName
    from ..config import BootstrapConfig, MoEEpCommParams, MoEEpDispatchResult
    from ..stats import CommunicationStats

__all__ = ["TorchDistAlltoAll"]


@dataclass(frozen=True)
class _Round:
    """What combine needs of its dispatch."""

    step: DispatchStep
    routing: Routing
    sent_counts: list[int]
    received_counts: list[int]
    rows: torch.Tensor  # [received] result row of each received token


@register_communication("torch_dist")
class TorchDistAlltoAll(MoEEpCommunication):
    """Dispatch and combine over a process group: NCCL, Gloo or MPI, on any number of hosts.

    Each token travels once to each rank that owns one of its experts. Block `src` of a result holds
    rank `src`'s tokens compactly, in ascending order. Ranks that pass steps of different shape all
    raise MoEEpMismatchError; after an error steps raise until `recover`.

    Payloads have no size limit here, as nothing is reserved for them: any `extra_payloads` and
    scales that the ranks agree on, and `eplb_local_stats` of any common length. There is no rank
    mask. Waits are bounded by the process group's timeout. Steps wait on the host, so that CUDA
    graphs cannot hold them.

    Parameters
    ----------
    bootstrap
        Who this process is in the group. Rank and size are the process group's own, not those of
        the default group.
    params
        Sizes and formats, equal on every rank; num_experts must be divisible by the group's size.
    config
        The process group; None takes bootstrap.process_group, else the default group. A group of
        one needs none.

    Raises
    ------
    ValueError
        On every rank: a bad argument on some rank, or parameters that differ.
    MoEEpError
        There is no process group.
    """

    def __init__(
        self,
        bootstrap: BootstrapConfig,
        params: MoEEpCommParams,
        config: TorchDistConfig | None = None,
    ) -> None:
        super().__init__(bootstrap, params)
        name = type(self).__name__
        config = TorchDistConfig() if config is None else config
        self._group = _choose_group(name, bootstrap, config)
        comm = SingleRankBackend() if self._group is None else TorchDistBackend(self._group)
        failure = None
        try:
            _check_config(config, params, bootstrap.world_size)
        except (ValueError, TypeError) as error:
            failure = error
        agree(
            comm,
            bootstrap,
            name,
            {"backend": name, "world_size": bootstrap.world_size, **params_fields(params)},
            failure,
        )
        self._exchange = Exchange(self._group, bootstrap.world_size)
        self._results = Results(bootstrap.world_size, params.max_tokens_per_rank)
        self._combine_memory: torch.Tensor | None = None
        self._combine_inputs: dict[tuple[int, torch.device], torch.Tensor] = {}
        self._round: _Round | None = None
        self._num_dispatches = 0
        self._last_transport: TransportName | None = None
        # Makes the error anew each time: a kept one would keep its traceback's tensors alive.
        self._pending: Callable[[], MoEEpError] | None = None
        self._destroyed = False
        self._counts = Counts(bootstrap.rank)
        destroy_at_exit(self)

    @classmethod
    def is_platform_supported(cls) -> bool:
        """Whether this torch was built with torch.distributed."""
        return dist.is_available()

    @classmethod
    def explain_platform(cls) -> str:
        """One sentence on why the backend cannot run here; empty where it can."""
        return "" if dist.is_available() else "This torch was built without torch.distributed."

    @property
    def last_transport(self) -> TransportName | None:
        """'fence' after the first dispatch: its placement is the fence transport's."""
        return self._last_transport

    def dispatch(
        self,
        hidden_states: torch.Tensor,
        topk_ids: torch.Tensor,
        topk_weights: torch.Tensor | None = None,
        *,
        hidden_states_scale: torch.Tensor | None = None,
        runtime_max_tokens_per_rank: int | None = None,
        eplb_local_stats: torch.Tensor | None = None,
        extra_payloads: dict[str, torch.Tensor] | None = None,
    ) -> MoEEpDispatchResult:
        """See `MoEEpCommunication.dispatch`."""
        self._check_usable("dispatch")
        if self._round is not None:
            raise RuntimeError(
                "dispatch: the open round must be combined first, got a second dispatch"
            )
        step = check_dispatch(
            self.params,
            hidden_states,
            topk_ids,
            topk_weights,
            hidden_states_scale,
            runtime_max_tokens_per_rank,
            eplb_local_stats,
            extra_payloads,
        )
        with torch.no_grad(), self._stream(step.device), self._guard("dispatch"):
            return self._dispatch(step)

    def combine(
        self, expert_output: torch.Tensor, *, output: torch.Tensor | None = None
    ) -> torch.Tensor:
        """See `MoEEpCommunication.combine`."""
        this_round = self._open_round("combine")
        step = this_round.step
        rows = check_combine(
            self.params,
            self.bootstrap.world_size,
            step.tokens_per_rank,
            step.num_tokens,
            step.device,
            expert_output,
            output,
        )
        with torch.no_grad(), self._stream(step.device), self._guard("combine"):
            sums = self._combine(this_round, rows)
            self._round = None
            self._counts.add_combine(
                step.num_tokens,
                this_round.received_counts,
                this_round.sent_counts,
                self.params.hidden_size * self.params.token_dtype.itemsize,
            )
            if output is None:
                return sums.to(self.params.token_dtype)
            return output.copy_(sums)

    def get_combine_input_buffer(self, dtype: torch.dtype) -> torch.Tensor:
        """[R * T, hidden_size] memory to write the expert output into.

        The rows are packed before they travel, so that passing it to `combine` saves no copy here.
        """
        step = self._open_round("get_combine_input_buffer").step
        if dtype != self.params.token_dtype:
            raise ValueError(
                f"get_combine_input_buffer: dtype must be {self.params.token_dtype}, got {dtype}"
            )
        key = (step.tokens_per_rank, step.device)
        if key not in self._combine_inputs:
            with torch.inference_mode(False), torch.no_grad():
                self._combine_inputs[key] = self._cut_combine_input(step)
        return self._combine_inputs[key]

    def _cut_combine_input(self, step: DispatchStep) -> torch.Tensor:
        world_size, params = self.bootstrap.world_size, self.params
        if self._combine_memory is None or self._combine_memory.device != step.device:
            self._combine_memory = torch.empty(
                (world_size * params.max_tokens_per_rank, params.hidden_size),
                dtype=params.token_dtype,
                device=step.device,
            )
        return self._combine_memory[: world_size * step.tokens_per_rank]

    def stats(self) -> CommunicationStats:
        """See `MoEEpCommunication.stats`; a timeout is one that the process group told of."""
        return self._counts.read()

    def _drop_round(self) -> None:
        if self._round is not None:
            self._counts.add_event("abandoned_rounds")
        self._round = None

    def check(self) -> None:
        """Raise the error of an earlier step, if there is one, without waiting."""
        if self._pending is not None:
            raise self._pending()

    def synchronize(self) -> None:
        """Wait for the work enqueued on the stream of the steps, then `check`."""
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            with self._stream(torch.device("cuda", torch.cuda.current_device())):
                torch.cuda.current_stream().synchronize()
        self.check()

    def recover(self, active_ranks: Sequence[int], comm_backend: CommBackend) -> None:
        """Make the instance usable again after an error. Collective over all ranks.

        Parameters
        ----------
        active_ranks
            All ranks: there is no rank mask.
        comm_backend
            Spans the group with its ranks.

        Raises
        ------
        ValueError
            Ranks are left out, or `comm_backend` is of another group.
        RuntimeError
            The instance is destroyed.
        """
        if self._destroyed:
            raise RuntimeError("recover: the instance must not be destroyed, got a destroyed one")
        check_comm_backend("recover", comm_backend)
        rank, size = self.bootstrap.rank, self.bootstrap.world_size
        if sorted(active_ranks) != list(range(size)):
            raise ValueError(
                f"recover: active_ranks must be all of 0..{size - 1} (torch_dist has no rank mask),"
                f" got {list(active_ranks)}"
            )
        if (comm_backend.Get_rank(), comm_backend.Get_size()) != (rank, size):
            raise ValueError(
                f"recover: comm_backend must have rank {rank} of {size}, "
                f"got rank {comm_backend.Get_rank()} of {comm_backend.Get_size()}"
            )
        # Ranks may have failed in different steps; they go on with the same one.
        self._num_dispatches = max(comm_backend.allgather(self._num_dispatches))
        self._pending = None
        self._drop_round()
        self._counts.add_event("recoveries")

    def destroy(self) -> None:
        """Drop the process group and all memory. Idempotent; waits for nobody."""
        self._destroyed = True
        self._group = None
        self._exchange = Exchange(None, 1)
        self._drop_round()
        self._pending = None
        self._results = Results(1, 1)
        self._combine_inputs.clear()
        self._combine_memory = None

    def _dispatch(self, step: DispatchStep) -> MoEEpDispatchResult:
        world_size, params = self.bootstrap.world_size, self.params
        routing = route(step.topk_ids, params.num_experts, world_size)
        signature = step_signature(step, self._num_dispatches)
        heads = torch.tensor(signature, dtype=torch.int64).repeat(world_size, 1).to(step.device)
        received = self._exchange.words(torch.cat([routing.counts.view(-1, 1), heads], dim=1))
        check_signatures(
            [words[1:] for words in received], [payload.name for payload in step.extra_payloads]
        )
        self._num_dispatches += 1
        sent_counts: list[int] = routing.counts.tolist()
        received_counts = [words[0] for words in received]
        payloads = packed_payloads(step, sent_ids(step.topk_ids, params.invalid_expert_id))
        packed = torch.cat(
            [payload.rows().index_select(0, routing.tokens) for payload in payloads], dim=1
        )
        arrived = self._exchange.rows(packed, sent_counts, received_counts)
        rows = block_rows(received_counts, step.tokens_per_rank, step.device)
        result = self._results.get(step, payloads)
        write(result, rows, arrived, received_counts, params.invalid_expert_id)
        if step.eplb_local_stats is not None:
            assert result.eplb_gathered_stats is not None
            result.eplb_gathered_stats.copy_(self._exchange.gather(step.eplb_local_stats))
        self._round = _Round(step, routing, sent_counts, received_counts, rows)
        self._last_transport = "fence"
        self._counts.add_dispatch(
            step.num_tokens, sent_counts, received_counts, packed.shape[1] * packed.itemsize
        )
        return result

    def _combine(self, this_round: _Round, expert_output: torch.Tensor) -> torch.Tensor:
        """[n, hidden_size] float32 sums."""
        routing = this_round.routing
        returned = self._exchange.rows(
            expert_output.index_select(0, this_round.rows),
            this_round.received_counts,
            this_round.sent_counts,
        )
        # x + -0.0 is x for every x, so the sum starts from the first contribution.
        sums = torch.full(
            (this_round.step.num_tokens, self.params.hidden_size),
            -0.0,
            dtype=torch.float32,
            device=returned.device,
        )
        start = 0
        for count in this_round.sent_counts:
            tokens = routing.tokens[start : start + count]
            # Not index_add_: its atomics flush subnormal sums on CUDA.
            partial = sums.index_select(0, tokens) + returned[start : start + count].float()
            sums.index_copy_(0, tokens, partial)
            start += count
        sums[~routing.is_sent] = 0.0
        return sums

    def _open_round(self, operation: str) -> _Round:
        self._check_usable(operation)
        if self._round is None:
            raise RuntimeError(f"{operation}: a dispatch must come first, got no open round")
        return self._round

    def _check_usable(self, operation: str) -> None:
        if self._destroyed:
            raise RuntimeError(
                f"{operation}: the instance must not be destroyed, got a destroyed one"
            )
        if self._pending is not None:
            raise self._pending()

    @contextlib.contextmanager
    def _stream(self, device: torch.device) -> Iterator[None]:
        """Run on bootstrap.stream, if there is one."""
        if device.type != "cuda" or self.bootstrap.stream == 0:
            yield
            return
        stream = torch.cuda.ExternalStream(self.bootstrap.stream, device)  # type: ignore[no-untyped-call]
        with torch.cuda.stream(stream):
            yield

    @contextlib.contextmanager
    def _guard(self, phase: Phase) -> Iterator[None]:
        """Close the round and refuse further steps if the exchange fails."""
        try:
            yield
        except MoEEpMismatchError as error:
            self._pending = functools.partial(MoEEpMismatchError, str(error))
            self._counts.add_event("mismatches")
            raise
        except Exception as error:
            self._drop_round()
            self._pending = _failure(phase, error)
            failure = self._pending()
            if isinstance(failure, MoEEpTimeoutError):
                self._counts.add_event("timeouts")
            raise failure from error
        except BaseException as error:
            self._drop_round()
            self._pending = _failure(phase, error)
            raise


def _failure(phase: Phase, error: BaseException) -> Callable[[], MoEEpError]:
    message = (
        f"{phase}: every rank must take part in the process group's exchange, got "
        f"{type(error).__name__}: {error}"
    )
    if "timed out" in message.lower() or "timeout" in message.lower():
        return functools.partial(MoEEpTimeoutError, message, (), phase)
    return functools.partial(MoEEpError, message)


def _choose_group(
    operation: str, bootstrap: BootstrapConfig, config: object
) -> dist.ProcessGroup | None:
    """Return the process group that spans the ranks, or None for a group of one."""
    given = getattr(config, "process_group", None)
    given = bootstrap.process_group if given is None else given
    if given is None and bootstrap.world_size == 1:
        return None
    try:
        group = resolve_group(operation, given)
    except MoEEpError as error:
        raise MoEEpError(
            f"{operation}: {bootstrap.world_size} ranks need a process group, got none; pass "
            "TorchDistConfig.process_group or BootstrapConfig.process_group, or call "
            "torch.distributed.init_process_group first"
        ) from error
    if group_size(group) != bootstrap.world_size:
        raise ValueError(
            f"{operation}: the process group must have bootstrap.world_size = "
            f"{bootstrap.world_size} ranks, got {group_size(group)}"
        )
    return group


def _check_config(config: object, params: MoEEpCommParams, world_size: int) -> None:
    if not isinstance(config, TorchDistConfig):
        raise TypeMismatchError(
            f"config must be a TorchDistConfig or None, got {type(config).__name__}"
        )
    config.validate(params, world_size)
    if params.num_experts % world_size != 0:
        raise ValueError(
            f"num_experts must be divisible by world_size {world_size}, got {params.num_experts}"
        )
