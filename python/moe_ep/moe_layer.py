"""A mixture-of-experts layer small enough to read: router, SwiGLU experts, and a dense reference.

Weights follow from a seed and an expert's number, so that each rank makes those of its own experts
and one process can make them all.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

__all__ = ["DenseLayer", "Expert", "LayerShape", "Router", "ShardedExperts", "make_tokens"]

# Bits of significand and exponent of the smallest subnormal, by name of the dtype.
_FORMATS = {"bf16": (8, -133), "fp16": (11, -24), "fp32": (24, -149)}
_FLOAT32_UNIT = 2.0**-24
# Float32 sums in another order differ by about sqrt(terms) units; this much of a margin on top.
_FLOAT32_MARGIN = 8.0


@dataclass(frozen=True)
class LayerShape:
    """Sizes of a layer.

    Parameters
    ----------
    hidden_size, intermediate_size
        Elements of a token, and of an expert's inner activations.
    num_experts, top_k
        Experts, and how many of them a token is sent to.
    dtype
        Of tokens, of a rank's partial sums and of the layer's output: bf16, fp16 or fp32.
    seed
        Of weights and tokens.
    """

    hidden_size: int
    intermediate_size: int
    num_experts: int
    top_k: int
    dtype: str = "bf16"
    seed: int = 0

    @property
    def torch_dtype(self) -> torch.dtype:
        """`dtype` as torch has it."""
        import torch

        return {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}[self.dtype]


def _normal(shape: tuple[int, ...], *key: int) -> torch.Tensor:
    """Float32 normal numbers that `key` determines."""
    import torch

    generator = torch.Generator().manual_seed(hash(key) & (2**63 - 1))
    return torch.randn(shape, generator=generator)


def make_tokens(shape: LayerShape, num_tokens: int, step: int, rank: int) -> torch.Tensor:
    """[num_tokens, hidden_size] tokens of one rank in one step, in the layer's dtype."""
    tokens = _normal((num_tokens, shape.hidden_size), shape.seed, 3, step, rank)
    return tokens.to(shape.torch_dtype)


class Router:
    """Picks experts by the softmax of a linear map, and weighs them by their share of the picks.

    It computes in float64: every process then finds the same experts, however it sums.
    """

    def __init__(self, shape: LayerShape) -> None:
        scale = shape.hidden_size**-0.5
        weight = _normal((shape.hidden_size, shape.num_experts), shape.seed, 1)
        self._weight = weight.double() * scale
        self._top_k = shape.top_k

    def __call__(self, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """[n, top_k] int32 expert ids and float32 weights that sum to one."""
        shares = (tokens.double() @ self._weight).softmax(dim=1)
        weights, ids = shares.topk(self._top_k, dim=1)
        return ids.int(), (weights / weights.sum(dim=1, keepdim=True)).float()


class Expert:
    """A SwiGLU MLP in float32: ``down(silu(gate(x)) * up(x))``."""

    def __init__(self, shape: LayerShape, expert: int) -> None:
        hidden, inner = shape.hidden_size, shape.intermediate_size
        gate_up = _normal((hidden, 2 * inner), shape.seed, 2, expert) * hidden**-0.5
        self._gate_up = gate_up
        self._down = _normal((inner, hidden), shape.seed, 4, expert) * inner**-0.5

    def __call__(self, tokens: torch.Tensor) -> torch.Tensor:
        """[n, hidden_size] float32 outputs of float32 tokens."""
        import torch

        gate, up = (tokens @ self._gate_up).chunk(2, dim=1)
        output: torch.Tensor = (torch.nn.functional.silu(gate) * up) @ self._down
        return output

    def to(self, device: torch.device) -> None:
        """Move the weights."""
        self._gate_up, self._down = self._gate_up.to(device), self._down.to(device)


class ShardedExperts:
    """The experts of one rank: what stands between `dispatch` and `combine`.

    Parameters
    ----------
    shape
        The layer.
    rank, world_size
        Rank r of R owns the E / R experts from r * E / R on.
    device
        Where the rows lie.
    """

    def __init__(
        self, shape: LayerShape, rank: int, world_size: int, device: torch.device | None = None
    ) -> None:
        count = shape.num_experts // world_size
        self._experts = {
            expert: Expert(shape, expert) for expert in range(rank * count, (rank + 1) * count)
        }
        if device is not None:
            for expert in self._experts.values():
                expert.to(device)

    def __call__(
        self,
        rows: torch.Tensor,
        topk_ids: torch.Tensor,
        topk_weights: torch.Tensor,
        output: torch.Tensor,
    ) -> None:
        """Write the weighted sum over this rank's experts for each row.

        Parameters
        ----------
        rows
            [m, hidden_size] received tokens.
        topk_ids, topk_weights
            [m, top_k] as received; ids of other ranks' experts and void ids are passed over.
        output
            [m, hidden_size] to write to; rows that no expert of this rank serves are left alone.
        """
        tokens = rows.float()
        sums = tokens.new_zeros(tokens.shape)
        is_served = topk_ids.new_zeros(topk_ids.shape[0]).bool()
        for expert_id, expert in self._experts.items():
            row_idx, pick = (topk_ids == expert_id).nonzero(as_tuple=True)
            if len(row_idx) == 0:
                continue
            weights = topk_weights[row_idx, pick].unsqueeze(1)
            sums.index_add_(0, row_idx, expert(tokens[row_idx]) * weights)
            is_served[row_idx] = True
        served = is_served.nonzero().squeeze(1)
        output[served] = sums[served].to(output.dtype)


class DenseLayer:
    """The same layer in one process, without communication: every expert sees every token.

    Parameters
    ----------
    shape
        The layer.
    world_size
        Ranks of the layer that this one is compared with.
    """

    def __init__(self, shape: LayerShape, world_size: int) -> None:
        self._shape = shape
        self._world_size = world_size
        self._router = Router(shape)
        self._experts = [Expert(shape, expert) for expert in range(shape.num_experts)]

    def __call__(self, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Output in float32, and how far the distributed layer may be from it.

        With ``u`` the unit roundoff of the dtype (2^-8 for bf16), partial sums p_r of the ranks and
        their sum y, an element may be off by::

            u sum|p_r|               each rank rounds its partial sum once
            u (|y| + u sum|p_r|)     combine rounds the float32 sum once
            (R + 1) tiny             what the smallest subnormal adds to both
            8 (sqrt H + sqrt I + sqrt K) 2^-24 max|y|
                                     float32 sums in another order; max over the token's elements
                                     of the sum of its experts' |outputs|

        Parameters
        ----------
        tokens
            [n, hidden_size].

        Returns
        -------
        (Tensor, Tensor)
            [n, hidden_size] outputs and bounds, float32.
        """
        shape = self._shape
        ids, weights = self._router(tokens)
        shares = weights.new_zeros(len(tokens), shape.num_experts).scatter_(1, ids.long(), weights)
        rows = tokens.float()
        output, partials, magnitude = (rows.new_zeros(rows.shape) for _ in range(3))
        experts_per_rank = shape.num_experts // self._world_size
        for first in range(0, shape.num_experts, experts_per_rank):
            partial = rows.new_zeros(rows.shape)
            for expert in range(first, first + experts_per_rank):
                weighted = self._experts[expert](rows) * shares[:, expert : expert + 1]
                partial += weighted
                magnitude += weighted.abs()
            output += partial
            partials += partial.abs()
        significand_bits, smallest_exponent = _FORMATS[shape.dtype]
        unit = 2.0**-significand_bits
        terms = (shape.hidden_size, shape.intermediate_size, shape.top_k)
        reordering = _FLOAT32_MARGIN * _FLOAT32_UNIT * sum(math.sqrt(count) for count in terms)
        bound = unit * partials + unit * (output.abs() + unit * partials)
        bound += (self._world_size + 1) * 2.0**smallest_exponent
        bound += reordering * magnitude.amax(dim=1, keepdim=True)
        return output, bound
