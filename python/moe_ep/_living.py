"""The instances of this process that are alive, for who watches them."""

from __future__ import annotations

import itertools
import weakref
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .communication import MoEEpCommunication

__all__ = ["living_instances", "note_instance"]

_numbers = itertools.count()
_living: dict[int, weakref.ref[MoEEpCommunication]] = {}


def note_instance(instance: MoEEpCommunication) -> None:
    """Give `instance` the next number; it is forgotten when it is collected."""
    number = next(_numbers)
    _living[number] = weakref.ref(instance, lambda _: _living.pop(number, None))


def living_instances() -> list[tuple[int, MoEEpCommunication]]:
    """Return the instances with their numbers, in order of construction. From any thread."""
    found = ((number, reference()) for number, reference in list(_living.items()))
    return [(number, instance) for number, instance in found if instance is not None]
