"""Looking at the shared memory of running ranks of the host backend, from another process."""

from __future__ import annotations

from .look import inspect_processes
from .report import SliceReport, WorkspaceReport

__all__ = ["SliceReport", "WorkspaceReport", "inspect_processes"]
