"""Options of ``moe-ep bench`` that need more than a type."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path

import typer

from ..models import MODELS, ModelShape
from ._options import FormatName, check_model

__all__ = [
    "ModeName",
    "check_models",
    "check_plot",
    "check_tokens",
    "format_of",
    "shapes_of",
    "tokens_of",
]


def tokens_of(text: str) -> list[int]:
    """Token counts of an option: ``1,8,256``, or ``1..64`` for the powers of two from 1 to 64.

    Raises
    ------
    typer.BadParameter
        It is neither.
    """
    counts: list[int] = []
    for part in text.split(","):
        first, dots, last = part.strip().partition("..")
        if not first.isdecimal() or (dots and not last.isdecimal()):
            raise typer.BadParameter(f"must be counts such as 1,8,256 or 1..8192, got {text}")
        count, limit = int(first), int(last or first)
        if count < 1 or limit < count:
            raise typer.BadParameter(f"counts must be positive and ascending, got {text}")
        while count <= limit:
            counts.append(count)
            count *= 2
    return list(dict.fromkeys(counts))


def check_tokens(text: str) -> str:
    """Refuse what `tokens_of` does not take."""
    tokens_of(text)
    return text


def check_models(names: list[str] | None) -> list[str] | None:
    """Refuse unknown models."""
    for name in names or []:
        check_model(name)
    return names


class ModeName(StrEnum):
    """Ways to run GPU steps."""

    graph = "graph"
    eager = "eager"
    both = "both"


def format_of(name: str | None) -> str | None:
    """Name of the QuantFormat, for any case of letters and for fp8."""
    if name is None:
        return None
    known = {each.lower(): each.value for each in FormatName} | {"fp8": "DeepSeekFp8"}
    if name.lower() not in known:
        raise typer.BadParameter(f"must be fp8 or one of {', '.join(FormatName)}, got {name}")
    return known[name.lower()]


def check_plot(file: Path | None) -> Path | None:
    """Refuse to draw without matplotlib."""
    from ..bench.plot import has_matplotlib

    if file is not None and not has_matplotlib():
        raise typer.BadParameter("needs matplotlib (pip install matplotlib), got none")
    return file


def shapes_of(
    names: list[str] | None, hidden: int | None, top_k: int | None, experts: int | None
) -> list[ModelShape]:
    """Sizes to measure: presets, with single sizes replaced."""
    shapes = [MODELS[name] for name in dict.fromkeys(names or ["deepseek-v3"])]
    if hidden is None and top_k is None and experts is None:
        return shapes
    return [
        ModelShape(
            f"{shape.name}*" if names else "custom",
            hidden or shape.hidden_size,
            top_k or shape.top_k,
            experts or shape.num_experts,
        )
        for shape in shapes
    ]
