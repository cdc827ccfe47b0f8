"""Process groups: membership and the device their messages travel on."""

from __future__ import annotations

import torch
import torch.distributed as dist

from .errors import MoEEpError, TypeMismatchError

__all__ = ["carries", "group_rank", "group_size", "resolve_group", "wire_device"]

# Devices whose tensors a backend moves in every collective. Gloo takes CUDA tensors in some only,
# MPI only where it was built for it.
_CARRIES = {"gloo": ("cpu",), "mpi": ("cpu",), "nccl": ("cuda",)}


def resolve_group(operation: str, group: dist.ProcessGroup | None) -> dist.ProcessGroup:
    """Return `group` or the default group, if this process belongs to it.

    Raises
    ------
    MoEEpError
        torch.distributed is not initialised.
    TypeMismatchError
        `group` is no process group.
    ValueError
        This process is no member.
    """
    if not dist.is_available() or not dist.is_initialized():
        raise MoEEpError(
            f"{operation}: torch.distributed must be initialised, got no process group "
            "(call torch.distributed.init_process_group first)"
        )
    if group is None:
        default = dist.group.WORLD
        assert default is not None
        return default
    if isinstance(group, int):  # torch's GroupMember.NON_GROUP_MEMBER
        raise ValueError(
            f"{operation}: this process must be in the process group, got a group without it"
        )
    if not isinstance(group, dist.ProcessGroup):
        raise TypeMismatchError(
            f"{operation}: process_group must be a torch.distributed ProcessGroup or None, "
            f"got {type(group).__name__}"
        )
    return group


def group_rank(group: dist.ProcessGroup) -> int:
    """Return this process's rank within `group`."""
    return dist.get_rank(group)


def group_size(group: dist.ProcessGroup) -> int:
    """Return the number of ranks of `group`."""
    return dist.get_world_size(group)


def _devices(group: dist.ProcessGroup) -> tuple[str, ...]:
    """Return the device types whose tensors `group` carries: "cpu:gloo,cuda:nccl" carries both."""
    devices: list[str] = []
    for entry in dist.get_backend_config(group).lower().split(","):
        device, _, backend = entry.rpartition(":")
        carried = _CARRIES.get(backend, (device,) if device else ("cpu", "cuda"))
        devices += [name for name in carried if device in ("", name)]
    return tuple(devices)


def carries(group: dist.ProcessGroup, device_type: str) -> bool:
    """Whether `group` moves tensors of this device type in every collective."""
    return device_type in _devices(group)


def wire_device(group: dist.ProcessGroup, preferred: torch.device | None = None) -> torch.device:
    """Return the device that tensors must lie on to travel through `group`.

    Parameters
    ----------
    group
        The process group.
    preferred
        Device to keep if the group carries it; None prefers the CPU.
    """
    devices = _devices(group)
    if preferred is not None and preferred.type in devices:
        return preferred
    if "cpu" in devices or not devices:
        return torch.device("cpu")
    if "cuda" in devices:
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device(devices[0])
