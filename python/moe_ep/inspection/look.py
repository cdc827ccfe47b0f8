"""inspect_processes: from processes to reports, one a workspace."""

from __future__ import annotations

import fcntl
import mmap
import os
from typing import TYPE_CHECKING, Any

from .processes import FileId, OpenSlice, open_slices, own_processes, require_own, views
from .report import WorkspaceReport, make_report

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["inspect_processes"]

_F_GET_SEALS, _F_SEAL_SHRINK = 1034, 2  # linux/fcntl.h; not in every fcntl module


def inspect_processes(pids: Sequence[int] = ()) -> list[WorkspaceReport]:
    """Look at the workspaces of running processes. Reads only; stops and asks nobody.

    Parameters
    ----------
    pids
        Processes of this user; their peers are found by the memory they share. Empty: every process
        of this user.

    Returns
    -------
    list[WorkspaceReport]
        One for each workspace, of those slices whose owners are running on this host.

    Raises
    ------
    ProcessLookupError
        One of `pids` is not running.
    PermissionError
        One of `pids` is another user's, or may not be looked at.
    """
    for pid in pids:
        require_own(pid)
    held: dict[FileId, OpenSlice] = {}
    workspaces: list[set[FileId]] = []
    for pid in own_processes():
        try:
            _merge(workspaces, views(pid))
            for found in open_slices(pid):
                held.setdefault(found.file, found)
        except PermissionError:
            if pid in pids:
                raise
    if pids:
        wanted = {file for pid in pids for view in views(pid) for file in view}
        workspaces = [files for files in workspaces if files & wanted]
    reports = []
    for files in workspaces:
        slices = [(held[file].pid, _read(held[file])) for file in files if file in held]
        armed = [(pid, slice_) for pid, slice_ in slices if slice_ is not None]
        if armed:
            reports.append(make_report(armed))
    return sorted(reports, key=lambda report: [slice_.pid for slice_ in report.slices])


def _merge(workspaces: list[set[FileId]], seen: list[set[FileId]]) -> None:
    """Add what a process has mapped; sets that share a file are one workspace."""
    for view in seen:
        joined = set(view)
        for known in [known for known in workspaces if known & view]:
            workspaces.remove(known)
            joined |= known
        workspaces.append(joined)


def _read(found: OpenSlice) -> dict[str, Any] | None:
    """What the slice says; None if it is gone, or is none of the host backend's."""
    from moe_ep import _core

    try:
        descriptor = os.open(found.path, os.O_RDONLY | os.O_CLOEXEC)
    except (FileNotFoundError, ProcessLookupError):
        return None
    try:
        status = os.fstat(descriptor)
        if (status.st_dev, status.st_ino) != found.file or status.st_size == 0:
            return None
        if not _keeps_its_size(descriptor):
            return None
        with mmap.mmap(descriptor, status.st_size, mmap.MAP_SHARED, mmap.PROT_READ) as memory:
            return dict(_core.inspect_slice(memory))
    except ValueError:  # memory of the stateless family, or not armed yet
        return None
    finally:
        os.close(descriptor)


def _keeps_its_size(descriptor: int) -> bool:
    """Whether reading cannot fault: nobody may shrink a sealed memfd; other files have no seals."""
    try:
        return bool(fcntl.fcntl(descriptor, _F_GET_SEALS) & _F_SEAL_SHRINK)
    except OSError:
        return True
