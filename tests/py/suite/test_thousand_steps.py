"""A thousand random steps of mixed sizes, ranks, dtypes and masks, every byte held to numpy."""

import random

import pytest

from support.cases import Case
from support.oracle import run_round

STEPS = 84  # of each instance; 12 instances


def steps(rank, world_size, dtype):
    draw = random.Random(f"{world_size} {dtype}")  # the same on every rank
    experts = world_size * draw.randint(1, 6)
    fixed = {
        "num_experts": experts,
        "top_k": draw.randint(1, min(experts, 8)),
        "hidden_size": draw.randint(1, 40),
        "capacity": 6,
        "dtype": dtype,
    }
    first = Case(tokens=(0,) * world_size, **fixed)
    instance = rank.create(first.params, enable_rank_mask=True)
    for seed in range(STEPS):
        runtime_max = draw.choice([None, 1, 3, 6])
        case = Case(
            tokens=tuple(draw.randint(0, runtime_max or 6) for _ in range(world_size)),
            runtime_max=runtime_max,
            picks=draw.choice(["random", "random", "duplicates", "void"]),
            id_dtype=draw.choice(["int32", "int64"]),
            seed=seed,
            **fixed,
        )
        in_buffer = draw.random() < 0.5
        away = draw.randrange(world_size) if world_size > 1 and seed % 3 == 2 else None
        active = None if away is None else [r for r in range(world_size) if r != away]
        if active is not None:
            rank.comm.barrier()  # who is left out has finished its step
            if rank.rank == away:
                instance.recover(list(range(world_size)), rank.comm)
                continue
        run_round(rank, instance, case, in_buffer=in_buffer, active=active)
        if active is not None:
            instance.recover(list(range(world_size)), rank.comm)  # takes the absent rank back


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_thousand_steps_give_the_bits_of_the_reference(backend, world_size, dtype):
    if not backend.has("enable_rank_mask"):
        pytest.skip("the backend has no rank mask")
    backend.run(world_size, steps, world_size, dtype)
