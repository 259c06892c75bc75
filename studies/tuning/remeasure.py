"""Verifies and measures the kernels that tuners found, all in the same way as a bench does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pytest_gpuenergy.control import enforced_setpoint
from pytest_gpuenergy.devices import gpu_lock
from pytest_gpuenergy.engine import Harness, Subject
from pytest_gpuenergy.opening import open_device
from pytest_gpuenergy.record import Measurement
from pytest_gpuenergy.support import InputError, KernelFault, convert, plain
from pytest_gpuenergy.tuners import KernelStore
from pytest_gpuenergy.workloads import Workload

LOCK_WAIT_S = 10.0


def measure_all(
    device: str, workload: Workload, contenders: Mapping[str, Sequence[dict[str, Any]]]
) -> dict[str, list[dict[str, Any]]]:
    """Measure the kernels from `tuner_process.contenders`, by tuner.

    The tuners alternate, so that a card that warms up affects them equally. A kernel that is wrong
    or cannot be built has an ``outcome`` and ``error`` but no figures.

    Raises:
        InputError: there is no contender at all.
        DeviceError: the GPU does not respond.
    """
    if not any(contenders.values()):
        raise InputError(f"No tuner has found a kernel of {workload.name} to measure.")
    measured: dict[str, list[dict[str, Any]]] = {tuner: [] for tuner in contenders}
    with (
        KernelStore() as store,
        open_device(device) as card,
        gpu_lock(card, wait_s=LOCK_WAIT_S),
    ):
        harness = Harness(card)
        for place in range(max(map(len, contenders.values()))):
            for tuner, found in contenders.items():
                if place >= len(found):
                    continue
                label = f"{tuner}-{place + 1}"
                subject = Subject(
                    f"{workload.name}-{label}", label, enforced=enforced_setpoint(card)
                )
                try:
                    kernel = store.lower(workload, found[place]["record"]).result()
                except KernelFault as fault:
                    measured[tuner].append({"outcome": fault.outcome, "error": str(fault)})
                    continue
                measured[tuner].append(plain(harness.measure_kernel(kernel, workload, subject)))
    return measured


def best_of(measured: Sequence[dict[str, Any]], figure: str) -> Measurement | None:
    """The correct kernel with the smallest ``figure``, such as ``time_ms``."""
    known = [convert(one, Measurement) for one in measured if one.get("energy_mj") is not None]
    return min(known, key=lambda m: float(getattr(m, figure)), default=None)
