"""Checks of plain arguments, all with the same words: ``operation: requirement, got value``."""

from __future__ import annotations

from .errors import TypeMismatchError

__all__ = ["INT32_MAX", "INT32_MIN", "check_bool", "check_int", "check_optional_bool"]

INT32_MIN = -(2**31)
INT32_MAX = 2**31 - 1


def _describe_range(low: int | None, high: int | None) -> str:
    if low is not None and high is not None:
        return f"an int in {low}..{high}"
    if low == 1:
        return "a positive int"
    if low is not None:
        return f"an int >= {low}"
    return "an int"


def check_int(
    operation: str,
    name: str,
    value: object,
    *,
    low: int | None = None,
    high: int | None = None,
    optional: bool = False,
) -> None:
    """Raise unless `value` is an ``int`` in ``low..high`` (a ``bool`` is no int here).

    Raises
    ------
    TypeMismatchError
        Not an int.
    ValueError
        Outside the range.
    """
    if optional and value is None:
        return
    requirement = f"{operation}: {name} must be {_describe_range(low, high)}"
    if optional:
        requirement += " or None"
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeMismatchError(f"{requirement}, got {value!r} ({type(value).__name__})")
    if (low is not None and value < low) or (high is not None and value > high):
        raise ValueError(f"{requirement}, got {value}")


def check_bool(operation: str, name: str, value: object) -> None:
    """Raise `TypeMismatchError` unless `value` is a ``bool``."""
    if not isinstance(value, bool):
        raise TypeMismatchError(
            f"{operation}: {name} must be a bool, got {value!r} ({type(value).__name__})"
        )


def check_optional_bool(operation: str, name: str, value: object) -> None:
    """Raise `TypeMismatchError` unless `value` is a ``bool`` or ``None``."""
    if value is not None and not isinstance(value, bool):
        raise TypeMismatchError(
            f"{operation}: {name} must be a bool or None, got {value!r} ({type(value).__name__})"
        )
