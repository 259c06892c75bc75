"""Is the energy of a launch right? Against 12 s of steady running, on the same card, in one run.

Collected only when this path is named:

    pytest bench/validation --powercap current
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pytest_gpuenergy.devices.device import Work
from pytest_gpuenergy.energy.meter import EnergyMeter, MeterSettings
from pytest_gpuenergy.verification import arenas_for

if TYPE_CHECKING:
    from conftest import ShippedKernel
    from pytest_gpuenergy.benchmark import EnergyBenchmark
    from pytest_gpuenergy.devices.device import Device

ENERGY_TOLERANCE = 0.01
TIME_TOLERANCE = 0.005
REFERENCE = MeterSettings(
    warmup_s=2.0, trial_s=3.0, min_trials=4, max_measure_s=12.0, relative_half_width=0.0
)


@pytest.mark.shipped(cases=("case1", "case4", "case5", "case7"), kernels="1,25")
def test_energy_of_a_launch(
    shipped_kernel: ShippedKernel,
    energy_benchmark: EnergyBenchmark,
    gpu: Device,
) -> None:
    kernel, workload = shipped_kernel.kernel, shipped_kernel.workload
    measured = energy_benchmark(kernel, workload=workload)
    with arenas_for(workload, seed=0) as arenas:
        work = Work(workload.flops, workload.bytes_moved)
        with gpu.repeat(kernel, arenas, {}, work=work, timeout_s=60) as repeater:
            reference = EnergyMeter(gpu, REFERENCE).measure(repeater)
    assert measured.energy_mj is not None
    assert measured.time_ms is not None
    energy_error = measured.energy_mj / reference.energy_mj.mean - 1
    time_error = measured.time_ms / reference.time_ms.mean - 1
    print(
        f"\n{workload.name}-{measured.kernel.label}: energy {measured.energy_mj:.4f} mJ, "
        f"reference {reference.energy_mj.mean:.4f} mJ at {reference.power_w:.1f} W, "
        f"error {energy_error:+.2%}; time {measured.time_ms * 1e3:.3f} us, "
        f"error {time_error:+.2%}; "
        f"{measured.wall_s:.2f} s"
    )
    assert abs(energy_error) <= ENERGY_TOLERANCE
    assert abs(time_error) <= TIME_TOLERANCE
