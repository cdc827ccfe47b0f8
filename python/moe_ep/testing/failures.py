"""RankError: what went wrong on which rank."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["GRACE_SEC", "Failure", "RankError", "describe_exit"]

GRACE_SEC = 3.0
"""How long other ranks may go on once one has failed, before they count as hung."""


@dataclass(frozen=True)
class Failure:
    """Why a rank returned nothing.

    Parameters
    ----------
    reason
        One line.
    traceback
        Of the exception, or empty.
    exception
        The exception, where it can be had.
    """

    reason: str
    traceback: str = ""
    exception: BaseException | None = None


class RankError(AssertionError):
    """Some ranks raised, died or did not return in time.

    Parameters
    ----------
    failures
        By rank. Ranks that raised come first in the message: the others may only have waited for
        them.
    """

    def __init__(self, failures: Mapping[int, Failure]) -> None:
        self.failures = dict(failures)
        ordered = sorted(self.failures.items(), key=lambda item: (not item[1].traceback, item[0]))
        parts = [f"rank {rank}: {failure.reason}" for rank, failure in ordered]
        parts += [
            f"--- rank {rank} ---\n{failure.traceback.rstrip()}"
            for rank, failure in ordered
            if failure.traceback
        ]
        super().__init__("\n".join(parts))
        causes = [failure.exception for _, failure in ordered if failure.exception is not None]
        if causes:
            self.__cause__ = causes[0]


def describe_exit(exitcode: int | None) -> str:
    """Say how a process ended, from multiprocessing's exit code."""
    if exitcode is None:
        return "ended"
    if exitcode < 0:
        try:
            return f"died of {signal.Signals(-exitcode).name}"
        except ValueError:
            return f"died of signal {-exitcode}"
    return f"exited with code {exitcode}"
