"""Notices processes of others on the GPU, also from a container."""

from __future__ import annotations

import os
from pathlib import Path

from pytest_gpuenergy.devices import Device

_INITIAL_NAMESPACE = "pid:[4026531836]"  # PROC_PID_INIT_INO, linux/proc_ns.h


def cuda_process_ids(device: Device) -> frozenset[int]:
    """Return NVML's IDs of the processes with a CUDA context on the device; empty if unknown."""
    nvml = device.nvml
    try:
        running = nvml.nvmlDeviceGetComputeRunningProcesses(device.handle)
    except nvml.NVMLError:
        return frozenset()
    return frozenset(int(process.pid) for process in running)


class ProcessWatch:
    """Notices other users of a card. It must be created before the first kernel runs.

    The driver reports the host's process IDs, which in a container differ from ours. If we are in a
    container, and n of our processes start to use the card while n new IDs appear on it, the new
    IDs are taken for ours.

    Args:
        device: the card.
        same_pids: whether the driver's process IDs are the same as ours; None to detect it.
    """

    def __init__(self, device: Device, *, same_pids: bool | None = None) -> None:
        self._device = device
        self._same_pids = _in_initial_namespace() if same_pids is None else same_pids
        self._same_pids = self._same_pids or device.emulated
        self._our_matched_pids: frozenset[int] = frozenset()
        self._host_pids_assumed_ours: frozenset[int] = frozenset()
        # Empty during the first call: what is on the card already counts as new then, so that
        # processes of ours that are older than the watch are matched too.
        self._foreign_at_start: frozenset[int] = frozenset()
        self._foreign_at_start = self.foreign_processes()

    def foreign_processes(self) -> frozenset[int]:
        """Return the foreign processes on the card.

        Call this while one of our kernels is loaded.
        """
        our_pids, listed = self._device.processes, cuda_process_ids(self._device)
        others = listed - our_pids - {os.getpid()}
        if self._same_pids or others != listed:  # in the latter case, the driver translates them
            return others
        new_pids = our_pids - self._our_matched_pids
        new_host_pids = others - self._foreign_at_start - self._host_pids_assumed_ours
        if new_pids and len(new_pids) == len(new_host_pids):
            self._our_matched_pids |= new_pids
            self._host_pids_assumed_ours |= new_host_pids
        return others - self._host_pids_assumed_ours


def _in_initial_namespace() -> bool:
    """Return whether this process is in the host's own PID namespace, not in a container's."""
    try:
        return str(Path("/proc/self/ns/pid").readlink()) == _INITIAL_NAMESPACE
    except OSError:
        return False
