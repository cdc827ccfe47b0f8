"""EPLB: load-balancing statistics."""

import pytest
import torch

from support.cases import Case
from support.oracle import run_round, run_rounds


def test_statistics_are_gathered_as_they_are(backend):
    """FR-158: no sum, no scale; any int32."""
    case = Case(tokens=(3, 0, 2, 1), num_experts=8, eplb=8)
    backend.run(4, run_rounds, [case, case.again(1), case.again(2)])


def test_steps_with_and_without_statistics_alternate(backend):
    case = Case(tokens=(3, 2), num_experts=8, eplb=5)
    backend.run(2, run_rounds, [case, case.again(1, eplb=0), case.again(2)])


def bad_statistics(rank, num_experts):
    case = Case(tokens=(2, 1), num_experts=8)
    reserve = {"eplb_stats_num_experts": num_experts}
    options = {name: value for name, value in reserve.items() if rank.backend.has(name)}
    instance = rank.create(case.params, **options)
    arguments = case.tensors(rank.rank)
    bad = [
        torch.zeros(8),
        torch.zeros(8, dtype=torch.int64),
        torch.zeros(1, 8, dtype=torch.int32),
        torch.zeros(16, dtype=torch.int32)[::2],
        [0] * 8,
    ]
    if rank.backend.has("eplb_stats_num_experts"):
        bad += [torch.zeros(num_experts + 1, dtype=torch.int32)]
    for stats in bad:
        with pytest.raises((ValueError, TypeError), match="eplb_local_stats"):
            instance.dispatch(**arguments, eplb_local_stats=stats)
    run_round(rank, instance, case)


@pytest.mark.parametrize("num_experts", [0, 8])
def test_bad_statistics_are_refused(backend, num_experts):
    """FR-156: length, dtype, rank and strides; none at all where none are reserved."""
    backend.run(2, bad_statistics, num_experts)
