"""Memory: what there is, and what sharing it between processes needs."""

from __future__ import annotations

import os
import resource
from pathlib import Path
from typing import Any

__all__ = ["available_bytes", "describe_memory"]

_SHM = Path("/dev/shm")
_HUGE_SHM = Path("/sys/kernel/mm/transparent_hugepage/shmem_enabled")
_LIMITS = {
    "open_files": resource.RLIMIT_NOFILE,
    "locked_bytes": resource.RLIMIT_MEMLOCK,
    "address_space_bytes": resource.RLIMIT_AS,
    "file_size_bytes": resource.RLIMIT_FSIZE,
}


def describe_memory() -> dict[str, Any]:
    """Sizes, shared memory and limits of this process."""
    total, free = _shm_bytes()
    return {
        "total_bytes": _meminfo("MemTotal"),
        "available_bytes": available_bytes(),
        "memfd": _try_memfd(),
        "shm_total_bytes": total,
        "shm_free_bytes": free,
        "huge_shared_pages": _huge_shared_pages(),
        "limits": {name: _limit(which) for name, which in _LIMITS.items()},
        "boot_id": _read("/proc/sys/kernel/random/boot_id"),
    }


def available_bytes() -> int | None:
    """Memory that can be taken without swapping, as the kernel estimates it."""
    return _meminfo("MemAvailable")


def _meminfo(field: str) -> int | None:
    for line in _read("/proc/meminfo").splitlines():
        name, _, value = line.partition(":")
        if name == field:
            return int(value.split()[0]) * 1024
    return None


def _read(path: str | Path) -> str:
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except OSError:
        return ""


def _try_memfd() -> str:
    """'yes', or why anonymous shared memory cannot be made."""
    try:
        os.close(os.memfd_create("moe_ep_doctor", os.MFD_CLOEXEC))
    except OSError as error:
        return f"no ({error.strerror})"
    return "yes"


def _shm_bytes() -> tuple[int | None, int | None]:
    try:
        state = os.statvfs(_SHM)
    except OSError:
        return None, None
    return state.f_blocks * state.f_frsize, state.f_bavail * state.f_frsize


def _huge_shared_pages() -> str:
    """Return the chosen policy, which stands in brackets."""
    for word in _read(_HUGE_SHM).split():
        if word.startswith("["):
            return word.strip("[]")
    return "unknown"


def _limit(which: int) -> int | None:
    """Soft limit; None is unlimited."""
    soft, _ = resource.getrlimit(which)
    return None if soft == resource.RLIM_INFINITY else soft
