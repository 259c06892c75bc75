"""Chooses and opens the device that ``--gpu-device`` names."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass

from pytest_gpuenergy import devices, emulator
from pytest_gpuenergy.support import DeviceError, InputError

_EMULATED = re.compile(r"emulated(?::(?P<profile>[A-Za-z0-9_-]+?))?(?:x(?P<count>[0-9]{1,2}))?")
_MAX_EMULATED = 16
_CHOICES = "auto, an index such as 0, a UUID such as GPU-..., or emulated[:PROFILE][xN]"


@dataclass(frozen=True)
class EmulatedSpec:
    """The emulated GPUs that ``emulated:PROFILExN`` names.

    Attributes:
        profile: the name of the profile.
        count: the number of GPUs.
    """

    profile: str
    count: int


def check_spec(spec: str) -> EmulatedSpec | None:
    """Return the emulated GPUs that ``spec`` names, or None if it names a real GPU.

    Raises:
        InputError: ``spec`` is not understood, or names an unknown profile.
    """
    match = _EMULATED.fullmatch(spec)
    if match is None:
        if spec == "auto" or spec.isdecimal() or spec.startswith("GPU-"):
            return None
        raise InputError(f"--gpu-device {spec!r} is not understood: give {_CHOICES}.")

    profile = match["profile"] or "h200"
    emulator.find_profile(profile)
    count = int(match["count"] or 1)
    if not 1 <= count <= _MAX_EMULATED:
        raise InputError(
            f"--gpu-device {spec!r} asks for {count} GPUs: choose 1 to {_MAX_EMULATED}."
        )
    return EmulatedSpec(profile, count)


def open_device(spec: str = "auto", *, index: int = 0) -> devices.Device:
    """Open the device that ``spec`` names.

    Args:
        spec: the value of ``--gpu-device``; ``auto`` takes the first usable NVIDIA GPU, or the
            emulated GPU if there is none.
        index: the number of the GPU among those visible to CUDA (for ``auto``) or those of
            ``emulated:...xN``, which wraps around; a pytest-xdist worker passes its own number.

    Raises:
        InputError: there is no such device, and no other is chosen in its place.
        DeviceError: the device exists but cannot be used.
    """
    emulated = check_spec(spec)
    if emulated is None:
        try:
            nvml, gpus = devices.find_gpus()
        except DeviceError as error:
            if spec != "auto":
                raise InputError(
                    f"--gpu-device {spec} names an NVIDIA GPU, but none can be used here: {error}"
                ) from None
            gpus = []
        if gpus:
            gpu = gpus[_place(spec, [gpu.uuid for gpu in gpus], index)]
            return _whole(devices.CudaDevice(nvml, gpu))
        if spec != "auto":
            raise InputError(f"--gpu-device {spec}: CUDA sees no GPU here; use emulated.")
        emulated = EmulatedSpec("h200", 1)

    return _whole(
        emulator.EmulatedDevice(emulator.find_profile(emulated.profile), index % emulated.count)
    )


def _whole(device: devices.Device) -> devices.Device:
    """Return ``device``; if it is in MIG mode, close it and raise DeviceError."""
    try:
        mode, _ = device.nvml.nvmlDeviceGetMigMode(device.handle)
    except device.nvml.NVMLError:
        return device  # a card without MIG
    if not mode:
        return device
    device.close()
    raise DeviceError(
        f"{device.name} is in MIG mode, where power is not measured per instance: "
        "use another GPU, or disable MIG."
    )


def count_gpus(spec: str = "auto") -> int:
    """Return how many GPUs `open_device` offers before ``index`` wraps around.

    Raises:
        InputError: ``spec`` is not understood.
    """
    emulated = check_spec(spec)
    if emulated is not None:
        return emulated.count
    if spec != "auto":
        return 1
    try:
        return max(1, len(devices.find_gpus()[1]))
    except DeviceError:
        return 1  # the emulated GPU


@contextmanager
def open_gpu(spec: str = "auto") -> Iterator[devices.Gpu]:
    """Open the GPU that ``spec`` names for its power limit only, without CuPy and CUDA.

    ``spec`` is interpreted as by `open_device`: an index is CUDA's, subject to
    ``CUDA_VISIBLE_DEVICES``, and the GPU is looked up in NVML by its UUID.

    Raises:
        InputError: as `open_device`.
        DeviceError: as `open_device`.
    """
    nvml = None
    if check_spec(spec) is None:
        try:
            nvml = devices.load_nvml()
        except DeviceError as error:
            if spec != "auto":
                raise InputError(f"--gpu-device {spec} names an NVIDIA GPU: {error}") from None
    uuids: Sequence[str] = ()
    if nvml is not None:
        try:
            uuids = devices.cuda_uuids()
        except DeviceError:  # a power limit can be restored without CUDA
            uuids = devices.visible_gpus(os.environ, devices.nvml_uuids(nvml)).uuids
    if nvml is not None and uuids:
        yield nvml_gpu(nvml, uuids[_place(spec, uuids)])
    else:
        with open_device(spec) as device:
            yield device


def open_emulated(uuid: str) -> devices.Device | None:
    """Return the emulated GPU with this UUID; None if there is none."""
    for profile in emulator.PROFILES.values():
        for index in range(_MAX_EMULATED):
            if profile.uuid(index) == uuid:
                return emulator.EmulatedDevice(profile, index)
    return None


def open_recorded(uuid: str) -> AbstractContextManager[devices.Gpu]:
    """Return the GPU with this UUID, real or emulated, whether visible to CUDA or not.

    Raises:
        DeviceError: NVML does not work, or does not know the GPU.
    """
    return open_emulated(uuid) or nullcontext(nvml_gpu(devices.load_nvml(), uuid))


def nvml_gpu(nvml: devices.GuardedNvml, uuid: str) -> devices.NvmlGpu:
    """Return the real GPU with this UUID.

    Raises:
        DeviceError: NVML does not know it.
    """
    try:
        handle = nvml.nvmlDeviceGetHandleByUUID(uuid.encode())
        return devices.NvmlGpu(
            nvml, handle, devices.gpu_name(nvml, handle), uuid, devices.HostClock()
        )
    except nvml.NVMLError as error:
        raise DeviceError(f"NVML has no GPU {uuid} ({error}): see nvidia-smi -L.") from None


def _place(spec: str, uuids: Sequence[str], index: int = 0) -> int:
    """Return the place of the GPU that ``spec`` names; for ``auto``, that of worker ``index``."""
    if spec == "auto":
        return index % len(uuids)
    if spec.isdecimal():
        if int(spec) < len(uuids):
            return int(spec)
        raise InputError(
            f"--gpu-device {spec}: CUDA sees {len(uuids)} GPU(s) here, numbered from 0."
        )
    found = [place for place, uuid in enumerate(uuids) if uuid.startswith(spec)]
    if len(found) == 1:
        return found[0]
    problem = "several GPUs match" if found else "there is no such GPU here"
    raise InputError(f"--gpu-device {spec}: {problem}; choose from {', '.join(uuids)}.")
