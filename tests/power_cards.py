"""Cards whose power limit the tests change."""

from __future__ import annotations

import signal
import subprocess
import sys

from pytest_gpuenergy.devices import GuardedNvml, NvmlGpu
from pytest_gpuenergy.emulator import EmulatedDevice

PRIOR_MW = 450_000
"""The prior limit, which is neither the default nor the greatest limit."""
DIE = "os.kill(os.getpid(), signal.SIGKILL)\n"
_CHILD = """
import os, signal
from pytest_gpuenergy.opening import open_device
from pytest_gpuenergy.control import Lease
from pytest_gpuenergy.control import Setpoint
device = open_device("emulated")
lease = Lease(device)
"""


def as_real(device: EmulatedDevice) -> NvmlGpu:
    """The emulated card, seen as a real one: its limit is written as one writes a real one's."""
    nvml = GuardedNvml(device.nvml)
    return NvmlGpu(nvml, device.handle, device.name, device.uuid, device.clock)


def write(device: EmulatedDevice | NvmlGpu, limit_mw: int) -> None:
    """Set a limit as another program would."""
    nvml = device.nvml
    if isinstance(nvml, GuardedNvml):
        nvml = nvml._module
    nvml.nvmlDeviceSetPowerManagementLimit(device.handle, limit_mw)


def present_mw(device: EmulatedDevice | NvmlGpu) -> int:
    return int(device.nvml.nvmlDeviceGetPowerManagementLimit(device.handle))


def killed(body: str) -> None:
    """Run ``body``, with a ``lease`` of the ``device``, in a process that ends by SIGKILL."""
    died = subprocess.run([sys.executable, "-c", _CHILD + body + DIE], timeout=60, check=False)
    assert died.returncode == -signal.SIGKILL
