"""A mixture-of-experts layer spread over ranks, compared with the same layer in one process.

`run_demo` is what ``moe-ep demo`` prints.
"""

from __future__ import annotations

from .run import run_demo
from .spec import PHASES, DemoResult, DemoSpec, RankSummary

__all__ = ["PHASES", "DemoResult", "DemoSpec", "RankSummary", "run_demo"]
