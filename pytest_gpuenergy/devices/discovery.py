"""Finds the NVIDIA GPUs visible to both the CUDA driver library and NVML, without CuPy."""

from __future__ import annotations

import ctypes
import uuid
from dataclasses import dataclass
from typing import Any

from pytest_gpuenergy.devices.nvml import GuardedNvml, load_nvml, name_of, text
from pytest_gpuenergy.support import DeviceError

_CUDA_SUCCESS = 0


@dataclass(frozen=True)
class FoundGpu:
    """A usable GPU; ``ordinal`` is CUDA's, subject to ``CUDA_VISIBLE_DEVICES``."""

    ordinal: int
    uuid: str
    name: str
    handle: Any


def find_gpus() -> tuple[GuardedNvml, list[FoundGpu]]:
    """NVML, and every GPU visible to CUDA, in CUDA's order.

    Raises:
        DeviceError: there is no driver, or NVML and CUDA disagree.
    """
    nvml = load_nvml()
    found = []
    for ordinal, gpu in enumerate(cuda_uuids()):
        try:
            handle = nvml.nvmlDeviceGetHandleByUUID(gpu.encode())
            name = name_of(nvml, handle)
        except nvml.NVMLError as error:
            raise DeviceError(_not_a_gpu(nvml, ordinal, gpu, error)) from None
        found.append(FoundGpu(ordinal, gpu, name, handle))
    return nvml, found


def nvml_uuids(nvml: GuardedNvml) -> list[tuple[str, str]]:
    """UUID and name of every GPU visible to NVML, in NVML's order.

    Raises:
        DeviceError: NVML fails.
    """
    try:
        handles = [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(nvml.nvmlDeviceGetCount())]
        return [(text(nvml.nvmlDeviceGetUUID(handle)), name_of(nvml, handle)) for handle in handles]
    except nvml.NVMLError as error:
        raise DeviceError(f"NVML fails ({error}): check the driver with nvidia-smi.") from None


def cuda_uuids() -> list[str]:
    """UUIDs of the GPUs visible to the CUDA driver library, in its order and NVML's format.

    Raises:
        DeviceError: the library is missing or cannot be initialized.
    """
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        raise DeviceError(
            "The CUDA driver library libcuda.so.1 is missing: install the NVIDIA driver."
        ) from None
    _call(cuda, "cuInit", 0)
    count = ctypes.c_int()
    _call(cuda, "cuDeviceGetCount", ctypes.byref(count))
    get_uuid = "cuDeviceGetUuid_v2" if hasattr(cuda, "cuDeviceGetUuid_v2") else "cuDeviceGetUuid"
    uuids = []
    for ordinal in range(count.value):
        device, raw = ctypes.c_int(), (ctypes.c_ubyte * 16)()
        _call(cuda, "cuDeviceGet", ctypes.byref(device), ordinal)
        _call(cuda, get_uuid, ctypes.byref(raw), device)
        uuids.append(f"GPU-{uuid.UUID(bytes=bytes(raw))}")
    return uuids


def has_context(ordinal: int) -> bool:
    """Whether this process has a GPU's primary context, which CuPy and PyTorch create.

    Args:
        ordinal: CUDA's, of a GPU found by `find_gpus`.

    Raises:
        DeviceError: the driver fails.
    """
    cuda = ctypes.CDLL("libcuda.so.1")
    device, flags, active = ctypes.c_int(), ctypes.c_uint(), ctypes.c_int()
    _call(cuda, "cuDeviceGet", ctypes.byref(device), ordinal)
    _call(cuda, "cuDevicePrimaryCtxGetState", device, ctypes.byref(flags), ctypes.byref(active))
    return bool(active.value)


def _not_a_gpu(nvml: GuardedNvml, ordinal: int, gpu: str, error: Exception) -> str:
    """Why NVML has no GPU of this UUID; for a MIG instance, CUDA reports the instance's UUID."""
    try:
        nvml.nvmlDeviceGetHandleByUUID(gpu.replace("GPU-", "MIG-", 1).encode())
    except nvml.NVMLError:
        return f"CUDA sees {gpu} but NVML does not ({error}): check the driver with nvidia-smi."
    return (
        f"CUDA device {ordinal} is a MIG instance, which has no power sensor of its own: "
        "name a whole GPU in CUDA_VISIBLE_DEVICES."
    )


def _call(cuda: ctypes.CDLL, function: str, *arguments: object) -> None:
    try:
        status = getattr(cuda, function)(*arguments)
    except AttributeError:
        raise DeviceError(
            f"The CUDA driver library lacks {function}: install a driver that is not older than "
            "CUDA 12."
        ) from None
    if status != _CUDA_SUCCESS:
        name = ctypes.c_char_p()
        if hasattr(cuda, "cuGetErrorName"):
            cuda.cuGetErrorName(status, ctypes.byref(name))
        said = name.value.decode(errors="replace") if name.value else f"error {status}"
        raise DeviceError(
            f"{function} of the CUDA driver fails with {said}: check the driver with nvidia-smi."
        )
