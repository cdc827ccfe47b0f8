"""A program written for `flashinfer`, from its public pages: it knows nothing of moe_ep.

RANK, WORLD_SIZE and RENDEZVOUS (a file) come from the environment. One expert-parallel layer whose
expert e multiplies by e + 1, checked against the dense layer.
"""

import os

import flashinfer.comm
import torch
import torch.distributed as dist
from flashinfer.comm import moe_a2a_active_rank_mask, moe_a2a_dispatch
from flashinfer.moe_ep import (
    BootstrapConfig,
    MoEEpCommParams,
    MoEEpCommunication,
    NVLinkOneSidedAlltoAll,
    NVLinkOneSidedConfig,
    create_communication,
)
from flashinfer.moe_ep.backends.split.comm.cake.kernels import active_rank_mask

EXPERTS, TOP_K, CAPACITY, HIDDEN = 8, 4, 16, 64


def layer(comm, rank, world_size, seed, mask=None):
    generator = torch.Generator().manual_seed(seed * world_size + rank)
    x = torch.randint(-4, 5, (7 + rank, HIDDEN), generator=generator).to(torch.bfloat16)
    ids = torch.rand(len(x), EXPERTS, generator=generator).topk(TOP_K).indices
    weights = torch.full((len(x), TOP_K), 0.25)
    options = {} if mask is None else {"active_rank_mask": mask}

    received = comm.dispatch(x, ids, weights, runtime_max_tokens_per_rank=12, **options)
    assert received.tokens_per_rank == 12
    local = EXPERTS // world_size
    mine = received.topk_ids // local == rank
    mine &= received.topk_ids >= 0
    factor = torch.where(mine, received.topk_weights * (received.topk_ids + 1), 0.0).sum(-1)
    rows = comm.get_combine_input_buffer(torch.bfloat16)
    rows.copy_(received.hidden_states.float() * factor.unsqueeze(-1))
    y = comm.combine(rows, **options)

    dense = x.float() * ((ids + 1) * weights).sum(-1, keepdim=True)
    torch.testing.assert_close(y.float(), dense, rtol=2**-6, atol=2**-3)


def functional_family():
    """The stateless functions, a group of one."""
    size = flashinfer.comm.moe_a2a_get_workspace_size_per_rank(1, 4, HIDDEN + 4 * TOP_K, HIDDEN * 2)
    workspace = torch.zeros(1, size, dtype=torch.uint8)
    metainfo = flashinfer.comm.moe_a2a_initialize(workspace, 0, 1, 4)
    ids = torch.zeros(3, TOP_K, dtype=torch.int32)
    payload = torch.arange(3 * HIDDEN).to(torch.uint8).reshape(3, HIDDEN)
    received, offset, stats = moe_a2a_dispatch(
        ids, [payload, ids], workspace, metainfo, 4, 0, 1, TOP_K, EXPERTS
    )
    assert torch.equal(received[0][0, :3], payload)
    assert stats is None
    rows = torch.ones(1, 4, HIDDEN, dtype=torch.bfloat16)
    y = flashinfer.comm.moe_a2a_combine(rows, 3, workspace, metainfo, 4, 0, 1, TOP_K, offset)
    assert torch.equal(y, torch.ones(3, HIDDEN, dtype=torch.bfloat16))


def main():
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group(
        "gloo", init_method=f"file://{os.environ['RENDEZVOUS']}", rank=rank, world_size=world_size
    )
    bootstrap = BootstrapConfig(world_size, rank, process_group=dist.group.WORLD)
    params = MoEEpCommParams(
        num_experts=EXPERTS, top_k=TOP_K, max_tokens_per_rank=CAPACITY, hidden_size=HIDDEN
    )
    config = NVLinkOneSidedConfig(enable_rank_mask=True, timeout_sec=30, enable_pdl=False)
    assert NVLinkOneSidedAlltoAll.is_platform_supported()
    comm = NVLinkOneSidedAlltoAll(bootstrap, params, config)
    assert isinstance(comm, MoEEpCommunication)
    everybody = range(world_size)
    masks = [comm.active_rank_mask(everybody), active_rank_mask(everybody, world_size)]
    masks.append(moe_a2a_active_rank_mask(list(everybody), world_size))
    for seed, mask in enumerate([None, *masks]):
        layer(comm, rank, world_size, seed, mask)
    comm.destroy()
    for backend in ("cake", config):
        comm = create_communication(bootstrap, params, backend)
        layer(comm, rank, world_size, 9)
        comm.destroy()
    functional_family()
    dist.destroy_process_group()
    print(f"rank {rank} done")


if __name__ == "__main__":
    main()
