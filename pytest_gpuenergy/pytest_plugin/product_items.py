"""Matrix products: every contender on the same inputs, verified and measured alike.

``bench/test_gemm.py`` is this test, and ``gpuenergy gemm perf`` runs it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pytest_gpuenergy.support import GpuEnergyError, InputError, UnavailableError
from pytest_gpuenergy.tuners import CONTENDERS

if TYPE_CHECKING:
    from pytest_gpuenergy.kernels import AnyKernel
    from pytest_gpuenergy.pytest_plugin.energy_benchmark import EnergyBenchmark
    from pytest_gpuenergy.pytest_plugin.products import MadeKernels
    from pytest_gpuenergy.tuners import Bench
    from pytest_gpuenergy.workloads import Gemm

__all__ = ["test_gemm"]


def _kernel_of(contender: str, gemm: Gemm, bench: Bench, made: MadeKernels) -> AnyKernel:
    """The contender's kernel; skips the item if it has none here, fails it on errors.

    It is made once for all power caps, unless candidates have failed under one of them.
    """
    key = (contender, gemm, bench.gpu.uuid)
    found = made.get(key)
    if found is None:
        try:
            found = made[key] = CONTENDERS[contender](gemm, bench)
        except InputError as error:
            found = made[key] = error
        except GpuEnergyError as error:
            found = error
    if isinstance(found, UnavailableError):
        pytest.skip(str(found))
    if isinstance(found, GpuEnergyError):
        pytest.fail(str(found), pytrace=False)
    return found


@pytest.mark.usefixtures("powercap")
def test_gemm(
    gemm_workload: Gemm,
    contender: str,
    gemm_bench: Bench,
    made_kernels: MadeKernels,
    energy_benchmark: EnergyBenchmark,
) -> None:
    """One contender's kernel for one product under one power cap."""
    kernel = _kernel_of(contender, gemm_workload, gemm_bench, made_kernels)
    measurement = energy_benchmark(kernel, workload=gemm_workload, label=contender)
    assert measurement.outcome == "correct"
