"""NVML through ctypes: GPUs and their links, without creating a CUDA context.

GPUs are numbered as NVML does, by PCI address: not as CUDA ordinals.
"""

from __future__ import annotations

import ctypes
from typing import Any

__all__ = ["NvmlError", "query"]

_MAX_LINKS = 36
_TEXT_BYTES = 96
# nvmlGpuP2PStatus_t, nvmlGpuP2PCapsIndex_t, nvmlGpuFabricState_t.
_P2P_OK = 0
_P2P_CAPS = {"read": 0, "write": 1, "nvlink": 2, "atomics": 3}
_FABRIC_STATES = ("not supported", "not started", "in progress", "completed")


class NvmlError(RuntimeError):
    """NVML is not there, or a call failed."""


class _Memory(ctypes.Structure):
    _fields_ = (
        ("total", ctypes.c_ulonglong),
        ("free", ctypes.c_ulonglong),
        ("used", ctypes.c_ulonglong),
    )


class _Pci(ctypes.Structure):
    _fields_ = (
        ("bus_id_legacy", ctypes.c_char * 16),
        ("domain", ctypes.c_uint),
        ("bus", ctypes.c_uint),
        ("device", ctypes.c_uint),
        ("device_id", ctypes.c_uint),
        ("subsystem_id", ctypes.c_uint),
        ("bus_id", ctypes.c_char * 32),
    )


class _Fabric(ctypes.Structure):
    _fields_ = (
        ("cluster_uuid", ctypes.c_char * 16),
        ("status", ctypes.c_int),
        ("clique_id", ctypes.c_uint),
        ("state", ctypes.c_ubyte),
    )


class _Nvml:
    """The loaded library, initialised."""

    def __init__(self) -> None:
        try:
            self._library = ctypes.CDLL("libnvidia-ml.so.1")
        except OSError as error:
            raise NvmlError("libnvidia-ml.so.1 does not load") from error
        self.call("nvmlInit_v2")

    def call(self, name: str, *arguments: Any) -> None:
        """Call a function; raise unless it says success."""
        function = getattr(self._library, name, None)
        if function is None:
            raise NvmlError(f"{name}: this driver does not have it")
        code = function(*arguments)
        if code != 0:
            raise NvmlError(f"{name}: code {code}")

    def text(self, name: str, *arguments: Any) -> str:
        """String that a function writes to its last two arguments."""
        buffer = ctypes.create_string_buffer(_TEXT_BYTES)
        self.call(name, *arguments, buffer, ctypes.c_uint(_TEXT_BYTES))
        return buffer.value.decode("utf-8", "replace")


def query() -> dict[str, Any]:
    """Driver, GPUs and links between them.

    Raises
    ------
    NvmlError
        There is no NVML, or it does not start.
    """
    nvml = _Nvml()
    try:
        cuda = ctypes.c_int()
        nvml.call("nvmlSystemGetCudaDriverVersion_v2", ctypes.byref(cuda))
        count = ctypes.c_uint()
        nvml.call("nvmlDeviceGetCount_v2", ctypes.byref(count))
        handles = [_handle(nvml, index) for index in range(count.value)]
        return {
            "driver": nvml.text("nvmlSystemGetDriverVersion"),
            "cuda": f"{cuda.value // 1000}.{cuda.value % 1000 // 10}",
            "devices": [_device(nvml, handle) for handle in handles],
            "peers": [
                {"from": first, "to": second, **_peer(nvml, handles[first], handles[second])}
                for first in range(len(handles))
                for second in range(len(handles))
                if first < second
            ],
        }
    finally:
        nvml.call("nvmlShutdown")


def _handle(nvml: _Nvml, index: int) -> ctypes.c_void_p:
    handle = ctypes.c_void_p()
    nvml.call("nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(index), ctypes.byref(handle))
    return handle


def _device(nvml: _Nvml, handle: ctypes.c_void_p) -> dict[str, Any]:
    major, minor, memory, pci = ctypes.c_int(), ctypes.c_int(), _Memory(), _Pci()
    nvml.call(
        "nvmlDeviceGetCudaComputeCapability", handle, ctypes.byref(major), ctypes.byref(minor)
    )
    nvml.call("nvmlDeviceGetMemoryInfo", handle, ctypes.byref(memory))
    nvml.call("nvmlDeviceGetPciInfo_v3", handle, ctypes.byref(pci))
    return {
        "name": nvml.text("nvmlDeviceGetName", handle),
        "uuid": nvml.text("nvmlDeviceGetUUID", handle),
        "pci": pci.bus_id.decode("ascii", "replace"),
        "compute_capability": f"{major.value}.{minor.value}",
        "memory_bytes": memory.total,
        "nvlinks": _count_links(nvml, handle),
        "fabric": _fabric(nvml, handle),
    }


def _count_links(nvml: _Nvml, handle: ctypes.c_void_p) -> int:
    """Active NVLinks of a GPU."""
    active = 0
    for link in range(_MAX_LINKS):
        state = ctypes.c_int()
        try:
            nvml.call("nvmlDeviceGetNvLinkState", handle, ctypes.c_uint(link), ctypes.byref(state))
        except NvmlError:
            continue
        active += state.value
    return active


def _fabric(nvml: _Nvml, handle: ctypes.c_void_p) -> str:
    """State of the GPU in a multi-node NVLink fabric."""
    info = _Fabric()
    try:
        nvml.call("nvmlDeviceGetGpuFabricInfo", handle, ctypes.byref(info))
    except NvmlError:
        return _FABRIC_STATES[0]
    state = _FABRIC_STATES[info.state] if info.state < len(_FABRIC_STATES) else str(info.state)
    return state if info.status == 0 else f"{state} (code {info.status})"


def _peer(nvml: _Nvml, first: ctypes.c_void_p, second: ctypes.c_void_p) -> dict[str, bool | None]:
    """What two GPUs can do with each other's memory; None where NVML does not tell."""
    caps: dict[str, bool | None] = {}
    for name, index in _P2P_CAPS.items():
        status = ctypes.c_int()
        try:
            nvml.call(
                "nvmlDeviceGetP2PStatus", first, second, ctypes.c_int(index), ctypes.byref(status)
            )
            caps[name] = status.value == _P2P_OK
        except NvmlError:
            caps[name] = None
    return caps
