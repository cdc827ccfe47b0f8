"""Fixtures of all Python tests."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from support.backends import BACKENDS, BoundBackend
from support.world import make_pool


@pytest.fixture(scope="session")
def ranks():
    """Processes with a Gloo world, one a rank; see `moe_ep.testing.RankPool.run`."""
    with make_pool() as pool:
        yield pool


@pytest.fixture(
    params=[
        pytest.param(chosen.id, marks=[] if chosen.device == "cpu" else pytest.mark.gpu)
        for chosen in BACKENDS.values()
        if chosen.fits_machine()
    ]
)
def backend(request, ranks):
    """Each backend of the behaviour suite in turn; see `support.backends`."""
    chosen = BACKENDS[request.param]
    reason = chosen.reason_to_skip()
    if reason:
        pytest.skip(reason)
    return BoundBackend(chosen, ranks)
