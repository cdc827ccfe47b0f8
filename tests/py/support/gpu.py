"""Ranks on GPUs with steps that are checked on the GPU itself: no copy, no reference on the CPU."""

from dataclasses import dataclass

import torch

import moe_ep
from moe_ep.comm import LocalGroup
from moe_ep.testing import spawn_ranks


@dataclass
class Shape:
    """Sizes of a step. Every rank has `tokens` tokens."""

    tokens: int = 8
    hidden: int = 256
    top_k: int = 4
    num_experts: int = 16
    capacity: int = 64

    @property
    def params(self) -> moe_ep.MoEEpCommParams:
        return moe_ep.MoEEpCommParams(self.num_experts, self.top_k, self.capacity, self.hidden)


class Feed:
    """Inputs of one rank in fixed memory, refilled on the current stream."""

    def __init__(self, shape: Shape, num_ranks: int, device: torch.device, seed: int) -> None:
        self.shape, self.num_ranks = shape, num_ranks
        self.random = torch.Generator(device).manual_seed(seed)
        self.x = torch.empty(shape.tokens, shape.hidden, dtype=torch.bfloat16, device=device)
        self.ids = torch.empty(shape.tokens, shape.top_k, dtype=torch.int32, device=device)
        self.out = torch.empty_like(self.x)
        self.refill()

    def refill(self) -> None:
        """Draw new rows and picks, some of them void."""
        self.x.normal_(generator=self.random)
        self.ids.random_(-1, self.shape.num_experts, generator=self.random)

    def expected(self, active: list[int] | None = None) -> torch.Tensor:
        """Experts double rows, so a token's sum is 2x for each active rank it visits: exact."""
        share = self.shape.num_experts // self.num_ranks
        owners = torch.where(self.ids < 0, self.num_ranks, self.ids // share).long()
        visited = torch.zeros(
            self.shape.tokens, self.num_ranks + 1, dtype=torch.bool, device=self.x.device
        ).scatter_(1, owners, value=True)[:, : self.num_ranks]
        if active is not None:
            visited = visited[:, active]
        count = visited.sum(1, keepdim=True).float()
        return (self.x.float() * 2 * count).bfloat16()

    def wrong(self, active: list[int] | None = None) -> torch.Tensor:
        """Number of elements of the last output that are not what they must be."""
        return (self.out.float() != self.expected(active).float()).sum()


def run_layer(instance: moe_ep.MoEEpCommunication, feed: Feed, **options) -> None:
    """Dispatch, double in the combine buffer, combine; nothing waits."""
    result = instance.dispatch(
        feed.x, feed.ids, runtime_max_tokens_per_rank=feed.shape.tokens, **options
    )
    rows = instance.get_combine_input_buffer(torch.bfloat16)
    torch.mul(result.hidden_states, 2, out=rows)
    instance.combine(rows, output=feed.out)


def make_instances(
    num_ranks: int, shape: Shape, devices: list[int], **options
) -> list[moe_ep.NVLinkOneSidedAlltoAll]:
    """One instance a rank, all of this process; made by threads, for any one thread to drive."""
    group = LocalGroup(num_ranks, timeout_sec=60)

    def make(rank: int) -> moe_ep.NVLinkOneSidedAlltoAll:
        config = moe_ep.NVLinkOneSidedConfig(
            comm_backend=group.backend(rank), require_nvlink=False, **options
        )
        bootstrap = moe_ep.BootstrapConfig(num_ranks, rank, device=devices[rank])
        return moe_ep.NVLinkOneSidedAlltoAll(bootstrap, shape.params, config)

    return spawn_ranks(make, num_ranks, mode="threads", timeout=60)


def devices_for(num_ranks: int) -> list[int]:
    """One GPU a rank where there are enough, else all ranks on the first."""
    if torch.cuda.device_count() >= num_ranks:
        return list(range(num_ranks))
    return [0] * num_ranks


class Drive:
    """All ranks of a group, driven by the calling thread, each on a stream of its own."""

    def __init__(self, num_ranks: int, shape: Shape, devices: list[int], **options) -> None:
        self.devices = [torch.device("cuda", index) for index in devices]
        self.instances = make_instances(num_ranks, shape, devices, **options)
        self.streams = [torch.cuda.Stream(device) for device in self.devices]
        self.feeds = [
            self.on(rank, Feed, shape, num_ranks, self.devices[rank], rank)
            for rank in range(num_ranks)
        ]

    def on(self, rank: int, call, *args, **options):
        """Call on the rank's device and stream."""
        with torch.cuda.device(self.devices[rank]), torch.cuda.stream(self.streams[rank]):
            return call(*args, **options)

    def each(self, call) -> list:
        return [self.on(rank, call, rank) for rank in range(len(self.instances))]

    def step(self, active: list[int] | None = None) -> None:
        """One layer on every rank (or every active one), phase by phase."""
        ranks = range(len(self.instances)) if active is None else active
        for rank in ranks:
            self.on(rank, self._dispatch, rank)
        for rank in ranks:
            self.on(rank, self._combine, rank)

    def _dispatch(self, rank: int) -> None:
        feed, instance = self.feeds[rank], self.instances[rank]
        feed.refill()
        result = instance.dispatch(feed.x, feed.ids, runtime_max_tokens_per_rank=feed.shape.tokens)
        rows = instance.get_combine_input_buffer(torch.bfloat16)
        torch.mul(result.hidden_states, 2, out=rows)

    def _combine(self, rank: int) -> None:
        instance = self.instances[rank]
        rows = instance.get_combine_input_buffer(torch.bfloat16)
        instance.combine(rows, output=self.feeds[rank].out)

    def synchronize(self) -> None:
        for stream in self.streams:
            stream.synchronize()

    def close(self) -> None:
        self.synchronize()
        for instance in self.instances:
            instance.destroy()
