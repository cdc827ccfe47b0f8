"""Communicators for set-up, and the stateless ``moe_a2a_*`` family.

Names load when they are first used, so that importing this package imports neither torch nor the
compiled module.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .default import default_comm_backend
    from .mpi import MPIBackend
    from .native import LocalGroup, UnixSocketBackend
    from .protocol import CommBackend
    from .rank_mask import MOE_A2A_RANK_MASK_WORDS, moe_a2a_active_rank_mask
    from .tcp_store import TCPStoreBackend
    from .torch_dist import TorchDistBackend

# Name -> module that defines it; loaded at first use.
_LAZY = {
    "CommBackend": "moe_ep.comm.protocol",
    "LocalGroup": "moe_ep.comm.native",
    "MOE_A2A_RANK_MASK_WORDS": "moe_ep.comm.rank_mask",
    "MPIBackend": "moe_ep.comm.mpi",
    "Mapping": "moe_ep.comm.mapping",
    "MnnvlConfig": "moe_ep.comm.mapping",
    "MoeAlltoAll": "moe_ep.comm.moe_alltoall",
    "SfLayout": "moe_ep.comm.a2a",
    "TCPStoreBackend": "moe_ep.comm.tcp_store",
    "TorchDistBackend": "moe_ep.comm.torch_dist",
    "UnixSocketBackend": "moe_ep.comm.native",
    "default_comm_backend": "moe_ep.comm.default",
    "moe_a2a_active_rank_mask": "moe_ep.comm.rank_mask",
    "moe_a2a_combine": "moe_ep.comm.a2a",
    "moe_a2a_dispatch": "moe_ep.comm.a2a",
    "moe_a2a_get_workspace_size_per_rank": "moe_ep.comm.a2a",
    "moe_a2a_initialize": "moe_ep.comm.a2a",
    "moe_a2a_sanitize_expert_ids": "moe_ep.comm.a2a",
    "moe_a2a_wrap_payload_tensor_in_workspace": "moe_ep.comm.a2a",
}

__all__ = [
    "MOE_A2A_RANK_MASK_WORDS",
    "CommBackend",
    "LocalGroup",
    "MPIBackend",
    "Mapping",
    "MnnvlConfig",
    "MoeAlltoAll",
    "SfLayout",
    "TCPStoreBackend",
    "TorchDistBackend",
    "UnixSocketBackend",
    "default_comm_backend",
    "moe_a2a_active_rank_mask",
    "moe_a2a_combine",
    "moe_a2a_dispatch",
    "moe_a2a_get_workspace_size_per_rank",
    "moe_a2a_initialize",
    "moe_a2a_sanitize_expert_ids",
    "moe_a2a_wrap_payload_tensor_in_workspace",
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
