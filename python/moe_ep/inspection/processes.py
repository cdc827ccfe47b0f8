"""Which processes have slices, as /proc tells it: descriptors and mappings."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

__all__ = ["FileId", "OpenSlice", "open_slices", "own_processes", "require_own", "views"]

_PROC = Path("/proc")
# A memfd, or the shared memory object that stands in where there are none.
_TARGET = re.compile(r"/memfd:moe_ep \(deleted\)|/dev/shm/moe_ep-[0-9a-f]+ \(deleted\)")
_MAPPING = re.compile(
    r"(?P<begin>[0-9a-f]+)-(?P<end>[0-9a-f]+) \S+ [0-9a-f]+ "
    r"(?P<major>[0-9a-f]+):(?P<minor>[0-9a-f]+) (?P<inode>\d+)\s+(?P<path>/.*)"
)

FileId = tuple[int, int]  # device, inode


@dataclass(frozen=True)
class OpenSlice:
    """A descriptor of a slice that its owner holds."""

    pid: int
    path: Path
    file: FileId


def require_own(pid: int) -> None:
    """Raise unless the process runs as this user.

    Raises
    ------
    ProcessLookupError
        There is no such process.
    PermissionError
        It is somebody else's.
    """
    try:
        owner = (_PROC / str(pid)).stat().st_uid
    except FileNotFoundError:
        raise ProcessLookupError(f"inspect: a process must be running, got {pid}") from None
    if owner != os.geteuid():
        raise PermissionError(
            f"inspect: process {pid} must be of this user ({os.geteuid()}), got one of user {owner}"
        )


def own_processes() -> list[int]:
    """Return the processes of this user."""
    found = []
    for entry in _PROC.iterdir():
        if entry.name.isdecimal():
            try:
                require_own(int(entry.name))
            except (ProcessLookupError, PermissionError):
                continue
            found.append(int(entry.name))
    return sorted(found)


def open_slices(pid: int) -> list[OpenSlice]:
    """Return the slices that a process holds. Empty for one that ends meanwhile."""
    found = []
    try:
        for entry in (_PROC / str(pid) / "fd").iterdir():
            if _TARGET.fullmatch(os.readlink(entry)):
                status = entry.stat()
                found.append(OpenSlice(pid, entry, (status.st_dev, status.st_ino)))
    except (FileNotFoundError, ProcessLookupError):
        return []
    return found


def views(pid: int) -> list[set[FileId]]:
    """Return the workspaces that a process has mapped, each as the files of its slices.

    Slices of one workspace are of one size and lie the same distance apart, a guard page between
    neighbours (docs/architecture.md); those of absent ranks leave gaps.
    """
    page = os.sysconf("SC_PAGESIZE")
    found: list[set[FileId]] = []
    last_end = last_size = 0
    for begin, end, file in _mappings(pid):
        stride = end - begin + page
        gap = begin - last_end - page
        joins = end - begin == last_size and gap >= 0 and gap % stride == 0 and gap < 256 * stride
        if not joins:
            found.append(set())
        found[-1].add(file)
        last_end, last_size = end, end - begin
    return found


def _mappings(pid: int) -> list[tuple[int, int, FileId]]:
    """Address range and file of each mapped slice, by address."""
    try:
        lines = (_PROC / str(pid) / "maps").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return []
    except PermissionError as error:
        raise PermissionError(
            f"inspect: the memory map of process {pid} must be readable, got: {error.strerror}"
        ) from error
    found: list[tuple[int, int, FileId]] = []
    for line in lines:
        match = _MAPPING.fullmatch(line)
        if match is None or not _TARGET.fullmatch(match["path"]):
            continue
        begin, end = int(match["begin"], 16), int(match["end"], 16)
        device = os.makedev(int(match["major"], 16), int(match["minor"], 16))
        file = (device, int(match["inode"]))
        if found and found[-1][1] == begin and found[-1][2] == file:  # a mapping in parts
            begin = found.pop()[0]
        found.append((begin, end, file))
    return found
