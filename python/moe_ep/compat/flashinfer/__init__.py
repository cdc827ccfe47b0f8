"""The names ``flashinfer.moe_ep`` and ``flashinfer.comm`` for this package.

`install` makes programs that import those run on moe_ep, unchanged::

    import moe_ep.compat.flashinfer

    moe_ep.compat.flashinfer.install()
    import engine  # imports flashinfer.moe_ep

``python -m moe_ep.compat.flashinfer program.py`` does it for a whole program. There is nothing else
of ``flashinfer`` here: other names raise, and say so.
"""

from __future__ import annotations

import sys

from ._finder import AliasFinder

__all__ = ["install", "is_installed", "uninstall"]

_NAME = "flashinfer"


def install(*, nvlink_on_host: bool = False) -> None:
    """Let ``import flashinfer.moe_ep`` and ``import flashinfer.comm`` find this package.

    Call it before anything imports ``flashinfer``; an installed original is then not found.
    Processes that this one spawns afresh must call it too. Calling it again does nothing.

    Parameters
    ----------
    nvlink_on_host
        Let the NVLink backends, by class and by name, run on CPU tensors: `HostAlltoAll` behind
        their names, for tests of an engine on machines without GPUs. Options that only GPUs have
        are dropped.

    Raises
    ------
    RuntimeError
        The original is imported already, or this one with another `nvlink_on_host`.
    """
    finder = _installed_finder()
    if finder is not None:
        if finder.nvlink_on_host != nvlink_on_host:
            raise RuntimeError(
                "install: nvlink_on_host must be that of the first call, got "
                f"{nvlink_on_host} after {finder.nvlink_on_host}"
            )
        return
    if _NAME in sys.modules:
        where = getattr(sys.modules[_NAME], "__file__", None)
        raise RuntimeError(
            f"install: flashinfer must not be imported yet, got the one of {where}; call install "
            "before the first import of it"
        )
    finder = AliasFinder(_NAME, nvlink_on_host=nvlink_on_host)
    sys.meta_path.insert(0, finder)
    finder.load()


def uninstall() -> None:
    """Undo `install`; does nothing without it. Names that programs hold go on working."""
    finder = _installed_finder()
    if finder is None:
        return
    sys.meta_path.remove(finder)
    for name in [name for name in sys.modules if name.split(".")[0] == _NAME]:
        del sys.modules[name]


def is_installed() -> bool:
    """Whether ``flashinfer`` is this package now."""
    return _installed_finder() is not None


def _installed_finder() -> AliasFinder | None:
    return next((entry for entry in sys.meta_path if isinstance(entry, AliasFinder)), None)
