"""instrument: ranges and log records around the calls of one instance."""

from __future__ import annotations

import contextlib
import functools
import logging
from typing import TYPE_CHECKING, Any

from ..errors import MoEEpTimeoutError
from .ranges import nvtx_range

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from ..communication import MoEEpCommunication

__all__ = ["Instrumentation", "instrument"]

_PHASES = ("dispatch", "combine")
_EVENTS = ("recover", "checkpoint_prepare", "checkpoint_restore", "destroy")


class Instrumentation:
    """What `instrument` has put around an instance's methods; `remove` takes it away."""

    def __init__(self, communication: MoEEpCommunication) -> None:
        self._communication = communication
        self._names: list[str] = []

    def wrap(self, name: str, around: Callable[[str], AbstractContextManager[object]]) -> None:
        """Run every later call of the method inside ``around(name)``."""
        method = getattr(self._communication, name)

        @functools.wraps(method)
        def call(*args: Any, **kwargs: Any) -> Any:
            import torch

            if torch.compiler.is_dynamo_compiling():  # a graph holds the operators alone
                return method(*args, **kwargs)
            with around(name):
                return method(*args, **kwargs)

        setattr(self._communication, name, call)
        self._names.append(name)

    def remove(self) -> None:
        """Give the instance its methods back. Idempotent."""
        while self._names:
            vars(self._communication).pop(self._names.pop(), None)


def instrument(
    communication: MoEEpCommunication,
    *,
    nvtx: bool = False,
    logger: logging.Logger | None = None,
) -> Instrumentation:
    """Put NVTX ranges around an instance's phases, log what befalls it, or both.

    Parameters
    ----------
    communication
        An instance of any backend. Calls that `torch.compile` traces are left alone.
    nvtx
        Ranges ``moe_ep.dispatch`` and ``moe_ep.combine`` for Nsight and the like: the time a call
        takes on the host.
    logger
        Gets a record at ERROR for each call that raises and one at INFO for each `recover`,
        checkpoint and `destroy`. A record has the attributes ``moe_ep_event``, ``moe_ep_backend``,
        ``moe_ep_rank``, ``moe_ep_world_size`` and, of a failure, ``moe_ep_error`` (the class) and
        ``moe_ep_missing_ranks``: fields for a formatter that writes JSON. The library's own
        warnings go to the logger ``moe_ep`` in any case.

    Raises
    ------
    ModuleNotFoundError
        `nvtx` is asked for, and neither torch nor the package ``nvtx`` offers it.
    RuntimeError
        The instance is instrumented already.
    """
    own = vars(communication)
    if any(name in own for name in (*_PHASES, *_EVENTS)):
        raise RuntimeError("instrument: an instance may be instrumented once, got one that is")
    result = Instrumentation(communication)
    make_range = nvtx_range() if nvtx else None

    @contextlib.contextmanager
    def phase(name: str) -> Any:
        with contextlib.ExitStack() as stack:
            if make_range is not None:
                stack.enter_context(make_range(f"moe_ep.{name}"))
            if logger is not None:
                stack.enter_context(_logged(logger, communication, name, success=None))
            yield

    @contextlib.contextmanager
    def event(name: str) -> Any:
        assert logger is not None
        with _logged(logger, communication, name, success=logging.INFO):
            yield

    for name in _PHASES:
        result.wrap(name, phase)
    for name in _EVENTS if logger is not None else ():
        if hasattr(communication, name):
            result.wrap(name, event)
    return result


@contextlib.contextmanager
def _logged(
    logger: logging.Logger, communication: MoEEpCommunication, name: str, success: int | None
) -> Any:
    bootstrap = communication.bootstrap
    fields = {
        "moe_ep_event": name,
        "moe_ep_backend": type(communication).__name__,
        "moe_ep_rank": bootstrap.rank,
        "moe_ep_world_size": bootstrap.world_size,
    }
    try:
        yield
    except Exception as error:
        fields["moe_ep_error"] = type(error).__name__
        if isinstance(error, MoEEpTimeoutError):
            fields["moe_ep_missing_ranks"] = list(error.ranks)
        logger.error("%s", error, extra=fields)
        raise
    if success is not None:
        logger.log(success, "%s of rank %d", name, bootstrap.rank, extra=fields)
