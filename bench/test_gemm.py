"""Matrix products: every contender on the same inputs, verified and measured alike.

pytest bench/test_gemm.py --gemm "MNK=4096" -k "nn and template" --powercap current
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pytest_gpuenergy.gemm.card import card_of
from pytest_gpuenergy.gemm.templates import ranked
from pytest_gpuenergy.support.errors import GpuEnergyError

if TYPE_CHECKING:
    from pytest_gpuenergy.devices.device import Device
    from pytest_gpuenergy.kernels.kernel import AnyKernel
    from pytest_gpuenergy.pytest_plugin.energy_benchmark import EnergyBenchmark
    from pytest_gpuenergy.workloads import Gemm


def template(gemm: Gemm, gpu: Device) -> AnyKernel:
    """Our template, with the parameters that its cost estimate puts first."""
    return ranked(gemm, card_of(gpu))[0].kernel(gemm)


CONTENDERS = {"template": template}


@pytest.mark.usefixtures("powercap")
@pytest.mark.parametrize("contender", CONTENDERS)
def test_gemm(
    gemm_workload: Gemm, contender: str, gpu: Device, energy_benchmark: EnergyBenchmark
) -> None:
    try:
        kernel = CONTENDERS[contender](gemm_workload, gpu)
    except GpuEnergyError as error:
        pytest.skip(str(error))
    measurement = energy_benchmark(kernel, workload=gemm_workload, label=contender)
    assert measurement.outcome == "correct"
