"""Cards whose power limit the tests change."""

from __future__ import annotations

import os
import signal
import warnings

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
    """Run ``body``, with a ``lease`` of the ``device``, in a process that ends by SIGKILL.

    It is a fork, because to import the package takes ten times as long as what is tested.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # threads, which the child lacks
        child = os.fork()
    if not child:
        try:
            signal.alarm(60)
            exec(_CHILD + body + DIE, {})
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
