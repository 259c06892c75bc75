"""Restores power limits that earlier runs left changed, on any GPU of the machine."""

from __future__ import annotations

import contextlib

from pytest_gpuenergy.control.lease import restore_leftover
from pytest_gpuenergy.control.lease_record import dead_run_uuids, run_uuids
from pytest_gpuenergy.devices import Gpu, gpu_lock
from pytest_gpuenergy.opening import nvml_gpu, open_emulated, open_recorded
from pytest_gpuenergy.support import DeviceError, SetpointError


def restore_leftovers(like: Gpu, *, but: str | None = None) -> list[str]:
    """Restore what earlier runs left changed, except on GPUs in use: their runs restore it first.

    Args:
        like: a GPU of the kind to restore, real or emulated.
        but: UUID of a GPU to leave alone.

    Returns:
        For each GPU, a sentence that says what was done, or why it could not be done.
    """
    said: list[str] = []
    for uuid in run_uuids():
        with contextlib.ExitStack() as stack:
            try:
                gpu = None if uuid == but else _opened(uuid, like, stack)
                if gpu is None:
                    continue
                stack.enter_context(gpu_lock(gpu, wait_s=0))
            except DeviceError:  # in use, or no longer there
                continue
            try:
                said += filter(None, [restore_leftover(gpu)])
            except SetpointError as error:
                said.append(str(error))
    return said


def restore_dead_runs() -> list[str]:
    """Restore what runs whose process has ended left changed, on any GPU, real or emulated.

    Returns:
        For each GPU, a sentence that says what was done, or why it could not be done.
    """
    said: list[str] = []
    for uuid in dead_run_uuids():
        try:
            with open_recorded(uuid) as gpu, gpu_lock(gpu, wait_s=0):
                said += filter(None, [restore_leftover(gpu)])
        except DeviceError as error:
            said.append(str(error))
    return said


def _opened(uuid: str, like: Gpu, stack: contextlib.ExitStack) -> Gpu | None:
    device = open_emulated(uuid)
    if device is not None:
        stack.callback(device.close)
        return device if like.emulated else None
    return None if like.emulated else nvml_gpu(like.nvml, uuid)
