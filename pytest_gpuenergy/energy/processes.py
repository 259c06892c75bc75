"""Other people's processes on a card, told from our own."""

from __future__ import annotations

import os
from pathlib import Path

from pytest_gpuenergy.devices.device import Device

_INITIAL_NAMESPACE = "pid:[4026531836]"  # PROC_PID_INIT_INO, linux/proc_ns.h


def processes_on(device: Device) -> frozenset[int]:
    """Processes that hold a CUDA context on the device, by NVML's numbers; none if it is silent."""
    nvml = device.nvml
    try:
        running = nvml.nvmlDeviceGetComputeRunningProcesses(device.handle)
    except nvml.NVMLError:
        return frozenset()
    return frozenset(int(process.pid) for process in running)


class ProcessWatch:
    """Notices whoever else uses a card, from the moment it is made, which is before any kernel.

    The driver numbers processes as the host does. In a container our own have other numbers than
    the ones we know; there, as many as came when ours came to the card are taken for them.

    Args:
        device: the card.
        same_numbers: whether the driver's numbers are ours; found out when None.
    """

    def __init__(self, device: Device, *, same_numbers: bool | None = None) -> None:
        self._device = device
        self._same_numbers = _in_initial_namespace() if same_numbers is None else same_numbers
        self._same_numbers = self._same_numbers or device.emulated
        self._accounted: frozenset[int] = frozenset()  # of ours, by our numbers
        self._taken: frozenset[int] = frozenset()  # for them, by the driver's
        self._at_start: frozenset[int] = frozenset()
        self._at_start = self.strangers()

    def strangers(self) -> frozenset[int]:
        """Processes on the card that are not ours; call it while a kernel of ours is loaded."""
        ours, listed = self._device.processes, processes_on(self._device)
        others = listed - ours - {os.getpid()}
        if self._same_numbers or others != listed:
            return others
        new, came = ours - self._accounted, others - self._at_start - self._taken
        if new and len(new) == len(came):
            self._accounted |= new
            self._taken |= came
        return others - self._taken


def _in_initial_namespace() -> bool:
    try:
        return str(Path("/proc/self/ns/pid").readlink()) == _INITIAL_NAMESPACE
    except OSError:
        return False
