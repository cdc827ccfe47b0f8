"""The layer of the demo: the shards' parts add up to the dense layer, within its bound."""

import dataclasses

import pytest
import torch

from moe_ep.moe_layer import DenseLayer, LayerShape, Router, ShardedExperts, make_tokens


def shape_of(dtype="bf16", **sizes):
    defaults = {"hidden_size": 66, "intermediate_size": 40, "num_experts": 12, "top_k": 5}
    return LayerShape(**{**defaults, **sizes}, dtype=dtype)


def distributed(shape, world_size, tokens):
    """The layer as ranks compute it, in one process: partial sums rounded, then their sum."""
    ids, weights = Router(shape)(tokens)
    per_rank = shape.num_experts // world_size
    sums = torch.zeros(tokens.shape)
    for rank in range(world_size):
        rows = torch.full_like(tokens, float("nan"))
        ShardedExperts(shape, rank, world_size)(tokens, ids, weights, rows)
        goes_there = (ids // per_rank == rank).any(dim=1)
        assert rows[~goes_there].isnan().all(), "a row without an expert here was written to"
        sums[goes_there] += rows[goes_there].float()
    return sums.to(tokens.dtype)


@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32"])
@pytest.mark.parametrize("world_size", [1, 2, 3, 12])
def test_shards_add_up_to_the_dense_layer(dtype, world_size):
    shape = shape_of(dtype)
    tokens = make_tokens(shape, 50, step=0, rank=0)
    expected, bound = DenseLayer(shape, world_size)(tokens)
    error = (distributed(shape, world_size, tokens).float() - expected).abs()
    assert (error <= bound).all()


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_the_bound_is_tight(dtype):
    """A bound that nothing comes near would pass wrong results."""
    shape = shape_of(dtype)
    tokens = make_tokens(shape, 200, step=0, rank=0)
    expected, bound = DenseLayer(shape, 3)(tokens)
    error = (distributed(shape, 3, tokens).float() - expected).abs()
    assert (error / bound).max() > 0.5
    unit = {"bf16": 2.0**-8, "fp16": 2.0**-11}[dtype]
    assert (bound <= 6 * unit * expected.abs().amax(dim=1, keepdim=True)).all()


@pytest.mark.parametrize("mistake", ["a lost rank", "a lost weight", "an expert of another"])
def test_mistakes_leave_the_bound(mistake):
    shape = shape_of()
    tokens = make_tokens(shape, 20, step=0, rank=0)
    expected, bound = DenseLayer(shape, 3)(tokens)
    ids, weights = Router(shape)(tokens)
    if mistake == "a lost weight":
        weights = torch.full_like(weights, 1 / shape.top_k)
    if mistake == "an expert of another":
        ids[0, 0] = (ids[0, 0] + 1) % shape.num_experts
    sums = torch.zeros(tokens.shape)
    for rank in range(3 - (mistake == "a lost rank")):
        rows = torch.zeros_like(tokens)
        ShardedExperts(shape, rank, 3)(tokens, ids, weights, rows)
        sums += rows.float()
    assert ((sums - expected).abs() > bound).any()


def test_everything_follows_from_the_seed():
    shape = shape_of()
    first, again = (make_tokens(shape, 4, step=1, rank=2) for _ in range(2))
    assert torch.equal(first, again)
    other = dataclasses.replace(shape, seed=1)
    assert not torch.equal(first, make_tokens(other, 4, step=1, rank=2))
    assert not torch.equal(first, make_tokens(shape, 4, step=2, rank=2))
    assert not torch.equal(first, make_tokens(shape, 4, step=1, rank=1))


def test_picks_are_distinct_and_weights_sum_to_one():
    shape = shape_of()
    ids, weights = Router(shape)(make_tokens(shape, 30, step=0, rank=0))
    assert ids.dtype == torch.int32
    assert weights.dtype == torch.float32
    assert all(len(set(row)) == shape.top_k for row in ids.tolist())
    assert torch.allclose(weights.sum(dim=1), torch.ones(30))


def test_routing_does_not_depend_on_the_company():
    """A token finds the same experts alone and among others."""
    shape = shape_of()
    tokens = make_tokens(shape, 30, step=0, rank=0)
    ids, _ = Router(shape)(tokens)
    alone = torch.cat([Router(shape)(tokens[i : i + 1])[0] for i in range(30)])
    assert torch.equal(ids, alone)
