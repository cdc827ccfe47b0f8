"""Help for tests: ranks as processes or threads, and a numpy reference of dispatch and combine."""

from __future__ import annotations

from .failures import Failure, RankError
from .floats import FloatName, equal_bits, from_float32, half_ulp, storage_dtype, to_float32
from .pool import RankContext, RankPool
from .reference import (
    Placement,
    RankInput,
    RankResult,
    destinations,
    expert_owner,
    reference_combine,
    reference_combine_bound,
    reference_dispatch,
)
from .spawn import spawn_ranks

__all__ = [
    "Failure",
    "FloatName",
    "Placement",
    "RankContext",
    "RankError",
    "RankInput",
    "RankPool",
    "RankResult",
    "destinations",
    "equal_bits",
    "expert_owner",
    "from_float32",
    "half_ulp",
    "reference_combine",
    "reference_combine_bound",
    "reference_dispatch",
    "spawn_ranks",
    "storage_dtype",
    "to_float32",
]
