"""Streams and events of torch, whose constructors have no types."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    import torch

__all__ = ["new_event", "new_stream"]


def new_stream(device: torch.device | int | None = None) -> torch.cuda.Stream:
    """Make a stream of a GPU; None is the current one."""
    import torch

    make = cast("Any", torch.cuda.Stream)
    return cast("torch.cuda.Stream", make(device))


def new_event(*, is_external: bool = False) -> torch.cuda.Event:
    """Make an event that tells the time; an external one is a node of a graph it is captured in."""
    import torch

    make = cast("Any", torch.cuda.Event)
    event = make(enable_timing=True, external=True) if is_external else make(enable_timing=True)
    return cast("torch.cuda.Event", event)
