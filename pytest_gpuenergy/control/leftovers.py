"""Power limits that runs which are over have left behind, on whatever GPU of the machine."""

from __future__ import annotations

import contextlib

from pytest_gpuenergy.control.lease import restore_leftover
from pytest_gpuenergy.control.lease_record import dead_run_uuids, run_uuids
from pytest_gpuenergy.devices.gpu import Gpu
from pytest_gpuenergy.devices.lock import gpu_lock
from pytest_gpuenergy.devices.select import nvml_gpu, open_emulated, open_recorded
from pytest_gpuenergy.support.errors import DeviceError, SetpointError


def restore_leftovers(like: Gpu, *, but: str | None = None) -> list[str]:
    """Put back what can be put back; a GPU in use is left to its user, who begins with that.

    Args:
        like: a GPU of the kind that is looked at, real or emulated.
        but: UUID of one that is left alone.

    Returns:
        A sentence for each GPU of what was done, or why it could not be.
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
    """Put back what runs whose process has ended left behind, on any GPU, real or emulated.

    Returns:
        A sentence for each GPU of what was done, or why it could not be.
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
