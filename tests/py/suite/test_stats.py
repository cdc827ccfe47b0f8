"""Counts of an instance: the traffic of known steps, and rounds without an end."""

import torch

import moe_ep


def known_traffic(rank):
    """Two ranks, four experts: token 0 stays on rank 0, token 1 visits both, token 2 nobody."""
    instance = rank.create(moe_ep.MoEEpCommParams(4, 4, 3, 64))
    counts_rows = not isinstance(instance, moe_ep.NVLinkOneSidedAlltoAll)  # its kernels do not
    assert instance.stats() == instance.stats()
    assert instance.stats().dispatch == moe_ep.PhaseStats()
    ids = torch.tensor([[0, 1, 0, 1], [0, 2, 3, 1], [-1, -1, 9, 4]], dtype=torch.int32)
    for _ in range(2):
        instance.dispatch(torch.ones(3, 64, dtype=torch.bfloat16), ids)
        instance.combine(torch.zeros(6, 64, dtype=torch.bfloat16))
    stats = instance.stats()
    # To the other rank: rank 0 sends token 1; rank 1 sends tokens 0 and 1.
    sent, received = ((2, 4), (4, 2))[rank.rank]
    if not counts_rows:
        sent = received = 0
    row = 64 * 2 + 4 * 4  # hidden row and ids
    assert stats.dispatch == moe_ep.PhaseStats(2, 6, sent, received, sent * row, received * row)
    assert stats.combine == moe_ep.PhaseStats(2, 6, received, sent, received * 128, sent * 128)
    assert stats.steps_by_transport[instance.last_transport] == 2
    assert sum(stats.steps_by_transport.values()) == 2
    assert stats.abandoned_rounds == stats.timeouts == stats.recoveries == 0
    instance.dispatch(torch.ones(3, 64, dtype=torch.bfloat16), ids)
    instance.destroy()
    after = instance.stats()
    assert (after.dispatch.steps, after.combine.steps, after.abandoned_rounds) == (3, 2, 1)
    instance.destroy()
    assert instance.stats() == after


def test_traffic_is_that_of_the_steps(backend):
    backend.run(2, known_traffic)


def mismatched(rank):
    instance = rank.create(moe_ep.MoEEpCommParams(4, 2, 3, 16))
    weights = torch.ones(1, 2) if rank.rank == 0 else None
    ids = torch.tensor([[0, 3]])
    try:
        instance.dispatch(torch.ones(1, 16, dtype=torch.bfloat16), ids, weights)
        instance.synchronize()
    except moe_ep.MoEEpMismatchError:
        pass
    else:
        raise AssertionError("ranks with and without weights must be told apart")
    assert instance.stats().mismatches == 1


def test_mismatches_count(backend):
    backend.run(2, mismatched)
