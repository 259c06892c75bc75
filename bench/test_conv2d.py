"""Every bundled Conv2D kernel under every power cap, or contenders in convolutions.

pytest bench/test_conv2d.py -k case1 --powercap 3
pytest bench/test_conv2d.py --contenders template,cudnn --case case2 --powercap current
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pytest_gpuenergy.pytest_plugin import test_conv2d_contenders

if TYPE_CHECKING:
    from conftest import BundledKernel
    from pytest_gpuenergy import EnergyBenchmark


__all__ = ["test_conv2d", "test_conv2d_contenders"]


@pytest.mark.usefixtures("powercap")
def test_conv2d(bundled_kernel: BundledKernel, energy_benchmark: EnergyBenchmark) -> None:
    measurement = energy_benchmark(bundled_kernel.kernel, workload=bundled_kernel.workload)
    assert measurement.outcome == "correct"
