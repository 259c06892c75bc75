"""A GPU as NVML alone knows it: enough to read and set its power limit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pytest_gpuenergy.devices.device import Clock, Device


@dataclass(frozen=True)
class NvmlGpu:
    """A GPU whose power limit can be seen to where neither CUDA nor CuPy works.

    The attributes mean what they mean of a `Device`.
    """

    nvml: Any
    handle: Any
    name: str
    uuid: str
    clock: Clock
    emulated: bool = False


Gpu = Device | NvmlGpu
"""What has a power limit."""
