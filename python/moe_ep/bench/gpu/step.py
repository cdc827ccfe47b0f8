"""What can be measured on a GPU: a step whose calls only enqueue."""

from __future__ import annotations

from typing import Protocol

__all__ = ["GpuStep"]


class GpuStep(Protocol):
    """A dispatch and a combine on the current stream, with ways to see that they are right."""

    def dispatch(self) -> object:
        """Enqueue the sending of rows to their ranks."""

    def combine(self) -> object:
        """Enqueue the return of their outputs."""

    def check(self) -> None:
        """Run steps and raise CheckError unless they are right. Collective."""

    def prepare(self) -> None:
        """Write the inputs of `probe`, and results that no step gives."""

    def probe(self) -> None:
        """Enqueue one pair that keeps what `check_probe` compares."""

    def check_probe(self) -> None:
        """Raise CheckError unless the last `probe`, after `prepare`, was right."""

    def check_last(self) -> None:
        """Raise CheckError unless the last pair was right. Collective."""
