"""Confirms the kernels that a tuner keeps: verifies them, and measures them as a bench does."""

from __future__ import annotations

from collections.abc import Callable

from pytest_gpuenergy.engine import Station, confirm, verify_timed
from pytest_gpuenergy.kernels import Kernel
from pytest_gpuenergy.tuning.records import Measured
from pytest_gpuenergy.workloads import Workload

Confirm = Callable[[Kernel, Workload], Measured | None]
"""Verifies a kernel and measures it; raises KernelFault if it fails, returns None if there are no
figures."""


def confirm_with(station: Station, *, energy: bool, tell: Callable[[str], None]) -> Confirm:
    """A function that confirms kernels on the claimed GPU, under its present power limit.

    Args:
        station: the claimed GPU.
        energy: whether time, power and energy are measured.
        tell: called with a line about a kernel that is correct but has no figures.
    """
    harness = station.harness()

    def confirmed(kernel: Kernel, workload: Workload) -> Measured | None:
        if not energy:
            verify_timed(station.device, kernel, workload)
            return None
        found = confirm(station.device, harness, kernel, workload)
        if found.time_ms is None or found.power_w is None or found.energy_mj is None:
            tell(f"{workload.name}: no energy for {kernel.short_digest}: {found.error}")
            return None
        limit_w = found.enforced_power_limit_w
        if limit_w is None or found.locked_sm_clock_max_mhz is not None:
            return None  # the figures of a record file are those of a card that is not locked
        return Measured(found.time_ms, found.power_w, found.energy_mj, limit_w)

    return confirmed
