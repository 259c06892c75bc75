"""Finds the NVIDIA GPUs that the CUDA driver library and NVML both see, without CuPy.

The CUDA driver library decides which GPUs ``CUDA_VISIBLE_DEVICES`` makes visible, and in which
order. `visible_gpus` explains its decision, and stands in for it where it is missing. It follows
the CUDA programming guide, "CUDA Environment Variables", and for what the guide leaves open
(repetitions, mixed kinds of entries) what PyTorch found out about the driver
(``torch/cuda/__init__.py``, ``_parse_visible_devices``).
"""

from __future__ import annotations

import contextlib
import ctypes
import re
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pytest_gpuenergy.devices.nvml import GuardedNvml, gpu_name, load_nvml, printable_text
from pytest_gpuenergy.support import DeviceError, InputError

VISIBLE, ORDER = "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"


@dataclass(frozen=True)
class VisibleGpus:
    """The UUIDs of the GPUs that are visible to CUDA, device 0 first.

    ``remark`` is a clause that says which part of the variable has no effect or hides GPUs, and
    why.
    """

    uuids: tuple[str, ...]
    remark: str | None = None


def visible_gpus(environment: Mapping[str, str], gpus: Sequence[tuple[str, str]]) -> VisibleGpus:
    """Return the GPUs that the environment makes visible to CUDA.

    Args:
        environment: the environment variables.
        gpus: the UUID and name of every GPU in NVML's order, which is that of the PCI addresses.

    Raises:
        InputError: CUDA puts the fastest GPU first, and only CUDA knows which GPU that is.
    """
    value = environment.get(VISIBLE)
    if value is None:
        return VisibleGpus(_in_cudas_order(environment, gpus))
    if not value.strip():
        return VisibleGpus((), f"{VISIBLE} is empty, which hides every GPU")
    words = [word.strip() for word in value.split(",")]
    if words[0].startswith("MIG-"):
        return VisibleGpus(
            (), f"{VISIBLE} names the MIG instance {words[0]}, which has no power sensor of its own"
        )
    numbers: list[int | None]
    if words[0].startswith("GPU-"):
        ordered = tuple(uuid for uuid, _ in gpus)
        numbers = []
        for word in words:  # the beginning of one UUID
            found = [k for k, uuid in enumerate(ordered) if uuid.startswith(word)]
            numbers.append(found[0] if word.startswith("GPU-") and len(found) == 1 else None)
    else:
        ordered = _in_cudas_order(environment, gpus)
        # CUDA reads "1gpu" as 1, and "-1" as no GPU.
        matches = [re.match(r"\+?([0-9]{1,9})", word) for word in words]
        numbers = [int(match[1]) if match else None for match in matches]
    seen: list[int] = []
    for word, number in zip(words, numbers, strict=True):
        if number is None or number >= len(ordered):
            remark = f"{VISIBLE} has {word!r}, which is not a GPU here: CUDA stops reading there"
            return VisibleGpus(tuple(ordered[k] for k in seen), remark)
        if number in seen:
            return VisibleGpus((), f"{VISIBLE} names a GPU twice, which hides every GPU")
        seen.append(number)
    return VisibleGpus(tuple(ordered[k] for k in seen))


def _in_cudas_order(
    environment: Mapping[str, str], gpus: Sequence[tuple[str, str]]
) -> tuple[str, ...]:
    if environment.get(ORDER) != "PCI_BUS_ID" and len({name for _, name in gpus}) > 1:
        raise InputError(
            "The GPUs here differ, and only CUDA knows which of them is device 0: set "
            f"{ORDER}=PCI_BUS_ID, or name GPUs by UUID in {VISIBLE}."
        )
    return tuple(uuid for uuid, _ in gpus)


_CUDA_SUCCESS = 0


@dataclass(frozen=True)
class FoundGpu:
    """A usable GPU.

    Attributes:
        ordinal: CUDA's number of the GPU, subject to ``CUDA_VISIBLE_DEVICES``.
        uuid: the UUID that NVML reports.
        name: the name that NVML reports.
        handle: NVML's handle of the GPU.
    """

    ordinal: int
    uuid: str
    name: str
    handle: Any


def find_gpus() -> tuple[GuardedNvml, list[FoundGpu]]:
    """Return NVML and every GPU visible to CUDA, in CUDA's order.

    Raises:
        DeviceError: there is no driver, or NVML and CUDA disagree.
    """
    nvml = load_nvml()
    found = []
    for ordinal, gpu in enumerate(cuda_uuids()):
        try:
            handle = nvml.nvmlDeviceGetHandleByUUID(gpu.encode())
        except nvml.NVMLError as error:
            message = (
                f"CUDA sees {gpu} but NVML does not ({error}): check the driver with nvidia-smi."
            )
            with contextlib.suppress(nvml.NVMLError):
                nvml.nvmlDeviceGetHandleByUUID(gpu.replace("GPU-", "MIG-", 1).encode())
                message = (
                    f"CUDA device {ordinal} is a MIG instance, which has no power sensor of its "
                    "own: name a whole GPU in CUDA_VISIBLE_DEVICES."
                )
            raise DeviceError(message) from None
        try:
            found.append(FoundGpu(ordinal, gpu, gpu_name(nvml, handle), handle))
        except nvml.NVMLError as error:
            raise DeviceError(
                f"{gpu} does not answer NVML ({error}): see nvidia-smi and dmesg."
            ) from None
    return nvml, found


def nvml_uuids(nvml: GuardedNvml) -> list[tuple[str, str]]:
    """Return the UUID and name of every GPU visible to NVML, in NVML's order.

    Raises:
        DeviceError: NVML fails.
    """
    try:
        handles = [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(nvml.nvmlDeviceGetCount())]
        return [
            (printable_text(nvml.nvmlDeviceGetUUID(handle)), gpu_name(nvml, handle))
            for handle in handles
        ]
    except nvml.NVMLError as error:
        raise DeviceError(f"NVML fails ({error}): check the driver with nvidia-smi.") from None


def cuda_uuids() -> list[str]:
    """Return the UUIDs of the GPUs visible to CUDA, in CUDA's order and NVML's format.

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
    """Return whether this process has a GPU's primary context, which CuPy and PyTorch create.

    Args:
        ordinal: CUDA's number of a GPU found by `find_gpus`.

    Raises:
        DeviceError: the driver fails.
    """
    cuda = ctypes.CDLL("libcuda.so.1")
    device, flags, active = ctypes.c_int(), ctypes.c_uint(), ctypes.c_int()
    _call(cuda, "cuDeviceGet", ctypes.byref(device), ordinal)
    _call(cuda, "cuDevicePrimaryCtxGetState", device, ctypes.byref(flags), ctypes.byref(active))
    return bool(active.value)


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
        description = name.value.decode(errors="replace") if name.value else f"error {status}"
        raise DeviceError(
            f"{function} of the CUDA driver fails with {description}: check the driver with "
            "nvidia-smi."
        )
