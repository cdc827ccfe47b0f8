"""Backends: which run on this machine, and why the others do not."""

from __future__ import annotations

from typing import Any

__all__ = ["describe_backends"]


def describe_backends() -> dict[str, Any]:
    """Whether each backend runs, why not, and what 'auto' takes in a group of this host."""
    from ..auto import BACKEND_CONFIGS
    from ..registry import available_communication_backends

    reasons = {name: _reason(name) for name in available_communication_backends()}
    chosen = next((name for name in BACKEND_CONFIGS if not reasons.get(name, "unknown")), None)
    return {
        "backends": {
            name: {"runs": not reason, "reason": reason} for name, reason in reasons.items()
        },
        "auto": chosen,
    }


def _reason(name: str) -> str:
    from ..registry import communication_class

    try:
        cls = communication_class(name)
    except ImportError as error:
        return f"its module does not import ({error})"
    return "" if cls.is_platform_supported() else cls.explain_platform()
