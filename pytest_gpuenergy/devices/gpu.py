"""A GPU known to NVML alone: enough to read and set its power limit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pytest_gpuenergy.devices.device import Clock, Device


@dataclass(frozen=True)
class NvmlGpu:
    """A GPU whose power limit can be managed even where neither CUDA nor CuPy works.

    The attributes are those of a `Device`.
    """

    nvml: Any
    handle: Any
    name: str
    uuid: str
    clock: Clock
    emulated: bool = False


Gpu = Device | NvmlGpu
"""Anything with a power limit."""
