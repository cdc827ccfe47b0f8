"""AliasFinder: imports of one package's names that give another's modules.

A module under the foreign name is a module of its own, which looks every attribute up in ours:
nothing of ours is executed twice or renamed.
"""

from __future__ import annotations

import importlib
import importlib.util
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import ModuleType

__all__ = ["AliasFinder"]

# Below the foreign package: our module.
_TARGETS = {"moe_ep": "moe_ep", "comm": "moe_ep.comm"}


class AliasFinder(MetaPathFinder, Loader):
    """Finds and makes the foreign package `name`, its known subpackages and what is in them.

    Parameters
    ----------
    name
        The foreign top-level package.
    nvlink_on_host
        Whether names of NVLink backends give those of `_host`.
    """

    def __init__(self, name: str, *, nvlink_on_host: bool) -> None:
        self.name = name
        self.nvlink_on_host = nvlink_on_host

    def load(self) -> None:
        """Import the package with its subpackages."""
        for part in _TARGETS:
            importlib.import_module(f"{self.name}.{part}")

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname == self.name:
            return ModuleSpec(fullname, self, is_package=True)
        found = self._target(fullname)
        try:
            spec = None if found is None else importlib.util.find_spec(found)
        except ModuleNotFoundError:  # a parent is no package
            return None
        if spec is None:
            return None
        is_package = spec.submodule_search_locations is not None
        return ModuleSpec(fullname, self, is_package=is_package)

    def exec_module(self, module: ModuleType) -> None:
        own = vars(module)
        found = self._target(module.__name__)
        if found is None:
            own["__doc__"] = "moe_ep in place of flashinfer: moe_ep.compat.flashinfer."
            own["__all__"] = sorted(_TARGETS)
            own["__getattr__"] = self._refuse
            return
        ours = importlib.import_module(found)
        own["__doc__"] = ours.__doc__
        own["__getattr__"] = _lookup(ours)
        own["__dir__"] = lambda: dir(ours)
        if hasattr(ours, "__all__"):
            own["__all__"] = list(ours.__all__)
        if self.nvlink_on_host and found == "moe_ep":
            from . import _host

            own.update({name: getattr(_host, name) for name in _host.__all__})

    def _target(self, fullname: str) -> str | None:
        """Name of our module behind a foreign one."""
        package, _, rest = fullname.partition(".")
        first, _, inner = rest.partition(".")
        if package != self.name or first not in _TARGETS:
            return None
        return f"{_TARGETS[first]}.{inner}" if inner else _TARGETS[first]

    def _refuse(self, name: str) -> Any:
        raise AttributeError(
            f"module {self.name!r} has no attribute {name!r}: moe_ep stands in its place "
            f"(moe_ep.compat.flashinfer.install) and has {' and '.join(sorted(_TARGETS))} only"
        )


def _lookup(ours: ModuleType) -> Callable[[str], Any]:
    def get(name: str) -> Any:
        return getattr(ours, name)

    return get
