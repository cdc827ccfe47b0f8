"""Exceptions of the library.

=========================  ==========================================================
exception                  when
=========================  ==========================================================
``ValueError``             bad argument; nothing was sent
``TypeMismatchError``      argument of the wrong kind; a ``TypeError`` and a ``ValueError``
``KeyError``               unknown backend name
``RuntimeError``           wrong order of calls, use after ``destroy``
``MoEEpTimeoutError``      peers did not arrive in time
``MoEEpMismatchError``     ranks disagree about a step
``MoEEpError``             everything else: system calls, unsupported platform, broken group
=========================  ==========================================================

Every message reads ``operation: requirement, got value``. The C++ library raises these very
classes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["MoEEpError", "MoEEpMismatchError", "MoEEpTimeoutError", "Phase", "TypeMismatchError"]

Phase = Literal["dispatch", "combine", "setup"]


class MoEEpError(RuntimeError):
    """Base of the library's own run-time errors."""


class MoEEpTimeoutError(MoEEpError):
    """A bounded wait ended before some ranks arrived.

    The process and its CUDA context stay usable. The instance refuses further steps until
    ``recover``.

    Parameters
    ----------
    message
        What was waited for, with the limit in seconds.
    ranks
        Ranks of the group that did not arrive.
    phase
        What the instance was doing.

    Attributes
    ----------
    ranks : tuple of int
        The missing ranks, ascending. Empty where the transport cannot tell.
    phase : {'dispatch', 'combine', 'setup'}
        What the instance was doing.
    """

    def __init__(self, message: str, ranks: Iterable[int] = (), phase: Phase = "setup") -> None:
        super().__init__(message)
        self.ranks: tuple[int, ...] = tuple(sorted(ranks))
        self.phase: Phase = phase

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self), self.ranks, self.phase)


class MoEEpMismatchError(MoEEpError):
    """Ranks disagree about the shape of a step. The message names field, ranks and values."""


class TypeMismatchError(TypeError, ValueError):
    """An argument of the wrong kind, such as a ``bool`` for a size or float expert ids.

    It is both a ``TypeError`` and a ``ValueError``, so that code which guards against bad arguments
    need not tell the two apart.
    """
