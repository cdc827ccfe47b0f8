"""Functions by reference: how a test's function reaches a rank that is another process."""

from __future__ import annotations

import importlib
import importlib.util
import pickle
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

__all__ = ["Call", "FunctionRef"]


@dataclass(frozen=True)
class FunctionRef:
    """A module-level function, found again by name, or by its file where the name is unknown.

    Test runners import test files under names that other processes cannot import; the file always
    works.
    """

    module: str
    qualname: str
    file: str | None

    @classmethod
    def of(cls, function: Callable[..., Any]) -> FunctionRef:
        """Refer to `function`.

        Raises
        ------
        TypeError
            It is no module-level function.
        """
        module, qualname = function.__module__, function.__qualname__
        found: Any = sys.modules.get(module)
        for part in qualname.split("."):
            found = getattr(found, part, None)
        if found is not function:
            raise TypeError(
                "spawn_ranks: fn must be a function of a module, so that other processes find it, "
                f"got {module}.{qualname}"
            )
        return cls(module, qualname, getattr(sys.modules[module], "__file__", None))

    def resolve(self) -> Callable[..., Any]:
        """Return the function, importing its module."""
        found: Any = self._module()
        for part in self.qualname.split("."):
            found = getattr(found, part)
        function: Callable[..., Any] = found
        return function

    def _module(self) -> ModuleType:
        if self.module in sys.modules:
            return sys.modules[self.module]
        try:
            module = importlib.import_module(self.module)
            if self.file in (None, getattr(module, "__file__", None)):
                return module
        except ImportError:
            if self.file is None:
                raise
        spec = importlib.util.spec_from_file_location(self.module, self.file)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[self.module] = module
        spec.loader.exec_module(module)
        return module


@dataclass(frozen=True)
class Call:
    """A function with its arguments, as bytes can carry it."""

    function: FunctionRef
    arguments: bytes

    @classmethod
    def of(cls, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Call:
        """Refer to a call of `function`."""
        return cls(FunctionRef.of(function), pickle.dumps(arguments))

    def __call__(self, *first: Any) -> Any:
        """Make the call, with `first` before the arguments."""
        # The arguments may be of classes that the function's module defines: it comes first.
        function = self.function.resolve()
        return function(*first, *pickle.loads(self.arguments))
