"""The stateless family and MoeAlltoAll on CUDA workspaces."""

import pytest
import torch

import moe_ep
from moe_ep.comm import (
    LocalGroup,
    Mapping,
    MnnvlConfig,
    MoeAlltoAll,
    moe_a2a_combine,
    moe_a2a_dispatch,
    moe_a2a_get_workspace_size_per_rank,
    moe_a2a_initialize,
    moe_a2a_sanitize_expert_ids,
)
from moe_ep.testing import spawn_ranks
from support.gpu import Feed, Shape

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        bool(moe_ep.NVLinkOneSidedAlltoAll.explain_platform()),
        reason=moe_ep.NVLinkOneSidedAlltoAll.explain_platform() or "runs",
    ),
]
DEVICE = torch.device("cuda", 0)


@pytest.mark.parametrize("num_ranks", [1, 2, 3, 4, 8])
def test_one_thread_launches_all_ranks_on_streams_of_one_gpu(num_ranks):
    """Calls only enqueue: ranks are launched one after another, phase by phase."""
    shape = Shape(num_experts=2 * num_ranks, top_k=2)
    row = shape.hidden * 2
    size = moe_a2a_get_workspace_size_per_rank(num_ranks, shape.capacity, row + 4 * 2, row)
    size = -(-size // 128) * 128
    workspace = torch.zeros(num_ranks, size, dtype=torch.uint8, device=DEVICE)
    feeds = [Feed(shape, num_ranks, DEVICE, rank) for rank in range(num_ranks)]
    for feed in feeds:
        feed.wrong().item()
    streams = [torch.cuda.Stream(DEVICE) for _ in feeds]
    metainfo = [
        moe_a2a_initialize(workspace, rank, num_ranks, shape.capacity) for rank in range(num_ranks)
    ]
    torch.cuda.synchronize()
    for _ in range(10):
        received = []
        for rank, feed in enumerate(feeds):
            with torch.cuda.stream(streams[rank]):
                feed.refill()
                payloads, offset, _ = moe_a2a_dispatch(
                    feed.ids,
                    [feed.x, feed.ids],
                    workspace,
                    metainfo[rank],
                    shape.tokens,
                    rank,
                    num_ranks,
                    shape.top_k,
                    shape.num_experts,
                )
                moe_a2a_sanitize_expert_ids(payloads[1], workspace, metainfo[rank], rank, -7)
                received.append((payloads, offset))
        for rank, feed in enumerate(feeds):
            with torch.cuda.stream(streams[rank]):
                payloads, offset = received[rank]
                feed.out = moe_a2a_combine(
                    payloads[0] * 2,
                    shape.tokens,
                    workspace,
                    metainfo[rank],
                    shape.tokens,
                    rank,
                    num_ranks,
                    shape.top_k,
                    offset,
                )
        torch.cuda.synchronize()
        for rank, feed in enumerate(feeds):
            assert feed.wrong().item() == 0
            sent = torch.stack([other.ids for other in feeds])  # [R, T, K]
            mine = ((sent // 2) == rank).any(-1) & (sent >= 0).any(-1)
            counts = (((sent // 2) == rank) & (sent >= 0)).any(-1).sum(1)
            assert mine.shape == (num_ranks, shape.tokens)
            for src in range(num_ranks):
                tail = received[rank][0][1][src, int(counts[src]) :]
                assert (tail == -7).all()


def test_a_workspace_of_another_device_is_refused():
    workspace = torch.zeros(1, 1 << 16, dtype=torch.uint8, device=DEVICE)
    metainfo = moe_a2a_initialize(workspace, 0, 1, 8)
    x = torch.zeros(4, 8, dtype=torch.bfloat16)
    ids = torch.zeros(4, 1, dtype=torch.int32, device=DEVICE)
    with pytest.raises(ValueError, match="cuda:0 tensor"):
        moe_a2a_dispatch(ids, [x], workspace, metainfo, 4, 0, 1, 1, 1)


def test_moe_alltoall_on_threads_of_one_gpu():
    num_ranks = 2
    shape = Shape()
    group = LocalGroup(num_ranks, timeout_sec=60)
    for index in range(num_ranks):
        Feed(shape, num_ranks, DEVICE, index).wrong().item()

    def run(rank):
        mapping = Mapping(world_size=num_ranks, rank=rank, tp_size=num_ranks, moe_ep_size=num_ranks)
        with torch.cuda.device(DEVICE), torch.cuda.stream(torch.cuda.Stream(DEVICE)):
            layer = MoeAlltoAll(
                mapping,
                shape.capacity,
                shape.top_k,
                shape.num_experts,
                hidden_size=shape.hidden,
                mnnvl_config=MnnvlConfig(comm_backend=group.backend(rank)),
            )
            assert layer.workspace.device == DEVICE
            feed = Feed(shape, num_ranks, DEVICE, rank)
            for _ in range(10):
                feed.refill()
                received = layer.dispatch(feed.ids, [feed.x, feed.ids], shape.tokens)
                feed.out = layer.combine(received[0] * 2, shape.tokens)
                assert feed.wrong().item() == 0

    spawn_ranks(run, num_ranks, mode="threads", timeout=60)
