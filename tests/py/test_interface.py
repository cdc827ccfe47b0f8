"""Every public signature: names, order, kinds, defaults.

The tables are the interface. A row reads ``name: signature``, with ``/`` and ``*`` as in Python;
``self`` and ``cls`` are left out, annotations too.
"""

import inspect

import pytest
import torch

import moe_ep
import moe_ep.comm

DISPATCH = (
    "hidden_states, topk_ids, topk_weights=None, *, hidden_states_scale=None, "
    "runtime_max_tokens_per_rank=None, eplb_local_stats=None"
)

CONFIGS = {
    "BootstrapConfig": (
        "world_size, rank, stream=0, auto_bootstrap=True, nccl_comm=None, process_group=None, "
        "tcp_store=None, *, device=None"
    ),
    "MoEEpCommParams": (
        "num_experts, top_k, max_tokens_per_rank, hidden_size, dtype=None, dispatch_format=None, "
        "invalid_expert_id=-1"
    ),
    "MoEEpDispatchResult": (
        "hidden_states, topk_ids, topk_weights, tokens_per_rank, hidden_states_scale=None, "
        "eplb_gathered_stats=None, recv_counts=None, extra_payloads=None"
    ),
    "NVLinkOneSidedConfig": (
        "backend_name='nvlink_one_sided', extra_payload_bytes_per_token=0, "
        "eplb_stats_num_experts=0, enable_rank_mask=False, use_low_precision_combine=False, "
        "comm_backend=None, cft=None, cft_max_tokens_for_dispatch=128, "
        "cft_max_tokens_for_combine=128, lamport=None, lamport_max_tokens=None, timeout_sec=300, "
        "enable_pdl=None, *, share_workspace=True, max_sms=None, require_nvlink=True"
    ),
    "CakeAlltoAllConfig": (
        "backend_name='cake', extra_payload_bytes_per_token=0, eplb_stats_num_experts=0, "
        "enable_rank_mask=False, use_low_precision_combine=False, comm_backend=None, "
        "enable_pdl=None, *, timeout_sec=300, share_workspace=True, max_sms=None"
    ),
    "NVLinkTwoSidedConfig": "backend_name='nvlink_two_sided', comm_backend=None",
    "HostAlltoAllConfig": (
        "backend_name='host', extra_payload_bytes_per_token=0, eplb_stats_num_experts=0, "
        "enable_rank_mask=False, use_low_precision_combine=False, comm_backend=None, cft=None, "
        "cft_max_tokens_for_dispatch=128, cft_max_tokens_for_combine=128, lamport=None, "
        "lamport_max_tokens=None, timeout_sec=300, num_threads=None, share_workspace=True"
    ),
    "TorchDistConfig": "backend_name='torch_dist', process_group=None",
}

FUNCTIONS = {
    "create_communication": "bootstrap, params, backend, **options",
    "register_communication": "name",
    "available_communication_backends": "",
}

# Of every backend. What is ours follows the reference's parameters, keyword-only.
EVERY_CLASS = {
    "is_platform_supported": "",
    "explain_platform": "",
    "dispatch": f"{DISPATCH}, extra_payloads=None",
    "combine": "expert_output, *, output=None",
    "get_combine_input_buffer": "dtype",
    "stats": "",
    "check": "",
    "synchronize": "",
    "destroy": "",
}
MASKED_CLASS = {
    **EVERY_CLASS,
    "dispatch": f"{DISPATCH}, active_rank_mask=None, extra_payloads=None",
    "combine": "expert_output, *, output=None, active_rank_mask=None",
    "active_rank_mask": "active_ranks",
    "set_active_ranks": "ranks",
    "recover": "active_ranks, comm_backend",
    "rejoin": "bootstrap, params, config, *, active_ranks, comm_backend",
    "checkpoint_prepare": "",
    "checkpoint_restore": "comm_backend",
}
CLASSES = {
    "MoEEpCommunication": ("bootstrap, params", EVERY_CLASS),
    "TorchDistAlltoAll": ("bootstrap, params, config=None", EVERY_CLASS),
    "HostAlltoAll": ("bootstrap, params, config=None", MASKED_CLASS),
    "NVLinkOneSidedAlltoAll": ("bootstrap, params, config=None", MASKED_CLASS),
    "CakeAlltoAll": ("bootstrap, params, config=None", MASKED_CLASS),
    "NVLinkTwoSidedAlltoAll": ("bootstrap, params, config=None", MASKED_CLASS),
}
PROPERTIES = {
    "MoEEpCommunication": ["last_transport"],
    "TorchDistAlltoAll": ["last_transport"],
    "HostAlltoAll": ["last_transport", "lamport_enabled", "lamport_max_tokens"],
    "NVLinkOneSidedAlltoAll": ["last_transport", "lamport_enabled", "lamport_max_tokens"],
}

COMM_FUNCTIONS = {
    "moe_a2a_get_workspace_size_per_rank": (
        "ep_size, max_num_tokens, total_dispatch_payload_size_per_token, "
        "combine_payload_size_per_token, eplb_stats_num_experts=0, *, backend='trtllm'"
    ),
    "moe_a2a_initialize": (
        "workspace, ep_rank, ep_size, max_num_tokens, eplb_stats_num_experts=0, *, backend='trtllm'"
    ),
    "moe_a2a_dispatch": (
        "token_selected_experts, input_payloads, workspace, metainfo, "
        "runtime_max_tokens_per_rank, ep_rank, ep_size, top_k, num_experts, enable_pdl=None, "
        "eplb_local_stats=None, enable_rank_mask=False, active_rank_mask=None, *, "
        "backend='trtllm', recv_view_cache=None"
    ),
    "moe_a2a_combine": (
        "payload, local_num_tokens, workspace, metainfo, runtime_max_tokens_per_rank, ep_rank, "
        "ep_size, top_k, combine_payload_offset, payload_in_workspace=False, output_dtype=None, "
        "output_scales=None, output_scalar_scale=1.0, sf_layout=SfLayout.layout_linear, "
        "output=None, *, use_low_precision=False, enable_pdl=None, enable_rank_mask=False, "
        "active_rank_mask=None, backend='trtllm'"
    ),
    "moe_a2a_sanitize_expert_ids": (
        "expert_ids, workspace, metainfo, ep_rank, invalid_expert_id, enable_pdl=None, *, "
        "backend='trtllm'"
    ),
    "moe_a2a_wrap_payload_tensor_in_workspace": (
        "workspace, leading_shape, slice_start, slice_end, dtype"
    ),
    "moe_a2a_active_rank_mask": "ranks, ep_size",
}
COMM_CLASSES = {
    "MoeAlltoAll": (
        "mapping, max_num_tokens, top_k, num_experts, workspace_size_per_rank=None, "
        "hidden_size=None, mnnvl_config=None, eplb_stats_num_experts=0, enable_rank_mask=False, "
        "*, backend='trtllm', device=None"
    ),
    "TorchDistBackend": "group=None",
    "TCPStoreBackend": "store, rank, world_size, *, timeout_sec=300",
    "MPIBackend": "comm=None",
    "LocalGroup": "size, *, timeout_sec=300",
    "UnixSocketBackend": "path, rank, world_size, *, timeout_sec=300",
}
COMM_METHODS = {
    "Get_rank": "",
    "Get_size": "",
    "allgather": "obj",
    "bcast": "obj, root",
    "barrier": "",
    "Split": "color, key",
}
MOE_ALLTOALL_METHODS = [
    "dispatch",
    "combine",
    "get_combine_payload_tensor_in_workspace",
    "eplb_gathered_stats",
    "checkpoint_prepare",
    "checkpoint_restore",
]


def parameters(function):
    """Parameters without self and cls, as (name, kind, default)."""
    listed = list(inspect.signature(function).parameters.values())
    if listed and listed[0].name in ("self", "cls"):
        listed = listed[1:]
    return [(parameter.name, parameter.kind, parameter.default) for parameter in listed]


def parse(text):
    """The same of a row of a table."""
    namespace = {"SfLayout": moe_ep.comm.SfLayout} if "SfLayout" in text else {}
    exec(f"def function({text}): pass", namespace)
    return parameters(namespace["function"])


def compare(function, text):
    """Parameter by parameter, so that a failure names the first that differs."""
    actual, expected = parameters(function), parse(text)
    for index, wanted in enumerate(expected):
        got = actual[index] if index < len(actual) else None
        assert got == wanted, f"parameter {index}"
    assert len(actual) == len(expected), f"further parameters: {actual[len(expected) :]}"


def method_of(cls, name):
    """A method as its caller sees it."""
    return getattr(cls, name)


@pytest.mark.parametrize("name", CONFIGS)
def test_configs(name):
    compare(getattr(moe_ep, name), CONFIGS[name])


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions(name):
    compare(getattr(moe_ep, name), FUNCTIONS[name])


@pytest.mark.parametrize("name", CLASSES)
def test_constructors(name):
    compare(getattr(moe_ep, name).__init__, CLASSES[name][0])


@pytest.mark.parametrize(
    ("name", "method"),
    [(name, method) for name, (_, methods) in CLASSES.items() for method in methods],
)
def test_methods(name, method):
    cls = getattr(moe_ep, name)
    compare(method_of(cls, method), CLASSES[name][1][method])
    is_class_method = isinstance(inspect.getattr_static(cls, method), classmethod)
    assert is_class_method == (method in ("is_platform_supported", "explain_platform", "rejoin"))


@pytest.mark.parametrize(
    ("name", "attribute"),
    [(name, entry) for name, listed in PROPERTIES.items() for entry in listed],
)
def test_properties(name, attribute):
    assert isinstance(inspect.getattr_static(getattr(moe_ep, name), attribute), property)


@pytest.mark.parametrize("name", CLASSES)
def test_backends_are_communications(name):
    assert issubclass(getattr(moe_ep, name), moe_ep.MoEEpCommunication)


@pytest.mark.parametrize("name", ["is_platform_supported", "dispatch", "combine"])
def test_what_a_backend_must_define(name):
    assert name in moe_ep.MoEEpCommunication.__abstractmethods__
    assert len(moe_ep.MoEEpCommunication.__abstractmethods__) == 3


@pytest.mark.parametrize("name", COMM_FUNCTIONS)
def test_comm_functions(name):
    compare(getattr(moe_ep.comm, name), COMM_FUNCTIONS[name])


@pytest.mark.parametrize("name", COMM_CLASSES)
def test_comm_classes(name):
    compare(getattr(moe_ep.comm, name).__init__, COMM_CLASSES[name])


@pytest.mark.parametrize(
    "name",
    ["CommBackend", "TorchDistBackend", "TCPStoreBackend", "MPIBackend", "UnixSocketBackend"],
)
@pytest.mark.parametrize("method", COMM_METHODS)
def test_comm_backend_methods(name, method):
    compare(method_of(getattr(moe_ep.comm, name), method), COMM_METHODS[method])


@pytest.mark.parametrize("name", MOE_ALLTOALL_METHODS)
def test_moe_alltoall_methods(name):
    assert hasattr(moe_ep.comm.MoeAlltoAll, name)


def test_local_group_gives_its_members():
    compare(moe_ep.comm.LocalGroup.backend, "rank")


def test_scale_layouts():
    layouts = moe_ep.comm.SfLayout
    assert [layouts.layout_128x4.value, layouts.layout_8x4.value, layouts.layout_linear.value] == [
        0,
        1,
        2,
    ]


@pytest.mark.parametrize("name", ["Mapping", "MnnvlConfig"])
def test_names_of_the_functional_family(name):
    assert inspect.isclass(getattr(moe_ep.comm, name))


def test_errors():
    assert moe_ep.MoEEpError.__mro__[1] is RuntimeError
    assert moe_ep.MoEEpTimeoutError.__mro__[1] is moe_ep.MoEEpError
    assert moe_ep.MoEEpMismatchError.__mro__[1] is moe_ep.MoEEpError
    error = moe_ep.MoEEpTimeoutError("message", (2,), "combine")
    assert (error.ranks, error.phase) == ((2,), "combine")


def mask_words(mask):
    assert mask.dtype == torch.uint64
    assert mask.device.type == "cpu"
    return mask.tolist()


def test_rank_masks():
    assert moe_ep.comm.MOE_A2A_RANK_MASK_WORDS == 4
    make = moe_ep.comm.moe_a2a_active_rank_mask
    assert mask_words(make([0, 2], 4)) == [5, 0, 0, 0]
    assert mask_words(make(range(256), 256)) == [2**64 - 1] * 4
    assert mask_words(make((63, 64, 255), 256)) == [2**63, 1, 0, 2**63]
    assert mask_words(make([], 4)) == [0] * 4
    assert mask_words(make([torch.tensor(3)], 4)) == [8, 0, 0, 0]


@pytest.mark.parametrize(
    ("ranks", "ep_size", "kind"),
    [
        ([4], 4, ValueError),
        ([-1], 4, ValueError),
        ([0], 257, ValueError),
        ([0], 0, ValueError),
        ([1.0], 4, TypeError),
        ([True], 4, TypeError),
        (3, 4, TypeError),
    ],
)
def test_bad_rank_masks(ranks, ep_size, kind):
    with pytest.raises(kind, match=r"moe_a2a_active_rank_mask: .*got"):
        moe_ep.comm.moe_a2a_active_rank_mask(ranks, ep_size)


def test_the_reference_s_module_path():
    from moe_ep.backends.split.comm.cake.kernels import active_rank_mask

    compare(active_rank_mask, "active_ranks, ep_size")
    assert active_rank_mask([1], ep_size=2).tolist() == [2, 0, 0, 0]


@pytest.mark.parametrize("module", [moe_ep, moe_ep.comm], ids=lambda module: module.__name__)
def test_everything_listed_is_there(module):
    for name in module.__all__:
        assert getattr(module, name) is not None
