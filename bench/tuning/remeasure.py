"""The kernels that tuners found, proven and measured as in a bench: the same way for all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pytest_gpuenergy.control.limits import enforced_setpoint
from pytest_gpuenergy.devices.lock import gpu_lock
from pytest_gpuenergy.devices.select import open_device
from pytest_gpuenergy.engine.harness import Harness, Subject
from pytest_gpuenergy.record.measurement import Measurement
from pytest_gpuenergy.support.errors import InputError, KernelFault
from pytest_gpuenergy.support.json_input import convert
from pytest_gpuenergy.support.json_output import plain
from pytest_gpuenergy.tvm.store import KernelStore
from pytest_gpuenergy.workloads import Workload

LOCK_WAIT_S = 10.0


def measure_all(
    device: str, workload: Workload, contenders: Mapping[str, Sequence[dict[str, Any]]]
) -> dict[str, list[dict[str, Any]]]:
    """Measure what `tuner_process.contenders` gave, by tuner.

    The tuners take turns, so that a card that warms up treats them alike. A kernel that is wrong
    or cannot be made has its ``outcome`` and ``error`` and no figures.

    Raises:
        InputError: there is no contender at all.
        DeviceError: the GPU does not answer.
    """
    if not any(contenders.values()):
        raise InputError(f"No tuner has found a kernel of {workload.name} to be measured.")
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
    """The right kernel with the smallest ``figure``, such as ``time_ms``."""
    known = [convert(one, Measurement) for one in measured if one.get("energy_mj") is not None]
    return min(known, key=lambda m: float(getattr(m, figure)), default=None)
