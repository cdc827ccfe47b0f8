"""Expert-parallel dispatch and combine for mixture-of-experts models.

The interface is that of ``flashinfer.moe_ep``; `moe_ep.comm` holds the stateless ``moe_a2a_*``
family and the communicators for set-up.

Importing this package imports neither torch nor the compiled module, and touches no GPU: names
that need them load when they are first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from .communication import MoEEpCommunication
from .config import (
    BootstrapConfig,
    CakeAlltoAllConfig,
    HostAlltoAllConfig,
    MoEEpCommParams,
    MoEEpDispatchResult,
    NVLinkOneSidedConfig,
    NVLinkTwoSidedConfig,
    QuantFormat,
    TorchDistConfig,
)
from .errors import MoEEpError, MoEEpMismatchError, MoEEpTimeoutError, TypeMismatchError
from .registry import (
    available_communication_backends,
    create_communication,
    register_communication,
)
from .stats import CommunicationStats, PhaseStats

if TYPE_CHECKING:
    from .backends.torch_dist import TorchDistAlltoAll
    from .comm.protocol import CommBackend

# Name -> module that defines it; loaded at first use.
_LAZY = {
    "CakeAlltoAll": "moe_ep.backends.native",
    "CommBackend": "moe_ep.comm.protocol",
    "HostAlltoAll": "moe_ep.backends.native",
    "NVLinkOneSidedAlltoAll": "moe_ep.backends.native",
    "NVLinkTwoSidedAlltoAll": "moe_ep.backends.native",
    "TorchDistAlltoAll": "moe_ep.backends.torch_dist",
}

__all__ = [
    "BootstrapConfig",
    "CakeAlltoAll",
    "CakeAlltoAllConfig",
    "CommBackend",
    "CommunicationStats",
    "HostAlltoAll",
    "HostAlltoAllConfig",
    "MoEEpCommParams",
    "MoEEpCommunication",
    "MoEEpDispatchResult",
    "MoEEpError",
    "MoEEpMismatchError",
    "MoEEpTimeoutError",
    "NVLinkOneSidedAlltoAll",
    "NVLinkOneSidedConfig",
    "NVLinkTwoSidedAlltoAll",
    "NVLinkTwoSidedConfig",
    "PhaseStats",
    "QuantFormat",
    "TorchDistAlltoAll",
    "TorchDistConfig",
    "TypeMismatchError",
    "available_communication_backends",
    "create_communication",
    "register_communication",
]


def __getattr__(name: str) -> Any:
    module = _LAZY.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(module), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})
