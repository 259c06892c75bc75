"""From the words of ``--gpu-device`` to a device."""

from __future__ import annotations

import re
from dataclasses import dataclass

from pytest_gpuenergy.devices.device import Device
from pytest_gpuenergy.devices.discovery import FoundGpu, find_gpus
from pytest_gpuenergy.errors import DeviceError, InputError

_EMULATED = re.compile(r"emulated(?::(?P<profile>[A-Za-z0-9_-]+?))?(?:x(?P<count>[0-9]{1,2}))?")
_CHOICES = "auto, an index such as 0, a UUID such as GPU-..., or emulated[:PROFILE][xN]"


@dataclass(frozen=True)
class EmulatedSpec:
    """``emulated:PROFILExN``."""

    profile: str
    count: int


def check_spec(spec: str) -> EmulatedSpec | None:
    """What ``spec`` says of an emulated GPU; None when it speaks of a real one.

    Raises:
        InputError: it is not understood, or asks for an unknown profile.
    """
    match = _EMULATED.fullmatch(spec)
    if match is None:
        if spec == "auto" or spec.isdecimal() or spec.startswith("GPU-"):
            return None
        raise InputError(f"--gpu-device {spec!r} is not understood: give {_CHOICES}.")
    from pytest_gpuenergy.devices.emulated.profiles import find_profile

    profile = match["profile"] or "h200"
    find_profile(profile)
    count = int(match["count"] or 1)
    if not 1 <= count <= 16:
        raise InputError(f"--gpu-device {spec!r} asks for {count} GPUs: choose 1 to 16.")
    return EmulatedSpec(profile, count)


def open_device(spec: str = "auto", *, index: int = 0) -> Device:
    """The device that ``spec`` names.

    Args:
        spec: the value of ``--gpu-device``; ``auto`` takes the first usable NVIDIA GPU, and the
            emulated one where there is none.
        index: which of the GPUs that CUDA sees (``auto``), or of those of ``emulated:...xN``: a
            worker of pytest-xdist gives its number. Beyond the last one they come again.

    Raises:
        InputError: no such device; nothing else is chosen in its place.
        DeviceError: the device is there and cannot be used.
    """
    emulated = check_spec(spec)
    if emulated is None:
        try:
            nvml, gpus = find_gpus()
        except DeviceError as error:
            if spec != "auto":
                raise InputError(
                    f"--gpu-device {spec} names an NVIDIA GPU, and none can be used here: {error}"
                ) from None
            gpus = []
        if gpus:
            from pytest_gpuenergy.devices.cuda import CudaDevice

            return CudaDevice(nvml, _choose(spec, gpus, index))
        if spec != "auto":
            raise InputError(f"--gpu-device {spec}: CUDA sees no GPU here; use emulated.")
        emulated = EmulatedSpec("h200", 1)
    from pytest_gpuenergy.devices.emulated.device import EmulatedDevice
    from pytest_gpuenergy.devices.emulated.profiles import find_profile

    return EmulatedDevice(find_profile(emulated.profile), index % emulated.count)


def _choose(spec: str, gpus: list[FoundGpu], index: int) -> FoundGpu:
    if spec == "auto":
        return gpus[index % len(gpus)]
    if spec.isdecimal():
        if int(spec) < len(gpus):
            return gpus[int(spec)]
        raise InputError(
            f"--gpu-device {spec}: CUDA sees {len(gpus)} GPU(s) here, numbered from 0."
        )
    for gpu in gpus:
        if gpu.uuid.startswith(spec):
            return gpu
    known = ", ".join(gpu.uuid for gpu in gpus)
    raise InputError(f"--gpu-device {spec}: no such GPU here; there is {known}.")
