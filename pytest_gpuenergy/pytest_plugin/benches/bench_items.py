"""The items of this repository's benches: contenders, replays of models, improved kernels.

The modules ``bench/test_gemm.py``, ``bench/test_conv2d.py``, ``bench/test_replay.py`` and
``bench/test_search.py`` collect these tests, and ``gpuenergy gemm perf`` runs the first one, also
where there is no copy of the benches. Their options and fixtures are in `products`, `replays` and
`searches`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pytest_gpuenergy.support import GpuEnergyError, UnavailableError

if TYPE_CHECKING:
    from pytest_gpuenergy.engine import Replayable
    from pytest_gpuenergy.kernels import AnyKernel
    from pytest_gpuenergy.pytest_plugin.benches.products import ContenderKernels
    from pytest_gpuenergy.pytest_plugin.benches.replays import Bound
    from pytest_gpuenergy.pytest_plugin.benches.searches import ReadyVariant
    from pytest_gpuenergy.pytest_plugin.energy_benchmark import EnergyBenchmark
    from pytest_gpuenergy.tuners import ContenderSetup
    from pytest_gpuenergy.workloads import Conv2d, Gemm


@pytest.mark.usefixtures("powercap")
def test_gemm(
    gemm_workload: Gemm,
    contender: str,
    contender_setup: ContenderSetup,
    contender_kernels: ContenderKernels,
    request: pytest.FixtureRequest,
    energy_benchmark: EnergyBenchmark,
) -> None:
    """Verify and measure one contender's kernel for one product under one power cap."""
    if contender_kernels.has_begun(contender, gemm_workload, contender_setup):
        energy_benchmark.begin(gemm_workload)
    kernel = _make_kernel(contender, gemm_workload, contender_setup, contender_kernels, request)
    measurement = energy_benchmark(kernel, workload=gemm_workload, label=contender)
    assert measurement.outcome == "correct"


@pytest.mark.usefixtures("powercap")
def test_conv2d_contenders(
    bench_workload: Conv2d,
    contender: str,
    contender_setup: ContenderSetup,
    contender_kernels: ContenderKernels,
    request: pytest.FixtureRequest,
    energy_benchmark: EnergyBenchmark,
) -> None:
    """Verify and measure one contender's kernel for one convolution under one power cap."""
    kernel = _make_kernel(contender, bench_workload, contender_setup, contender_kernels, request)
    measurement = energy_benchmark(kernel, workload=bench_workload, label=contender)
    assert measurement.outcome == "correct"


def _make_kernel(
    contender: str,
    workload: Gemm | Conv2d,
    setup: ContenderSetup,
    kernels: ContenderKernels,
    request: pytest.FixtureRequest,
) -> AnyKernel:
    """Return the contender's kernel; skip the item if it has none here, fail it on errors.

    The next item's kernel is then made in the background.
    """
    try:
        return kernels.kernel(contender, workload, setup)
    except UnavailableError as error:
        pytest.skip(str(error))
    except GpuEnergyError as error:
        problem = str(error)
    finally:
        kernels.expect(request.node, setup)
    pytest.fail(problem, pytrace=False)


@pytest.mark.usefixtures("powercap")
def test_replay(
    replayable: Replayable, joules_per_token: Bound | None, energy_benchmark: EnergyBenchmark
) -> None:
    """Measure one call of a language model, or one whole step, under one power cap."""
    measurement = energy_benchmark(replayable)
    assert measurement.outcome == "correct"
    if joules_per_token is not None and (problem := joules_per_token.exceeded_by(measurement)):
        pytest.fail(problem, pytrace=False)


@pytest.mark.usefixtures("powercap")
def test_search(variant: ReadyVariant, energy_benchmark: EnergyBenchmark) -> None:
    """Verify and measure one kernel, as before or after a search, under one power cap."""
    measurement = energy_benchmark(variant.kernel, workload=variant.workload, label=variant.label)
    assert measurement.outcome == "correct"
