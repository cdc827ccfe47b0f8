"""Options of the backends, one dataclass each.

The dataclasses hold values; `validate` judges them together with the group's parameters and is
called by the backend's constructor, so that a bad value on one rank raises on every rank.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Any

from ._check import check_bool, check_int, check_optional_bool
from .errors import TypeMismatchError
from .limits import MAX_TIMEOUT_SEC

if TYPE_CHECKING:
    import torch.distributed

    from .comm.protocol import CommBackend
    from .config import MoEEpCommParams

__all__ = [
    "BackendConfig",
    "CakeAlltoAllConfig",
    "HostAlltoAllConfig",
    "NVLinkOneSidedConfig",
    "NVLinkTwoSidedConfig",
    "TorchDistConfig",
]

# What each option must be, by name: an option means the same on every backend that has it.
_INTS: dict[str, dict[str, Any]] = {
    "extra_payload_bytes_per_token": {"low": 0},
    "eplb_stats_num_experts": {"low": 0},
    "cft_max_tokens_for_dispatch": {"low": 0, "high": 2**31 - 1},
    "cft_max_tokens_for_combine": {"low": 0, "high": 2**31 - 1},
    "lamport_max_tokens": {"low": 1, "high": 2**31 - 1, "optional": True},
    "timeout_sec": {"low": 1, "high": MAX_TIMEOUT_SEC},
    "max_sms": {"low": 1, "optional": True},
    "num_threads": {"low": 1, "optional": True},
}
_BOOLS = (
    "enable_rank_mask",
    "use_low_precision_combine",
    "share_workspace",
    "require_nvlink",
)
_OPTIONAL_BOOLS = ("cft", "lamport", "enable_pdl")


class BackendConfig:
    """Base of the option dataclasses; a config object names its backend in `backend_name`."""

    backend_name: str

    def validate(self, params: MoEEpCommParams, world_size: int) -> None:
        """Raise unless every option is in range for this group.

        Parameters
        ----------
        params
            The group's parameters.
        world_size
            R, the ranks of the group.

        Raises
        ------
        ValueError
            An option outside its range, or options that exclude each other.
        TypeMismatchError
            An option of the wrong kind.
        """
        operation = type(self).__name__
        if not isinstance(self.backend_name, str):
            raise TypeMismatchError(
                f"{operation}: backend_name must be a str, got {self.backend_name!r}"
            )
        options = vars(self)
        for name, limits in _INTS.items():
            if name in options:
                check_int(operation, name, options[name], **limits)
        for name in _BOOLS:
            if name in options:
                check_bool(operation, name, options[name])
        for name in _OPTIONAL_BOOLS:
            if name in options:
                check_optional_bool(operation, name, options[name])
        if options.get("eplb_stats_num_experts", 0) > params.num_experts:
            raise ValueError(
                f"{operation}: eplb_stats_num_experts must be at most num_experts "
                f"({params.num_experts}), got {options['eplb_stats_num_experts']}"
            )
        if options.get("lamport") is True and options.get("cft") is True:
            raise ValueError(
                f"{operation}: lamport and cft must not both be True, got lamport=True, cft=True"
            )
        check_int(operation, "world_size", world_size, low=1)


@dataclass
class NVLinkOneSidedConfig(BackendConfig):
    """Options of `NVLinkOneSidedAlltoAll`.

    Parameters
    ----------
    backend_name
        Registered name of the backend.
    extra_payload_bytes_per_token
        Bytes a row reserved for `extra_payloads` and for scales beyond `dispatch_format`.
    eplb_stats_num_experts
        Length of `eplb_local_stats`; 0 leaves the statistics out.
    enable_rank_mask
        Whether steps may leave ranks out.
    use_low_precision_combine
        Send combined rows as FP8 with a scale for each 128 elements.
    comm_backend
        Collectives for set-up; None takes the bootstrap's store or group.
    cft
        Counted writes: None where the platform has them, True also beyond the limits below, False
        never.
    cft_max_tokens_for_dispatch, cft_max_tokens_for_combine
        Largest tokens per rank of a step that uses counted writes.
    lamport
        Lamport transport for small steps: None where the platform is known to gain from it, True
        or False. On GPUs None is False in this version.
    lamport_max_tokens
        Largest tokens per rank of a Lamport step; None chooses.
    timeout_sec
        Longest wait for a peer, 1..86400 seconds.
    enable_pdl
        Programmatic dependent launch; None is compute capability 9.0 and later.
    share_workspace
        Share memory with other instances of the group that have the same layout.
    max_sms
        Most streaming multiprocessors a kernel takes; None chooses.
    require_nvlink
        Refuse GPUs that reach each other by other ways than NVLink.
    """

    backend_name: str = "nvlink_one_sided"
    extra_payload_bytes_per_token: int = 0
    eplb_stats_num_experts: int = 0
    enable_rank_mask: bool = False
    use_low_precision_combine: bool = False
    comm_backend: CommBackend | None = None
    cft: bool | None = None
    cft_max_tokens_for_dispatch: int = 128
    cft_max_tokens_for_combine: int = 128
    lamport: bool | None = None
    lamport_max_tokens: int | None = None
    timeout_sec: int = 300
    enable_pdl: bool | None = None
    _: KW_ONLY
    share_workspace: bool = True
    max_sms: int | None = None
    require_nvlink: bool = True


@dataclass
class CakeAlltoAllConfig(BackendConfig):
    """Options of `CakeAlltoAll`; they mean what they mean in `NVLinkOneSidedConfig`."""

    backend_name: str = "cake"
    extra_payload_bytes_per_token: int = 0
    eplb_stats_num_experts: int = 0
    enable_rank_mask: bool = False
    use_low_precision_combine: bool = False
    comm_backend: CommBackend | None = None
    enable_pdl: bool | None = None
    _: KW_ONLY
    timeout_sec: int = 300
    share_workspace: bool = True
    max_sms: int | None = None


@dataclass
class NVLinkTwoSidedConfig(BackendConfig):
    """Options of `NVLinkTwoSidedAlltoAll`; they mean what they mean in `NVLinkOneSidedConfig`."""

    backend_name: str = "nvlink_two_sided"
    comm_backend: CommBackend | None = None


@dataclass
class HostAlltoAllConfig(BackendConfig):
    """Options of `HostAlltoAll`; they mean what they mean in `NVLinkOneSidedConfig`.

    Parameters
    ----------
    num_threads
        Threads that one rank moves rows with; None chooses from the cores and ranks of the host.
    """

    backend_name: str = "host"
    extra_payload_bytes_per_token: int = 0
    eplb_stats_num_experts: int = 0
    enable_rank_mask: bool = False
    use_low_precision_combine: bool = False
    comm_backend: CommBackend | None = None
    cft: bool | None = None
    cft_max_tokens_for_dispatch: int = 128
    cft_max_tokens_for_combine: int = 128
    lamport: bool | None = None
    lamport_max_tokens: int | None = None
    timeout_sec: int = 300
    num_threads: int | None = None
    share_workspace: bool = True


@dataclass
class TorchDistConfig(BackendConfig):
    """Options of `TorchDistAlltoAll`.

    Parameters
    ----------
    backend_name
        Registered name of the backend.
    process_group
        Group that spans exactly the expert-parallel group; None takes the bootstrap's, else the
        default group.
    """

    backend_name: str = "torch_dist"
    process_group: torch.distributed.ProcessGroup | None = None
