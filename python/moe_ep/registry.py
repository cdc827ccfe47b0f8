"""Backends by name.

Built-in backends are imported when they are first asked for, so that importing the package imports
neither torch nor the compiled module.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, TypeVar, cast

from .errors import TypeMismatchError

if TYPE_CHECKING:
    from collections.abc import Callable

    from .communication import MoEEpCommunication
    from .config import BootstrapConfig, MoEEpCommParams

__all__ = [
    "available_communication_backends",
    "communication_class",
    "create_communication",
    "register_communication",
]

AUTO = "auto"

# Importing the module registers the name.
_BUILTIN_MODULES = {
    "nvlink_one_sided": "moe_ep.backends.native",
    "cake": "moe_ep.backends.native",
    "nvlink_two_sided": "moe_ep.backends.native",
    "host": "moe_ep.backends.native",
    "torch_dist": "moe_ep.backends.torch_dist",
}
_registered: dict[str, type[MoEEpCommunication]] = {}

_Class = TypeVar("_Class", bound="type[MoEEpCommunication]")


def register_communication(name: str) -> Callable[[_Class], _Class]:
    """Class decorator that makes a backend known to `create_communication` as `name`.

    Parameters
    ----------
    name
        A name that nobody has yet, other than 'auto'.

    Raises
    ------
    ValueError
        The name is taken by another class.
    TypeMismatchError
        `name` is no str, or what is decorated is no MoEEpCommunication class.

    Examples
    --------
    >>> @register_communication("mine")  # doctest: +SKIP
    ... class MyAlltoAll(MoEEpCommunication): ...
    """
    label: object = name
    if not isinstance(label, str) or not label:
        raise TypeMismatchError(
            f"register_communication: name must be a non-empty str, got {name!r}"
        )

    def register(cls: _Class) -> _Class:
        from .communication import MoEEpCommunication

        decorated: object = cls
        if not (isinstance(decorated, type) and issubclass(decorated, MoEEpCommunication)):
            raise TypeMismatchError(
                "register_communication: the backend must be a subclass of MoEEpCommunication, "
                f"got {cls!r}"
            )
        holder = _registered.get(name)
        taken = name == AUTO or (holder is not None and _path(holder) != _path(cls))
        builtin = _BUILTIN_MODULES.get(name)
        if holder is None and builtin is not None and cls.__module__ != builtin:
            taken = True
        if taken:
            raise ValueError(
                f"register_communication: name must not be taken yet, got {name!r} "
                f"({holder.__qualname__ if holder else 'built in'})"
            )
        _registered[name] = cls
        return cls

    return register


def _path(cls: type) -> tuple[str, str]:
    """Where a class was written: a reloaded module may register its class again."""
    return cls.__module__, cls.__qualname__


def available_communication_backends() -> list[str]:
    """Names that `create_communication` knows, sorted; 'auto' is not among them.

    A name says that the backend exists, not that it runs on this machine: ask its class's
    ``is_platform_supported``.
    """
    return sorted({*_BUILTIN_MODULES, *_registered})


def communication_class(name: str) -> type[MoEEpCommunication]:
    """Class registered as `name`.

    Raises
    ------
    KeyError
        Unknown name; the message lists the known ones.
    ImportError
        The backend's module does not import, such as the compiled one.
    """
    if name not in _registered and name in _BUILTIN_MODULES:
        importlib.import_module(_BUILTIN_MODULES[name])
    if name not in _registered:
        known = ", ".join(available_communication_backends())
        raise KeyError(
            f"create_communication: backend must be one of {known} or auto, got {name!r}"
        )
    return _registered[name]


def create_communication(
    bootstrap: BootstrapConfig, params: MoEEpCommParams, backend: Any, **options: Any
) -> MoEEpCommunication:
    """Construct a backend. Collective, as the constructors are.

    Parameters
    ----------
    bootstrap
        Who this process is in the group.
    params
        Sizes and formats, equal on every rank.
    backend
        A registered name, a config object (anything with a str `backend_name`), or 'auto' for the
        best backend that every rank supports.
    **options
        Passed to the backend's constructor. With 'auto': fields of the backends' configs, such as
        ``comm_backend`` or ``enable_rank_mask``; only backends that have them all are considered.

    Raises
    ------
    KeyError
        Unknown name; the message lists the known ones.
    TypeMismatchError
        `backend` is neither.
    MoEEpError
        With 'auto': no backend runs on every rank; the message says why.
    """
    if isinstance(backend, str):
        if backend == AUTO:
            from .auto import create_best_communication

            return create_best_communication(bootstrap, params, options)
        return cast("Any", communication_class(backend))(bootstrap, params, **options)  # type: ignore[no-any-return]
    name = getattr(backend, "backend_name", None)
    if not isinstance(name, str):
        raise TypeMismatchError(
            "create_communication: backend must be a name or a config with a str backend_name, "
            f"got {backend!r}"
        )
    return cast("Any", communication_class(name))(bootstrap, params, config=backend, **options)  # type: ignore[no-any-return]
