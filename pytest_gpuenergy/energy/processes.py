"""Other people's processes on a card, told from our own."""

from __future__ import annotations

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
    the ones we know; there, the process that came with our worker is taken for it, once for each
    worker.

    Args:
        device: the card.
        same_numbers: whether the driver's numbers are ours; found out when None.
    """

    def __init__(self, device: Device, *, same_numbers: bool | None = None) -> None:
        self._device = device
        self._same_numbers = _in_initial_namespace() if same_numbers is None else same_numbers
        self._same_numbers = self._same_numbers or device.emulated
        self._at_start = processes_on(device)
        self._taken_for: dict[frozenset[int], frozenset[int]] = {}

    def strangers(self) -> frozenset[int]:
        """Processes on the card that are not ours; call it while a kernel of ours is loaded."""
        known = self._device.processes
        listed = processes_on(self._device)
        others = listed - known
        if self._same_numbers or others != listed:
            return others
        came = others - self._at_start
        if known not in self._taken_for and len(came) == 1:
            self._taken_for[known] = came
        return others - self._taken_for.get(known, frozenset())


def _in_initial_namespace() -> bool:
    try:
        return str(Path("/proc/self/ns/pid").readlink()) == _INITIAL_NAMESPACE
    except OSError:
        return False
