"""The 'auto' backend: the best one that every rank supports."""

from __future__ import annotations

import logging
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from .config import (
    BackendConfig,
    CakeAlltoAllConfig,
    HostAlltoAllConfig,
    NVLinkOneSidedConfig,
    NVLinkTwoSidedConfig,
    TorchDistConfig,
)
from .errors import MoEEpError, MoEEpMismatchError, MoEEpTimeoutError
from .registry import communication_class

if TYPE_CHECKING:
    import torch.distributed

    from .comm.protocol import CommBackend
    from .communication import MoEEpCommunication
    from .config import BootstrapConfig, MoEEpCommParams

__all__ = ["BACKEND_CONFIGS", "create_best_communication"]

_logger = logging.getLogger("moe_ep")

# Config class of each backend, the best one first.
BACKEND_CONFIGS: dict[str, type[BackendConfig]] = {
    "nvlink_one_sided": NVLinkOneSidedConfig,
    "cake": CakeAlltoAllConfig,
    "nvlink_two_sided": NVLinkTwoSidedConfig,
    "host": HostAlltoAllConfig,
    "torch_dist": TorchDistConfig,
}

# Options that say how ranks meet; a backend without them is considered all the same.
_MEETING = {"comm_backend", "process_group"}


@dataclass
class _Meeting:
    """The part of the options that `default_comm_backend` reads."""

    comm_backend: CommBackend | None


def create_best_communication(
    bootstrap: BootstrapConfig, params: MoEEpCommParams, options: dict[str, Any]
) -> MoEEpCommunication:
    """Construct the best backend that every rank supports. Collective.

    One collective finds the candidates. A candidate whose constructor then fails, on every rank
    alike, gives way to the next.

    Parameters
    ----------
    bootstrap, params
        As for any backend.
    options
        Fields of the backends' configs.

    Raises
    ------
    MoEEpError
        No backend is left; the message gives the reason for each.
    TypeError
        No backend has all the options.
    """
    reasons = _explain_backends(bootstrap, options)
    reasons_of_all = _gather(bootstrap, options, reasons)
    failures: list[str] = []
    for name in _ranked(reasons_of_all):
        reason = _first_reason(name, reasons_of_all)
        if not reason:
            config = _make_config(name, options)
            try:
                cls = cast("Any", communication_class(name))
                return cast("MoEEpCommunication", cls(bootstrap, params, config=config))
            except (MoEEpTimeoutError, MoEEpMismatchError):
                raise
            except MoEEpError as error:
                reason = str(error)
                _logger.warning("moe_ep: backend %s is not used: %s", name, reason)
        failures.append(f"{name}: {reason}")
    raise MoEEpError(
        "create_communication: backend 'auto' needs one that runs on every rank, got none ("
        + "; ".join(failures)
        + ")"
    )


def _explain_backends(bootstrap: BootstrapConfig, options: dict[str, Any]) -> dict[str, str]:
    """For each backend why this rank cannot use it; empty where it can."""
    reasons = {name: _explain_options(name, options) for name in BACKEND_CONFIGS}
    if all(reasons.values()):
        unknown = ", ".join(sorted(options))
        raise TypeError(
            f"create_communication: options must be fields of one backend's config, got {unknown}"
        )
    for name in reasons:
        if not reasons[name]:
            reasons[name] = _explain_class(name)
    if not reasons["torch_dist"]:
        reasons["torch_dist"] = _explain_group(bootstrap, options)
    return reasons


def _explain_options(name: str, options: dict[str, Any]) -> str:
    known = {field.name for field in fields(cast("Any", BACKEND_CONFIGS[name]))} | _MEETING
    missing = sorted(set(options) - known)
    return f"it has no option {', '.join(missing)}" if missing else ""


def _explain_class(name: str) -> str:
    try:
        cls = communication_class(name)
        return "" if cls.is_platform_supported() else cls.explain_platform()
    except ImportError as error:
        return f"its module does not import ({error})"


def _explain_group(bootstrap: BootstrapConfig, options: dict[str, Any]) -> str:
    """Why there is no process group for torch_dist."""
    if bootstrap.world_size > 1 and _process_group(bootstrap, options) is None:
        return "there is no process group of the expert-parallel ranks"
    return ""


def _process_group(
    bootstrap: BootstrapConfig, options: dict[str, Any]
) -> torch.distributed.ProcessGroup | None:
    """Group that torch_dist would take, if it has the right size."""
    from ._groups import group_size, resolve_group

    try:
        group = resolve_group("auto", options.get("process_group") or bootstrap.process_group)
    except (MoEEpError, ValueError):
        return None
    return group if group_size(group) == bootstrap.world_size else None


def _gather(
    bootstrap: BootstrapConfig, options: dict[str, Any], reasons: dict[str, str]
) -> list[dict[str, Any]]:
    from ._groups import carries
    from .comm.default import default_comm_backend

    group = None if reasons["torch_dist"] else _process_group(bootstrap, options)
    record = {
        "reasons": reasons,
        "host": _host_identity(),
        "moves_cuda": group is not None and _has_cuda() and carries(group, "cuda"),
    }
    given = options.get("comm_backend")
    if given is None and options.get("process_group") is not None:
        from .comm.torch_dist import TorchDistBackend

        given = TorchDistBackend(options["process_group"])
    comm = default_comm_backend(bootstrap, _Meeting(given), operation="create_communication")
    records: list[dict[str, Any]] = list(comm.allgather(record))
    if len({record["host"] for record in records}) > 1:
        for theirs in records:
            theirs["reasons"]["host"] = theirs["reasons"]["host"] or "the ranks span several hosts"
    return records


def _ranked(records: list[dict[str, Any]]) -> list[str]:
    """Names, best first: a group that moves CUDA tensors is better than host memory."""
    names = list(BACKEND_CONFIGS)
    if all(record["moves_cuda"] for record in records):
        names.remove("host")
        names.append("host")
    return names


def _first_reason(name: str, records: list[dict[str, Any]]) -> str:
    for rank, record in enumerate(records):
        if record["reasons"][name]:
            return f"rank {rank}: {record['reasons'][name]}"
    return ""


def _make_config(name: str, options: dict[str, Any]) -> BackendConfig:
    cls = BACKEND_CONFIGS[name]
    known = {field.name for field in fields(cast("Any", cls))}
    return cls(**{key: value for key, value in options.items() if key in known})


def _host_identity() -> str:
    """Return what tells hosts apart, also in containers of equal name: the kernel's boot id."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _has_cuda() -> bool:
    import torch

    return torch.cuda.is_available()
