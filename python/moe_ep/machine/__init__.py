"""What this machine offers, as plain dicts; ``moe-ep doctor`` prints them.

Everything is read without initialising CUDA: from /proc, /sys and NVML.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .backends import describe_backends
from .cpu import describe_cpu
from .gpu import describe_gpus
from .memory import describe_memory
from .software import describe_package, describe_software

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["SECTIONS", "describe_machine"]

SECTIONS: dict[str, Callable[[], dict[str, Any]]] = {
    "package": describe_package,
    "cpu": describe_cpu,
    "memory": describe_memory,
    "gpu": describe_gpus,
    "software": describe_software,
    "backends": describe_backends,
}
"""Parts of the description, in the order to show them."""


def describe_machine() -> dict[str, dict[str, Any]]:
    """Every section by name."""
    return {name: describe() for name, describe in SECTIONS.items()}
