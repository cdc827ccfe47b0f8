"""Options that several commands share, and how they are checked."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from ..limits import MAX_RANKS, MAX_TOP_K
from ..models import MODELS

if TYPE_CHECKING:
    from ..config import QuantFormat

__all__ = [
    "BackendOption",
    "DtypeName",
    "FormatName",
    "HiddenOption",
    "JsonOption",
    "RanksOption",
    "TopKOption",
    "check_experts",
    "check_model",
    "quant_format",
]


class DtypeName(StrEnum):
    """Token dtypes."""

    bf16 = "bf16"
    fp16 = "fp16"
    fp32 = "fp32"


class FormatName(StrEnum):
    """Quantised dispatch formats."""

    BF16 = "BF16"
    FP16 = "FP16"
    FP8PerTensor = "FP8PerTensor"
    DeepSeekFp8 = "DeepSeekFp8"
    MXFP8 = "MXFP8"
    NVFP4 = "NVFP4"
    MXFP4 = "MXFP4"


def _check_backend(name: str) -> str:
    from ..registry import AUTO, available_communication_backends

    known = [AUTO, *available_communication_backends()]
    if name not in known:
        raise typer.BadParameter(f"must be one of {', '.join(known)}, got {name}")
    return name


def check_model(name: str | None) -> str | None:
    """Refuse an unknown model; exit code 2."""
    if name is not None and name not in MODELS:
        raise typer.BadParameter(f"must be one of {', '.join(MODELS)}, got {name}")
    return name


BackendOption = Annotated[
    str,
    typer.Option(
        help="auto, or a name of available_communication_backends().", callback=_check_backend
    ),
]
RanksOption = Annotated[int, typer.Option(help="Ranks, one process each.", min=1, max=MAX_RANKS)]
HiddenOption = Annotated[int, typer.Option(help="Elements of a token.", min=1)]
TopKOption = Annotated[int, typer.Option(help="Experts of a token.", min=1, max=MAX_TOP_K)]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]


def check_experts(num_experts: int, ranks: int, top_k: int) -> None:
    """Refuse experts that the ranks cannot share evenly, or too few for top_k.

    Raises
    ------
    typer.BadParameter
        Exit code 2, with the requirement and the value.
    """
    if num_experts % ranks:
        raise typer.BadParameter(
            f"--experts must be a multiple of --ranks ({ranks}), got {num_experts}"
        )
    if top_k > num_experts:
        raise typer.BadParameter(f"--top-k must be at most --experts ({num_experts}), got {top_k}")


def quant_format(name: FormatName | None) -> QuantFormat | None:
    """The QuantFormat of this name."""
    from ..config import QuantFormat

    return None if name is None else QuantFormat[name.value]
