"""Foreign processes on a card, as distinct from our own."""

from __future__ import annotations

import os
from pathlib import Path

from pytest_gpuenergy.devices import Device

_INITIAL_NAMESPACE = "pid:[4026531836]"  # PROC_PID_INIT_INO, linux/proc_ns.h


def processes_on(device: Device) -> frozenset[int]:
    """NVML's IDs of the processes with a CUDA context on the device; empty if it lists none."""
    nvml = device.nvml
    try:
        running = nvml.nvmlDeviceGetComputeRunningProcesses(device.handle)
    except nvml.NVMLError:
        return frozenset()
    return frozenset(int(process.pid) for process in running)


class ProcessWatch:
    """Notices other users of a card, from its creation on, which must precede the first kernel.

    The driver reports the host's process IDs, which in a container differ from the IDs we see. In
    that case, when some of our processes start to use the card and as many IDs appear on it, these
    are assumed to be ours.

    Args:
        device: the card.
        same_numbers: whether the driver's process IDs are the same as ours; None: detect.
    """

    def __init__(self, device: Device, *, same_numbers: bool | None = None) -> None:
        self._device = device
        self._same_numbers = _in_initial_namespace() if same_numbers is None else same_numbers
        self._same_numbers = self._same_numbers or device.emulated
        self._accounted: frozenset[int] = frozenset()  # of our processes, by our IDs
        self._taken: frozenset[int] = frozenset()  # assumed to be these, by the driver's IDs
        self._at_start: frozenset[int] = frozenset()
        self._at_start = self.strangers()

    def strangers(self) -> frozenset[int]:
        """Processes on the card that are not ours. Call this while a kernel of ours is loaded."""
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
