"""The processes that ranks run in, and what they set up once."""

import os
import tempfile
from dataclasses import dataclass, field
from datetime import timedelta

from moe_ep.testing import RankPool

WORLD_SIZE = 8
_GROUP_TIMEOUT = timedelta(seconds=20)


@dataclass
class World:
    """State of one process: its process groups, by members."""

    rank: int
    groups: dict = field(default_factory=dict)

    def make_group(self, members: tuple[int, ...], kind: str = "gloo") -> None:
        """Make the group of these global ranks. Every process of the world calls this."""
        import torch.distributed as dist

        if (members, kind) not in self.groups:
            self.groups[members, kind] = dist.new_group(
                list(members), timeout=_GROUP_TIMEOUT, backend=kind
            )

    def group(self, members: tuple[int, ...], kind: str = "gloo"):
        return self.groups[members, kind]


def set_up(rank: int, world_size: int, rendezvous: str) -> World:
    """Run once in each process."""
    import torch
    import torch.distributed as dist

    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{rendezvous}",
        rank=rank,
        world_size=world_size,
        timeout=_GROUP_TIMEOUT,
    )
    world = World(rank)
    for size in range(1, world_size + 1):
        world.make_group(tuple(range(size)))
    return world


def make_pool(world_size: int = WORLD_SIZE) -> RankPool:
    """Pool of rank processes with a Gloo world; started at the first call."""

    def fresh_arguments() -> tuple[str]:
        return (os.path.join(tempfile.mkdtemp(prefix="moe_ep_test_"), "rendezvous"),)

    return RankPool(
        world_size,
        setup=set_up,
        setup_args=fresh_arguments,
        start_method="forkserver",
        preload=["numpy", "torch", "torch.distributed", "moe_ep.backends.torch_dist"],
        timeout=60,
    )
