"""The option and fixtures of the bench of improved kernels, `bench_items.test_search`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pytest_gpuenergy import devices, kernels, report as reports, search, workloads
from pytest_gpuenergy.pytest_plugin.outputs import collection_error
from pytest_gpuenergy.support import (
    GpuEnergyError,
    InputError,
    UnavailableError,
    is_folder,
    is_there,
    nearest,
)

SPECS = Path("bench", "search", "kernels")
_BASELINE, _BEST = "baseline", "best"


@dataclass(frozen=True, eq=False)
class Variant:
    """A kernel with which a search begins (``baseline``), or that it has found (``best``)."""

    spec: search.KernelSpec
    state: search.State
    label: str

    @property
    def name(self) -> str:
        """The name in item ids, such as ``softmax-baseline``."""
        return f"{self.spec.name}-{self.label}"


@dataclass(frozen=True)
class ReadyVariant:
    """A variant for the sizes that are measured."""

    kernel: kernels.AnyKernel
    workload: workloads.Workload
    label: str


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option of the bench."""
    parser.getgroup("bench", "this repository's benches").addoption(
        "--search-out",
        metavar="OUTDIR",
        help="Results of gpuenergy optimize, whose best variants take part beside the baselines",
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Parametrize ``variant``."""
    if "variant" not in metafunc.fixturenames:
        return
    try:
        chosen = variants(metafunc.config)
    except GpuEnergyError as error:
        raise collection_error(metafunc.config, error) from None
    metafunc.parametrize("variant", chosen, ids=[each.name for each in chosen], indirect=True)


@pytest.fixture
def variant(request: pytest.FixtureRequest, gpu: devices.Device) -> ReadyVariant:
    """The variant that the item measures; skips the item if the device cannot run it."""
    chosen: Variant = request.param
    sizes = chosen.spec.sizes[0]
    try:
        kernel = search.kernel_of(chosen.spec, chosen.state, sizes)
        if refusal := gpu.refusal(kernel):
            raise UnavailableError(refusal)
        return ReadyVariant(kernel, search.workload_of(chosen.spec, sizes), chosen.label)
    except UnavailableError as error:
        pytest.skip(str(error))
    except GpuEnergyError as error:
        problem = str(error)
    pytest.fail(problem, pytrace=False)


def variants(config: pytest.Config) -> list[Variant]:
    """Return the baseline of each shipped spec, and the best variant of each that was searched."""
    folder = nearest(config.rootpath, SPECS) or config.rootpath / SPECS
    outdir = _outdir(config)
    if outdir is not None and not is_folder(outdir / "kernels"):
        given = config.getoption("--search-out")
        raise InputError(
            f"--search-out {given} has no results of a search: gpuenergy optimize {SPECS} --outdir "
            f"{given} writes some."
        )
    found = []
    for spec in map(search.read_spec, search.spec_paths(folder)):
        found.append(Variant(spec, spec.baseline, _BASELINE))
        if outdir is None:
            continue
        path = outdir / "kernels" / f"_{spec.name}" / "best" / "control.json"
        if not is_there(path):
            continue
        state = search.read_control(path).state
        if state.language != spec.language:
            raise InputError(
                f"{path} is of a kernel in {state.language}: name results of this spec."
            )
        if state.id != spec.baseline.id:  # otherwise the baseline is the best
            found.append(Variant(spec, state, _BEST))
    return found


def graphs(config: pytest.Config, report: reports.Report) -> list[Mapping[str, Any]]:
    """Return what a run's page shows of the searches whose kernels the run has measured.

    Raises:
        GpuEnergyError: the files of a search cannot be read.
    """
    outdir = _outdir(config)
    if outdir is None or not search.search_folders(outdir):
        return []
    measured = {m.kernel.details.get("state") for m in report.measurements}
    return [
        search.search_values(record)
        for record in search.read_searches(outdir)
        if any(node.id in measured for node in record.state.nodes)
    ]


def _outdir(config: pytest.Config) -> Path | None:
    given = config.getoption("--search-out", None)
    return None if given is None else config.invocation_params.dir / given
