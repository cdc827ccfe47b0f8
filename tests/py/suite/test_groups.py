"""GROUP: any number of ranks."""

import pytest

from support.cases import Case
from support.oracle import run_rounds


@pytest.mark.parametrize("world_size", range(1, 9))
def test_any_number_of_ranks(backend, world_size):
    """FR-146: nothing assumes a power of two, or eight."""
    tokens = tuple((3 * rank + 2) % 5 for rank in range(world_size))
    case = Case(tokens=tokens, num_experts=world_size * 3, top_k=3, capacity=4)
    backend.run(world_size, run_rounds, [case, case.again(1, picks="void"), case.again(2)])
