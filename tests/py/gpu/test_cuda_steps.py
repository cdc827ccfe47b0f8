"""What only GPUs have: streams, graphs, several ranks of one thread, steps that fail later."""

import gc
import os
import time

import pytest
import torch

import moe_ep
from moe_ep.comm import LocalGroup
from moe_ep.testing import spawn_ranks
from support.gpu import Drive, Feed, Shape, devices_for, make_instances, run_layer

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        bool(moe_ep.NVLinkOneSidedAlltoAll.explain_platform()),
        reason=moe_ep.NVLinkOneSidedAlltoAll.explain_platform() or "runs",
    ),
]


@pytest.fixture(autouse=True)
def loaded():
    """Kernels of torch, loaded before one of ours can wait for a rank that needs one."""
    if torch.cuda.is_available():
        for index in range(torch.cuda.device_count()):
            feed = Feed(Shape(), 2, torch.device("cuda", index), 0)
            feed.wrong()
            torch.mul(feed.x, 2, out=feed.out)
            feed.wrong([0]).item()


@pytest.fixture(params=["fence", "lamport"])
def transport(request):
    """Options of instances whose steps take one of the transports."""
    return {"lamport": request.param == "lamport"}


@pytest.mark.parametrize("num_ranks", [1, 2, 3, 4, 8, 16])
def test_one_thread_drives_all_ranks_of_one_gpu(num_ranks, transport):
    """Launches one after another make progress."""
    queues = int(os.environ.get("CUDA_DEVICE_MAX_CONNECTIONS", "8"))
    if num_ranks > queues:
        pytest.skip(f"{num_ranks} ranks need CUDA_DEVICE_MAX_CONNECTIONS >= {num_ranks}")
    shape = Shape(num_experts=2 * num_ranks, top_k=min(4, 2 * num_ranks))
    drive = Drive(num_ranks, shape, [0] * num_ranks, **transport)
    wrong = torch.zeros((), dtype=torch.int64, device="cuda:0")
    for _ in range(20):
        drive.step()
        drive.synchronize()
        for rank, feed in enumerate(drive.feeds):
            wrong += drive.on(rank, feed.wrong)
            drive.instances[rank].check()
    torch.cuda.synchronize()
    assert wrong.item() == 0
    drive.close()


def capture(drive, rank, feed):
    """Graph of one layer of a rank on its stream."""
    graph = torch.cuda.CUDAGraph()
    with (
        torch.cuda.device(drive.devices[rank]),
        torch.cuda.graph(graph, stream=drive.streams[rank], capture_error_mode="thread_local"),
    ):
        run_layer(drive.instances[rank], feed)
    return graph


@pytest.mark.parametrize("enable_pdl", [True, False])
def test_graphs_replay_exactly(enable_pdl, transport):
    """Two graphs of different T between eager steps, inputs that change, one rank delayed."""
    num_ranks = 2
    small, large = Shape(tokens=3), Shape(tokens=50)
    drive = Drive(num_ranks, large, devices_for(num_ranks), enable_pdl=enable_pdl, **transport)
    feeds = [
        drive.feeds,
        [
            drive.on(rank, Feed, small, num_ranks, drive.devices[rank], 9 + rank)
            for rank in range(num_ranks)
        ],
    ]
    for kind in feeds:  # the eager warm-up
        for rank in range(num_ranks):
            drive.on(rank, run_layer, drive.instances[rank], kind[rank])
    drive.synchronize()
    graphs = [[capture(drive, rank, kind[rank]) for rank in range(num_ranks)] for kind in feeds]
    wrong = [torch.zeros((), dtype=torch.int64, device=device) for device in drive.devices]

    def replay(kind, rank, step):
        feed = feeds[kind][rank]
        feed.refill()
        if rank == step % num_ranks:
            torch.cuda._sleep(step % 7 * 2000)
        graphs[kind][rank].replay()
        wrong[rank] += feed.wrong()

    for step in range(10_000):
        for rank in range(num_ranks):
            drive.on(rank, replay, step % 2, rank, step)
        if step % 100 == 99:
            drive.step()
            for rank in range(num_ranks):
                wrong[rank] += drive.on(rank, drive.feeds[rank].wrong)
    drive.synchronize()
    assert [count.item() for count in wrong] == [0] * num_ranks
    for instance in drive.instances:
        instance.check()
    drive.close()


def test_masks_change_between_replays(transport):
    """One captured graph serves every default mask."""
    shape = Shape(num_experts=12)
    drive = Drive(3, shape, [0] * 3, enable_rank_mask=True, **transport)
    for rank in range(3):
        drive.on(rank, run_layer, drive.instances[rank], drive.feeds[rank])
    drive.synchronize()
    graphs = [capture(drive, rank, drive.feeds[rank]) for rank in range(3)]
    for active in ([0, 1, 2], [0, 1, 2], [0, 2], [0, 2], [0], [0]):
        for rank in active:
            drive.on(rank, drive.instances[rank].set_active_ranks, active)
            drive.on(rank, drive.feeds[rank].refill)
            drive.on(rank, graphs[rank].replay)
        drive.synchronize()
        for rank in active:
            assert drive.on(rank, drive.feeds[rank].wrong, active).item() == 0
            drive.instances[rank].check()
    drive.close()


@pytest.mark.parametrize("phase", ["dispatch", "combine"])
def test_a_peer_that_never_comes_is_named_and_the_process_goes_on(phase, transport):
    shape = Shape()
    drive = Drive(2, shape, devices_for(2), timeout_sec=1, **transport)
    drive.step()
    drive.synchronize()
    started = time.monotonic()
    instance, feed = drive.instances[0], drive.feeds[0]
    if phase == "combine":
        for rank in range(2):
            drive.on(rank, drive._dispatch, rank)
        drive.synchronize()
        started = time.monotonic()
        drive.on(0, drive._combine, 0)
    else:
        drive.on(0, drive._dispatch, 0)
    with pytest.raises(moe_ep.MoEEpTimeoutError) as caught:
        drive.on(0, instance.synchronize)
    assert time.monotonic() - started < 2
    assert caught.value.ranks == (1,)
    assert caught.value.phase == phase
    with pytest.raises(moe_ep.MoEEpTimeoutError):
        instance.check()
    with pytest.raises(moe_ep.MoEEpError, match="recover"):
        drive.on(0, instance.dispatch, feed.x, feed.ids)
    assert torch.ones(1000, device="cuda:0").sum().item() == 1000
    other = Drive(2, shape, devices_for(2))
    other.step()
    other.synchronize()
    assert all(other.on(r, other.feeds[r].wrong).item() == 0 for r in range(2))
    other.close()
    drive.close()


def test_recover_after_a_timeout(transport):
    """Graphs captured before are valid after it."""
    shape = Shape()
    drive = Drive(2, shape, devices_for(2), timeout_sec=1, **transport)
    for rank in range(2):
        drive.on(rank, run_layer, drive.instances[rank], drive.feeds[rank])
    drive.synchronize()
    graphs = [capture(drive, rank, drive.feeds[rank]) for rank in range(2)]
    drive.on(0, drive._dispatch, 0)
    with pytest.raises(moe_ep.MoEEpTimeoutError):
        drive.instances[0].synchronize()
    group = LocalGroup(2, timeout_sec=30)
    spawn_ranks(
        lambda rank: drive.instances[rank].recover([0, 1], group.backend(rank)),
        2,
        mode="threads",
    )
    for _ in range(50):
        for rank in range(2):
            drive.on(rank, drive.feeds[rank].refill)
            drive.on(rank, graphs[rank].replay)
        drive.synchronize()
        assert all(drive.on(r, drive.feeds[r].wrong).item() == 0 for r in range(2))
    drive.step()
    drive.synchronize()
    drive.close()


def test_nothing_is_left_after_many_instances():
    shape = Shape()

    def round_trip():
        drive = Drive(2, shape, devices_for(2))
        drive.step()
        drive.close()
        del drive
        gc.collect()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()

    def held():
        free = [torch.cuda.mem_get_info(i)[0] for i in range(torch.cuda.device_count())]
        return len(os.listdir("/proc/self/fd")), free

    for _ in range(3):
        round_trip()
    descriptors, free = held()
    for _ in range(50):
        round_trip()
    after_descriptors, after_free = held()
    assert after_descriptors <= descriptors
    for before, after in zip(free, after_free, strict=True):
        assert after >= before - (2 << 20)


def test_the_current_device_need_not_be_the_rank_s():
    if torch.cuda.device_count() < 2:
        pytest.skip("one GPU")
    drive = Drive(2, Shape(), [0, 1])
    with torch.cuda.device(0):
        drive.step()
        for rank, feed in enumerate(drive.feeds):
            drive.instances[rank].dispatch(feed.x, feed.ids, runtime_max_tokens_per_rank=8)
        for rank, instance in enumerate(drive.instances):
            assert torch.cuda.current_device() == 0
            instance.combine(
                instance.get_combine_input_buffer(torch.bfloat16), output=drive.feeds[rank].out
            )
        assert torch.cuda.current_device() == 0
    for instance in drive.instances:
        instance.synchronize()
    drive.close()


def test_wrong_devices_are_refused():
    drive = Drive(1, Shape(), [0])
    feed, instance = drive.feeds[0], drive.instances[0]
    with pytest.raises(ValueError, match="cuda:0 tensor"):
        instance.dispatch(feed.x.cpu(), feed.ids)
    with pytest.raises(ValueError, match="cuda:0 tensor"):
        instance.dispatch(feed.x, feed.ids.cpu())
    drive.step()
    drive.synchronize()
    drive.close()


def test_a_failed_construction_fails_on_every_rank():
    """A device that is not there, on one rank of two."""
    group = LocalGroup(2, timeout_sec=30)

    def make(rank):
        bootstrap = moe_ep.BootstrapConfig(2, rank, device=0 if rank == 0 else 99)
        config = moe_ep.NVLinkOneSidedConfig(comm_backend=group.backend(rank))
        with pytest.raises(moe_ep.MoEEpError, match="rank 1: device must number"):
            moe_ep.NVLinkOneSidedAlltoAll(bootstrap, Shape().params, config)

    spawn_ranks(make, 2, mode="threads")


def test_results_are_the_same_objects_and_safe_outside_inference_mode():
    shape = Shape()
    with torch.inference_mode():
        drive = Drive(1, shape, [0])
        feed, instance = drive.feeds[0], drive.instances[0]
        first = instance.dispatch(feed.x, feed.ids)
        instance.combine(first.hidden_states, output=feed.out)
    again = instance.dispatch(feed.x, feed.ids)
    assert again is first
    assert not again.hidden_states.is_inference()
    instance.combine(again.hidden_states)
    drive.close()


def test_a_compiled_layer_keeps_the_calls():
    instance = make_instances(1, Shape(), [0])[0]
    feed = Feed(Shape(), 1, torch.device("cuda", 0), 3)

    def layer(x, ids):
        result = instance.dispatch(x, ids, runtime_max_tokens_per_rank=8)
        return instance.combine(result.hidden_states * 2)

    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    for _ in range(3):
        feed.refill()
        feed.out = compiled(feed.x, feed.ids)
        assert feed.wrong().item() == 0
    instance.destroy()
