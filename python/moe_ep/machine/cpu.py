"""CPUs: model, cores this process may use, and the instruction sets that matter here."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any

__all__ = ["cpu_model", "describe_cpu"]

_CPUINFO = Path("/proc/cpuinfo")
_NODES = Path("/sys/devices/system/node")
_QUOTA = Path("/sys/fs/cgroup/cpu.max")

# Those with a table of host kernels, and what each needs of the CPU.
_TABLES = {"avx2": {"avx2", "f16c"}}
_NOTABLE = ("avx2", "f16c", "fma", "avx512f", "avx512_bf16", "amx_bf16", "sve", "sve2", "bf16")


def describe_cpu() -> dict[str, Any]:
    """Model, cores, instruction sets and the host backend's kernels."""
    flags = _flags()
    usable = sorted(os.sched_getaffinity(0))
    return {
        "model": cpu_model(),
        "architecture": platform.machine(),
        "cores": os.cpu_count(),
        "usable_cores": len(usable),
        "quota_cores": _quota(),
        "numa_nodes": len(list(_NODES.glob("node[0-9]*"))) or 1,
        "instruction_sets": [name for name in _NOTABLE if name in flags],
        "host_kernels": next(
            (name for name, needed in _TABLES.items() if needed <= flags), "generic"
        ),
        "kernel": platform.release(),
    }


def cpu_model() -> str:
    """Name of the CPU, as far as the kernel tells."""
    for line in _lines():
        name, _, value = line.partition(":")
        if name.strip() in ("model name", "Model", "cpu model"):
            return value.strip()
    return platform.processor() or platform.machine()


def _lines() -> list[str]:
    try:
        return _CPUINFO.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []


def _flags() -> set[str]:
    for line in _lines():
        name, _, value = line.partition(":")
        if name.strip() in ("flags", "Features"):
            return set(value.split())
    return set()


def _quota() -> float | None:
    """Cores that the control group allows on average; None without a limit."""
    try:
        quota, period = _QUOTA.read_text(encoding="utf-8").split()
        return None if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError):
        return None
