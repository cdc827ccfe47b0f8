"""GPUs: driver, devices, links, and the kinds of memory handles that ranks could exchange."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from . import nvml

__all__ = ["describe_gpus"]

_DRIVER = Path("/proc/driver/nvidia")
_CHANNELS = Path("/dev/nvidia-caps-imex-channels")


def describe_gpus() -> dict[str, Any]:
    """Driver, devices, peer access and handle types; `missing` says why there are none."""
    found: dict[str, Any] = {
        "kernel_module": _kernel_module(),
        "missing": "",
        "driver": None,
        "cuda": None,
        "devices": [],
        "peers": [],
        "visible_devices": os.environ.get("CUDA_VISIBLE_DEVICES"),
    }
    try:
        found.update(nvml.query())
    except nvml.NvmlError as error:
        found["missing"] = str(error)
        found["devices"] = _devices_of_kernel_module()
    if not found["kernel_module"] and not found["devices"]:
        found["missing"] = "no NVIDIA driver is loaded (there is no /proc/driver/nvidia/version)"
    found["handle_types"] = _handle_types(found["devices"])
    return found


def _kernel_module() -> str | None:
    """First line of what the loaded kernel module says of itself."""
    try:
        text = (_DRIVER / "version").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    return text.splitlines()[0].removeprefix("NVRM version:").strip() if text else None


def _devices_of_kernel_module() -> list[dict[str, Any]]:
    """Names and addresses of GPUs, from /proc, where there is no NVML."""
    devices = []
    for path in sorted((_DRIVER / "gpus").glob("*/information")):
        fields = {}
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            name, _, value = line.partition(":")
            fields[name.strip()] = value.strip()
        devices.append(
            {
                "name": fields.get("Model", "unknown"),
                "uuid": fields.get("GPU UUID", ""),
                "pci": fields.get("Bus Location", path.parent.name),
                "compute_capability": None,
                "memory_bytes": None,
                "nvlinks": None,
                "fabric": None,
            }
        )
    return devices


def _handle_types(devices: list[dict[str, Any]]) -> dict[str, str]:
    """For each kind of exported memory 'yes' or why not."""
    if not devices:
        return {"posix_fd": "no (no GPU)", "fabric": "no (no GPU)"}
    channels = sorted(_CHANNELS.glob("channel*")) if _CHANNELS.is_dir() else []
    usable = [channel for channel in channels if os.access(channel, os.R_OK | os.W_OK)]
    if any(device["fabric"] != "completed" for device in devices):
        states = sorted({str(device["fabric"]) for device in devices})
        fabric = f"no (fabric state: {', '.join(states)})"
    elif not usable:
        fabric = f"no (no usable IMEX channel in {_CHANNELS})"
    else:
        fabric = "yes"
    return {"posix_fd": "yes", "fabric": fabric}
