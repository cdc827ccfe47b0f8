"""Sizes that the library is built for; the same numbers as in ``moe_ep/types.hpp``."""

from __future__ import annotations

from typing import Final

__all__ = ["MAX_EXTRA_PAYLOADS", "MAX_PAYLOADS", "MAX_RANKS", "MAX_TIMEOUT_SEC", "MAX_TOP_K"]

MAX_RANKS: Final = 256
"""Largest number of ranks of one expert-parallel group."""

MAX_TOP_K: Final = 64
"""Largest top_k."""

MAX_PAYLOADS: Final = 8
"""Most payload tensors that one dispatch carries."""

MAX_EXTRA_PAYLOADS: Final = 4
"""Most `extra_payloads` of one dispatch."""

MAX_TIMEOUT_SEC: Final = 86400
"""Longest timeout of a wait, in seconds."""
