"""Inputs of one round for every rank, made from a seed: each rank can make those of all."""

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch

import moe_ep
from moe_ep.testing import RankInput, from_float32
from moe_ep.testing.tensors import to_torch

DTYPES = {
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float32": torch.float32,
    "float8_e4m3fn": torch.float8_e4m3fn,
    "float8_e8m0fnu": torch.float8_e8m0fnu,
    "float4_e2m1fn_x2": torch.float4_e2m1fn_x2,
    "uint8": torch.uint8,
    "int32": torch.int32,
    "int64": torch.int64,
}


@dataclass(frozen=True)
class Case:
    """One round.

    `tokens` are the ranks' token counts. `picks` is how routing ids are drawn: 'random' (distinct
    experts), 'duplicates', 'void' (half the picks void), 'all_void', or an int: all picks go to
    experts of that rank.
    """

    tokens: tuple[int, ...]
    num_experts: int = 8
    top_k: int = 2
    hidden_size: int = 16
    capacity: int | None = None
    runtime_max: int | None = None
    dtype: str = "bfloat16"
    dispatch_format: str | None = None
    payload_dtype: str | None = None
    payload_width: int | None = None
    id_dtype: str = "int32"
    invalid_expert_id: int = -1
    picks: object = "random"
    weights: str | None = "float32"
    scale: tuple[str, int] | None = None
    extras: tuple[tuple[str, str, int], ...] = ()
    eplb: int = 0
    seed: int = 0

    @property
    def world_size(self) -> int:
        return len(self.tokens)

    @property
    def params(self) -> moe_ep.MoEEpCommParams:
        return moe_ep.MoEEpCommParams(
            self.num_experts,
            self.top_k,
            self.capacity or max(self.tokens_per_rank, 1),
            self.hidden_size,
            dtype=DTYPES[self.dtype],
            dispatch_format=(
                moe_ep.QuantFormat[self.dispatch_format] if self.dispatch_format else None
            ),
            invalid_expert_id=self.invalid_expert_id,
        )

    @property
    def tokens_per_rank(self) -> int:
        return self.runtime_max or self.capacity or max(1, *self.tokens)

    @property
    def options(self) -> dict[str, int]:
        """Config options that reserve what the round sends."""
        scale = _width_bytes(*self.scale) if self.scale else 0
        extras = sum(_width_bytes(dtype, width) for _, dtype, width in self.extras)
        width = self.payload_width or self.hidden_size
        hidden = _width_bytes(self.payload_dtype or self.dtype, width)
        beyond = hidden + scale + extras - self.params.dispatch_bytes_per_token
        return {
            "extra_payload_bytes_per_token": max(0, beyond),
            "eplb_stats_num_experts": self.eplb,
        }

    @cached_property
    def inputs(self) -> list[RankInput]:
        return [self._input(rank) for rank in range(self.world_size)]

    def again(self, seed: int, **changes: object) -> "Case":
        """The same round with other numbers."""
        return replace(self, seed=seed, **changes)

    def expert_rows(self, rank: int) -> np.ndarray:
        """[R, max tokens, hidden] what rank's experts make of each source's tokens."""
        rng = np.random.default_rng([self.seed, 1, rank])
        shape = (self.world_size, max(1, *self.tokens), self.hidden_size)
        values = rng.standard_normal(shape, dtype=np.float32)
        values *= np.float32(2.0) ** rng.integers(-8, 8, shape).astype(np.float32)
        values[rng.random(shape) < 0.05] = -0.0
        return from_float32(values, self.dtype)

    def tensors(self, rank: int) -> dict[str, object]:
        """Arguments of `dispatch` on this rank, on torch's default device."""
        mine = self.inputs[rank]
        arguments = {
            "hidden_states": place(mine.hidden_states, DTYPES[self.payload_dtype or self.dtype]),
            "topk_ids": place(mine.topk_ids),
        }
        if mine.topk_weights is not None:
            arguments["topk_weights"] = place(mine.topk_weights, DTYPES[self.weights])
        if mine.hidden_states_scale is not None:
            arguments["hidden_states_scale"] = place(
                mine.hidden_states_scale, DTYPES[self.scale[0]]
            )
        if mine.eplb_local_stats is not None:
            arguments["eplb_local_stats"] = place(mine.eplb_local_stats)
        if self.extras:
            arguments["extra_payloads"] = {
                name: place(mine.extra_payloads[name], DTYPES[dtype])
                for name, dtype, _ in self.extras
            }
        if self.runtime_max is not None:
            arguments["runtime_max_tokens_per_rank"] = self.runtime_max
        return arguments

    def _input(self, rank: int) -> RankInput:
        rng = np.random.default_rng([self.seed, 0, rank])
        count = self.tokens[rank]

        def rows(dtype: str, width: int) -> np.ndarray:
            return _random_bits(rng, dtype, (count, width))

        hidden = rows(self.payload_dtype or self.dtype, self.payload_width or self.hidden_size)
        return RankInput(
            hidden_states=hidden,
            topk_ids=self._picks(rng, count).astype(self.id_dtype),
            topk_weights=rows(self.weights, self.top_k) if self.weights else None,
            hidden_states_scale=rows(*self.scale) if self.scale else None,
            eplb_local_stats=(
                rng.integers(-(2**31), 2**31, self.eplb, dtype=np.int32) if self.eplb else None
            ),
            extra_payloads={name: rows(dtype, width) for name, dtype, width in self.extras},
        )

    def _picks(self, rng: np.random.Generator, count: int) -> np.ndarray:
        experts, top_k = self.num_experts, self.top_k
        if isinstance(self.picks, int):
            per_rank = experts // self.world_size
            return rng.integers(0, per_rank, (count, top_k)) + self.picks * per_rank
        if self.picks == "duplicates":
            return rng.integers(0, experts, (count, top_k))
        ids = np.array([rng.permutation(experts)[:top_k] for _ in range(count)])
        ids = ids.reshape(count, top_k)
        if self.picks == "random":
            return ids
        voids = np.array(
            [-1, -7, experts, experts + 5, 2**31 - 1, -(2**31), self.invalid_expert_id]
        )
        void = rng.choice(voids, (count, top_k))
        if self.picks == "all_void":
            return void
        assert self.picks == "void"
        return np.where(rng.random((count, top_k)) < 0.5, void, ids)


def place(array: np.ndarray, dtype: torch.dtype | None = None) -> torch.Tensor:
    """Return a tensor of the array's bits on torch's default device."""
    return to_torch(array, dtype).to(torch.get_default_device())


def _numpy_dtype(dtype: str) -> np.dtype:
    bits = {"bfloat16": "uint16", "float16": "uint16", "float32": "uint32"}
    if dtype.startswith(("float8", "float4")):
        return np.dtype("uint8")
    return np.dtype(bits.get(dtype, dtype))


def _width_bytes(dtype: str, width: int) -> int:
    return _numpy_dtype(dtype).itemsize * width


def _random_bits(rng: np.random.Generator, dtype: str, shape: tuple[int, int]) -> np.ndarray:
    """Any bits at all: payloads are moved, not looked at."""
    kind = _numpy_dtype(dtype)
    return np.frombuffer(rng.bytes(kind.itemsize * shape[0] * shape[1]), kind).reshape(shape)
