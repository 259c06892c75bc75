"""Every shipped Conv2D kernel under every power cap."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from conftest import ShippedKernel
    from pytest_gpuenergy.pytest_plugin.energy_benchmark import EnergyBenchmark


@pytest.mark.usefixtures("powercap")
def test_conv2d(shipped_kernel: ShippedKernel, energy_benchmark: EnergyBenchmark) -> None:
    measurement = energy_benchmark(shipped_kernel.kernel, workload=shipped_kernel.workload)
    assert measurement.outcome == "correct"
