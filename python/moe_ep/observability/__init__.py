"""Watching instances from outside: Prometheus metrics, NVTX ranges, log records.

Nothing here is loaded, and nothing is measured, unless it is asked for.
"""

from __future__ import annotations

from .instrument import Instrumentation, instrument
from .metrics import StatsCollector, register_metrics

__all__ = ["Instrumentation", "StatsCollector", "instrument", "register_metrics"]
