"""Sizes of well-known mixture-of-experts models, for ``plan`` and ``bench``."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["MODELS", "ModelShape"]


@dataclass(frozen=True)
class ModelShape:
    """What dispatch and combine see of a model.

    Parameters
    ----------
    name
        Of the model.
    hidden_size, top_k, num_experts
        H, K and E.
    """

    name: str
    hidden_size: int
    top_k: int
    num_experts: int


MODELS = {
    shape.name: shape
    for shape in (
        ModelShape("deepseek-v3", 7168, 8, 256),
        ModelShape("kimi-k2", 7168, 8, 384),
        ModelShape("gpt-oss", 2880, 4, 128),
        ModelShape("qwen3", 2048, 8, 128),
        ModelShape("k22", 2048, 22, 512),
    )
}
"""By name; k22 stands for models with many picks of a token."""
