"""What living instances give back when the interpreter ends.

torch's process groups abort some exits if their last reference goes while modules are torn down.
"""

from __future__ import annotations

import atexit
import weakref
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .communication import MoEEpCommunication

__all__ = ["destroy_at_exit"]

_living: weakref.WeakSet[MoEEpCommunication] = weakref.WeakSet()


def destroy_at_exit(instance: MoEEpCommunication) -> None:
    """Destroy `instance` before modules are torn down, if it still lives then."""
    _living.add(instance)


@atexit.register
def _leave() -> None:
    for instance in list(_living):
        instance.destroy()
