"""The NVLink backends' names over the host backend."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from ...backends.native import HostAlltoAll
from ...config import (
    CakeAlltoAllConfig,
    HostAlltoAllConfig,
    NVLinkOneSidedConfig,
    NVLinkTwoSidedConfig,
)
from ...registry import create_communication as create_by_registry

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Self

    from ...comm.protocol import CommBackend
    from ...communication import MoEEpCommunication
    from ...config import BootstrapConfig, MoEEpCommParams

__all__ = [
    "CakeAlltoAll",
    "NVLinkOneSidedAlltoAll",
    "NVLinkTwoSidedAlltoAll",
    "create_communication",
]


def _host_config(name: str, config: Any, kind: type[Any]) -> HostAlltoAllConfig:
    """Options of the host backend that a config of another backend has."""
    if config is None:
        config = kind()
    if isinstance(config, HostAlltoAllConfig):
        return config
    if not isinstance(config, kind):
        raise TypeError(
            f"{name}: config must be a {kind.__name__} or None, got {type(config).__name__}"
        )
    given: Any = config
    known = {field.name for field in dataclasses.fields(HostAlltoAllConfig)} - {"backend_name"}
    options = {name: value for name, value in vars(given).items() if name in known}
    return HostAlltoAllConfig(**options)


class _OnHost(HostAlltoAll):
    _kind: type[Any]

    def __init__(
        self, bootstrap: BootstrapConfig, params: MoEEpCommParams, config: Any = None
    ) -> None:
        super().__init__(bootstrap, params, _host_config(type(self).__name__, config, self._kind))

    @classmethod
    def rejoin(
        cls,
        bootstrap: BootstrapConfig,
        params: MoEEpCommParams,
        config: Any,
        *,
        active_ranks: Sequence[int],
        comm_backend: CommBackend,
    ) -> Self:
        return super().rejoin(
            bootstrap,
            params,
            _host_config(cls.__name__, config, cls._kind),
            active_ranks=active_ranks,
            comm_backend=comm_backend,
        )


class NVLinkOneSidedAlltoAll(_OnHost):
    """`HostAlltoAll` with `NVLinkOneSidedConfig`."""

    _kind = NVLinkOneSidedConfig


class CakeAlltoAll(_OnHost):
    """`HostAlltoAll` with `CakeAlltoAllConfig`."""

    _kind = CakeAlltoAllConfig


class NVLinkTwoSidedAlltoAll(_OnHost):
    """`HostAlltoAll` with `NVLinkTwoSidedConfig`."""

    _kind = NVLinkTwoSidedConfig


_CLASSES: dict[str, type[_OnHost]] = {
    "nvlink_one_sided": NVLinkOneSidedAlltoAll,
    "cake": CakeAlltoAll,
    "nvlink_two_sided": NVLinkTwoSidedAlltoAll,
}


def create_communication(
    bootstrap: BootstrapConfig, params: MoEEpCommParams, backend: Any, **options: Any
) -> MoEEpCommunication:
    """See `moe_ep.create_communication`; NVLink backends are those of this module."""
    given = backend if isinstance(backend, str) else getattr(backend, "backend_name", None)
    cls = _CLASSES.get(given) if isinstance(given, str) else None
    if cls is None:
        return create_by_registry(bootstrap, params, backend, **options)
    if backend is not given:
        options["config"] = backend
    return cls(bootstrap, params, **options)
