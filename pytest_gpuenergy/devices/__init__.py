"""Where kernels run: a real GPU through CuPy and NVML, or an emulated one."""

from pytest_gpuenergy.devices.arena import Arena
from pytest_gpuenergy.devices.device import Clock, Device, Repeater, Timeline, Work

__all__ = ["Arena", "Clock", "Device", "Repeater", "Timeline", "Work"]
