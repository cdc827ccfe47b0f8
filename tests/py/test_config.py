"""Configuration types: fields, limits, sizes."""

import dataclasses
import subprocess
import sys

import pytest
import torch

import moe_ep
from moe_ep import (
    BootstrapConfig,
    CakeAlltoAllConfig,
    HostAlltoAllConfig,
    MoEEpCommParams,
    MoEEpDispatchResult,
    NVLinkOneSidedConfig,
    NVLinkTwoSidedConfig,
    QuantFormat,
    TorchDistConfig,
)

CONFIGS = [
    NVLinkOneSidedConfig,
    CakeAlltoAllConfig,
    NVLinkTwoSidedConfig,
    HostAlltoAllConfig,
    TorchDistConfig,
]
PARAMS = MoEEpCommParams(8, 2, 16, 64)


def make_params(**changes):
    return MoEEpCommParams(
        **{
            "num_experts": 8,
            "top_k": 2,
            "max_tokens_per_rank": 16,
            "hidden_size": 64,
            **changes,
        }
    )


@pytest.mark.parametrize("name", ["num_experts", "top_k", "max_tokens_per_rank", "hidden_size"])
@pytest.mark.parametrize("value", [0, -1, True, 1.0, "4", None])
def test_sizes_are_positive_ints(name, value):
    kind = ValueError if isinstance(value, int) and value is not True else TypeError
    with pytest.raises(kind, match=rf"MoEEpCommParams: {name} must be .*got") as caught:
        make_params(**{name: value})
    assert isinstance(caught.value, ValueError)


def test_top_k_limits():
    make_params(num_experts=64, top_k=64)
    with pytest.raises(ValueError, match=r"top_k must be an int in 1\.\.64, got 65"):
        make_params(num_experts=128, top_k=65)
    with pytest.raises(ValueError, match=r"top_k must be at most num_experts \(8\), got 9"):
        make_params(top_k=9)


@pytest.mark.parametrize("value", [-1, -(2**31), 8, 15, 2**31 - 1])
def test_invalid_expert_id_outside_the_experts(value):
    """FR-038: any int32 that is no expert."""
    assert make_params(invalid_expert_id=value).invalid_expert_id == value


@pytest.mark.parametrize("value", [0, 7, 2**31, -(2**31) - 1])
def test_invalid_expert_id_that_is_an_expert_or_too_wide(value):
    """FR-038."""
    with pytest.raises(ValueError, match=rf"invalid_expert_id must .*got {value}"):
        make_params(invalid_expert_id=value)


@pytest.mark.parametrize("value", [torch.float64, torch.int8, torch.float8_e4m3fn])
def test_dtype_is_one_that_combine_knows(value):
    with pytest.raises(ValueError, match="bfloat16, float16, float32 or None, got"):
        make_params(dtype=value)


@pytest.mark.parametrize("value", ["bfloat16", 1, float])
def test_dtype_is_a_torch_dtype(value):
    with pytest.raises(TypeError, match=r"dtype must be a torch\.dtype or None, got"):
        make_params(dtype=value)


def test_dispatch_format_is_a_quant_format():
    with pytest.raises(TypeError, match="dispatch_format must be a QuantFormat or None, got"):
        make_params(dispatch_format="NVFP4")


def test_token_dtype():
    assert make_params().token_dtype is torch.bfloat16
    assert make_params(dtype=torch.float32).token_dtype is torch.float32


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [(None, 128), (torch.bfloat16, 128), (torch.float16, 128), (torch.float32, 256)],
)
def test_unquantised_bytes(dtype, expected):
    assert make_params(dtype=dtype).dispatch_bytes_per_token == expected


@pytest.mark.parametrize(
    ("name", "at_7168", "at_2881"),
    [
        ("BF16", 14336, 5762),
        ("FP16", 14336, 5762),
        ("FP8PerTensor", 7168, 2881),
        ("DeepSeekFp8", 7392, 2881 + 4 * 23),
        ("MXFP8", 7168 + 224, 2881 + 91),
        ("NVFP4", 3584 + 448, 1441 + 181),
        ("MXFP4", 3584 + 224, 1441 + 91),
    ],
)
def test_quantised_bytes(name, at_7168, at_2881):
    """FR-013: sizes by arithmetic, odd ones included."""
    for hidden, expected in ((7168, at_7168), (2881, at_2881)):
        params = make_params(hidden_size=hidden, dispatch_format=QuantFormat[name])
        assert params.dispatch_bytes_per_token == expected


def test_quant_format_names():
    assert [member.name for member in QuantFormat] == [
        "BF16",
        "FP16",
        "FP8PerTensor",
        "DeepSeekFp8",
        "MXFP8",
        "NVFP4",
        "MXFP4",
    ]


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({"world_size": 0}, ValueError),
        ({"world_size": 257}, ValueError),
        ({"world_size": True}, TypeError),
        ({"world_size": "2"}, TypeError),
        ({"rank": -1}, ValueError),
        ({"rank": 4}, ValueError),
        ({"rank": 0.0}, TypeError),
        ({"stream": -1}, ValueError),
        ({"stream": None}, TypeError),
        ({"auto_bootstrap": 1}, TypeError),
        ({"device": -1}, ValueError),
        ({"device": "cuda:0"}, TypeError),
    ],
)
def test_bootstrap_limits(changes, kind):
    """FR-021: too many ranks are refused before there is anything to allocate."""
    with pytest.raises(kind, match=r"BootstrapConfig: .* must .*got"):
        BootstrapConfig(**{"world_size": 4, "rank": 1, **changes})


def test_bootstrap_takes_the_limits():
    assert BootstrapConfig(256, 255).rank == 255
    assert BootstrapConfig(1, 0, device=7).device == 7


@pytest.mark.parametrize("value", [BootstrapConfig(1, 0), PARAMS])
def test_frozen(value):
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(value, dataclasses.fields(value)[0].name, 2)


def test_result_is_frozen_and_compares_by_identity():
    tensor = torch.zeros(2, 2)
    result = MoEEpDispatchResult(tensor, tensor, None, 1)
    with pytest.raises(dataclasses.FrozenInstanceError):
        result.tokens_per_rank = 2
    assert result != MoEEpDispatchResult(tensor, tensor, None, 1)
    assert (result.recv_counts, result.extra_payloads) == (None, None)


@pytest.mark.parametrize("config", CONFIGS)
def test_defaults_are_valid(config):
    config().validate(PARAMS, 4)


def cases_of(config):
    """Bad options of one config: (changes, error)."""
    names = {field.name for field in dataclasses.fields(config)}
    table = [
        ({"timeout_sec": 0}, ValueError),
        ({"timeout_sec": -1}, ValueError),
        ({"timeout_sec": 86401}, ValueError),
        ({"timeout_sec": True}, TypeError),
        ({"timeout_sec": "5"}, TypeError),
        ({"timeout_sec": 5.0}, TypeError),
        ({"timeout_sec": None}, TypeError),
        ({"eplb_stats_num_experts": -1}, ValueError),
        ({"eplb_stats_num_experts": 9}, ValueError),
        ({"eplb_stats_num_experts": None}, TypeError),
        ({"extra_payload_bytes_per_token": -1}, ValueError),
        ({"extra_payload_bytes_per_token": 1.5}, TypeError),
        ({"enable_rank_mask": 1}, TypeError),
        ({"use_low_precision_combine": None}, TypeError),
        ({"lamport": True, "cft": True}, ValueError),
        ({"lamport": 1}, TypeError),
        ({"cft": "yes"}, TypeError),
        ({"lamport_max_tokens": 0}, ValueError),
        ({"lamport_max_tokens": False}, TypeError),
        ({"cft_max_tokens_for_dispatch": -1}, ValueError),
        ({"cft_max_tokens_for_combine": "1"}, TypeError),
        ({"enable_pdl": 0}, TypeError),
        ({"max_sms": 0}, ValueError),
        ({"num_threads": 0}, ValueError),
        ({"share_workspace": 1}, TypeError),
        ({"require_nvlink": None}, TypeError),
        ({"backend_name": 3}, TypeError),
    ]
    return [(changes, kind) for changes, kind in table if set(changes) <= names]


@pytest.mark.parametrize(
    ("config", "changes", "kind"),
    [(config, changes, kind) for config in CONFIGS for changes, kind in cases_of(config)],
)
def test_bad_options_are_refused_by_validate(config, changes, kind):
    """FR-091, FR-156: not at construction of the dataclass, but where every rank hears of it."""
    bad = config(**changes)
    with pytest.raises(kind, match=rf"{config.__name__}: .* must .*got"):
        bad.validate(PARAMS, 4)


@pytest.mark.parametrize("config", [NVLinkOneSidedConfig, HostAlltoAllConfig])
def test_limits_themselves_are_allowed(config):
    config(
        timeout_sec=86400,
        eplb_stats_num_experts=8,
        lamport=False,
        cft=True,
        lamport_max_tokens=1,
    ).validate(PARAMS, 4)
    config(timeout_sec=1, lamport=True, cft=False).validate(PARAMS, 4)


def test_errors_carry_ranks_and_phase():
    import pickle

    error = moe_ep.MoEEpTimeoutError("dispatch: late", (3, 1), "dispatch")
    assert (error.ranks, error.phase, str(error)) == ((1, 3), "dispatch", "dispatch: late")
    copy = pickle.loads(pickle.dumps(error))
    assert (copy.ranks, copy.phase, str(copy)) == ((1, 3), "dispatch", "dispatch: late")
    assert isinstance(error, moe_ep.MoEEpError)
    assert issubclass(moe_ep.MoEEpMismatchError, moe_ep.MoEEpError)
    assert issubclass(moe_ep.MoEEpError, RuntimeError)
    assert issubclass(moe_ep.TypeMismatchError, TypeError)


IMPORT_PROGRAM = """
import sys
import moe_ep, moe_ep.comm
assert "torch" not in sys.modules, "torch was imported"
assert "mpi4py" not in sys.modules
moe_ep.BootstrapConfig(2, 1)
moe_ep.MoEEpCommParams(8, 2, 4, 16)
moe_ep.NVLinkOneSidedConfig().validate(moe_ep.MoEEpCommParams(8, 2, 4, 16), 2)
assert moe_ep.available_communication_backends()
assert "torch" not in sys.modules, "torch was imported"
import torch
moe_ep.TorchDistAlltoAll.is_platform_supported()
assert not torch.cuda.is_initialized()
"""


def test_import_touches_neither_torch_nor_a_gpu():
    """FR-160: nothing is loaded before it is used."""
    subprocess.run([sys.executable, "-c", IMPORT_PROGRAM], check=True, timeout=100)


@pytest.mark.parametrize("module", [moe_ep, moe_ep.comm])
def test_unknown_attributes_raise(module):
    name = "nothing"
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        getattr(module, name)
    assert set(module.__all__) <= set(dir(module))
