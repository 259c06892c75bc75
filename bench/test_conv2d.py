"""Every bundled Conv2D kernel under every power cap."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from conftest import BundledKernel
    from pytest_gpuenergy import EnergyBenchmark


@pytest.mark.usefixtures("powercap")
def test_conv2d(bundled_kernel: BundledKernel, energy_benchmark: EnergyBenchmark) -> None:
    measurement = energy_benchmark(bundled_kernel.kernel, workload=bundled_kernel.workload)
    assert measurement.outcome == "correct"
