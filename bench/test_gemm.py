"""Matrix products: every contender on the same inputs, verified and measured alike.

pytest bench/test_gemm.py --gemm "MNK=4096" -k "nn and template" --powercap current
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pytest_gpuenergy.gemm.card import card_of
from pytest_gpuenergy.gemm.templates import ranked
from pytest_gpuenergy.support.errors import GpuEnergyError, UnavailableError
from pytest_gpuenergy.tvm.generators import require_space
from pytest_gpuenergy.tvm.records import records_of

if TYPE_CHECKING:
    from conftest import Bench
    from pytest_gpuenergy.kernels.kernel import AnyKernel
    from pytest_gpuenergy.pytest_plugin.energy_benchmark import EnergyBenchmark
    from pytest_gpuenergy.workloads import Gemm


def template(gemm: Gemm, bench: Bench) -> AnyKernel:
    """Our template, with the parameters that its cost estimate puts first."""
    return ranked(gemm, card_of(bench.gpu))[0].kernel(gemm)


def tvm(gemm: Gemm, bench: Bench) -> AnyKernel:
    """The best kernel of a search with TVM."""
    require_space(gemm, "all", bench.gpu.architecture)
    file = records_of(bench.records, gemm, bench.gpu.name)
    return bench.store.kernel(file, file.ranks[0])


CONTENDERS = {"template": template, "tvm": tvm}
"""Functions of a product and a `Bench`, by their names in items.

They raise `UnavailableError` if they have no kernel here, and the item is skipped; any other error
fails it.
"""


def kernel_of(contender: str, gemm: Gemm, bench: Bench) -> AnyKernel:
    """The contender's kernel; skips the item if it has none here, fails it on errors."""
    try:
        return CONTENDERS[contender](gemm, bench)
    except UnavailableError as error:
        pytest.skip(str(error))
    except GpuEnergyError as error:
        problem = str(error)
    pytest.fail(problem, pytrace=False)


@pytest.mark.usefixtures("powercap")
@pytest.mark.parametrize("contender", CONTENDERS)
def test_gemm(
    gemm_workload: Gemm, contender: str, gemm_bench: Bench, energy_benchmark: EnergyBenchmark
) -> None:
    kernel = kernel_of(contender, gemm_workload, gemm_bench)
    measurement = energy_benchmark(kernel, workload=gemm_workload, label=contender)
    assert measurement.outcome == "correct"
