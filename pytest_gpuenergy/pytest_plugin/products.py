"""The options and fixtures of the bench of matrix products, `product_items`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import pytest

from pytest_gpuenergy.pytest_plugin.left_out import left_out_lines
from pytest_gpuenergy.pytest_plugin.names import RUN
from pytest_gpuenergy.support import GpuEnergyError, nearest
from pytest_gpuenergy.tuning import given_folder
from pytest_gpuenergy.workloads import (
    Gemm,
    measured_products,
    network,
    products_in,
    search_options_notice,
)

if TYPE_CHECKING:
    from pytest_gpuenergy.devices import Device
    from pytest_gpuenergy.kernels import AnyKernel
    from pytest_gpuenergy.pytest_plugin.run import RunPlugin
    from pytest_gpuenergy.tuners import Bench, KernelStore

MadeKernels: TypeAlias = "dict[tuple[str, Gemm, str], AnyKernel | GpuEnergyError]"
"""By contender, product and UUID of the GPU."""

NETWORK = "gemm"
RECORDS = Path("bench", "records")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of the bench."""
    group = parser.getgroup("bench", "this repository's benches")
    group.addoption(
        "--gemm",
        metavar="SIZES",
        help="Matrix products, such as 'MNK=4096; M=512 N=256 K=640'; in both layouts unless "
        "layout= chooses one (default: the network gemm)",
    )
    group.addoption(
        "--records",
        metavar="DIR",
        help="Folder of record files, or with one such folder per GPU model (default: "
        f"{RECORDS} here or in a parent folder)",
    )

    group.addoption(
        "--cutlass",
        metavar="PATH",
        help="Checkout of CUTLASS, or its folder of headers, for the contender cutlass (default: "
        "those in the package nvidia-cutlass or apache-tvm)",
    )
    group.addoption(
        "--cutlass-profiler",
        metavar="PATH",
        help="Program cutlass_profiler of a build of CUTLASS, whose fastest kernel takes part too",
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Parametrize ``gemm_workload`` and, with it, ``contender``."""
    if "gemm_workload" not in metafunc.fixturenames:
        return
    from pytest_gpuenergy.tuners import check_cutlass

    config = metafunc.config
    try:
        chosen = products(config)
        records_folder(config)  # it must be one
        check_cutlass(_path(config, "--cutlass"), _path(config, "--cutlass-profiler"))
    except GpuEnergyError as error:
        raise pytest.Collector.CollectError(str(error)) from None
    metafunc.parametrize("gemm_workload", chosen, ids=[one.name for one in chosen])
    if "contender" in metafunc.fixturenames:
        metafunc.parametrize("contender", _contenders(config))


def pytest_report_collectionfinish(
    config: pytest.Config, items: Sequence[pytest.Item]
) -> list[str]:
    """From where the records of the selected products come, and what has no effect."""
    from pytest_gpuenergy.tuners import TUNED_BY, best_record

    chosen = [item.callspec.params for item in items if hasattr(item, "callspec")]
    gemm = [one for one in chosen if "gemm_workload" in one]
    sizes = config.getoption("--gemm")
    if items and not gemm and sizes is not None:
        return ["bench: --gemm has no effect, since no item of bench/test_gemm.py is selected"]
    said = search_options_notice(sizes) if gemm and sizes else None
    lines = [f"bench: {said}"] if said else []
    tuned = dict.fromkeys(
        (one["gemm_workload"], TUNED_BY[one["contender"]])
        for one in gemm
        if one.get("contender") in TUNED_BY
    )
    run: RunPlugin | None = config.pluginmanager.get_plugin(RUN)
    if run is None or not tuned:
        return lines
    folder, gpu = records_folder(config), run.session.card.device
    sources: dict[Path, str] = {}
    unfit: list[str] = []
    for product, tuner in tuned:
        with contextlib.suppress(GpuEnergyError):  # its own item reports it
            found, rank = best_record(folder, product, gpu, tuner)
            assert found.folder is not None  # it was read
            if rank is None:
                unfit.append(product.name)
            else:
                sources[found.folder] = found.gpu
    lines += sources_said(sources, gpu.name)
    if unfit:
        names = unfit[0] + (f" and {len(unfit) - 1} more" if unfit[1:] else "")
        lines.append(
            f"bench: no record for {names} fits {gpu.name}: parameters are chosen as without "
            "records"
        )
    return lines


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Which contenders have no figures, and why, below the tables of those that have."""
    lines = [*left_out_lines(terminalreporter.stats)]
    if lines:
        terminalreporter.section("contenders left out")
    for line in lines:
        terminalreporter.line(line)


@pytest.fixture(scope="session")
def kernel_store() -> Iterator[KernelStore]:
    """Makes the kernels of TVM's records."""
    from pytest_gpuenergy.tuners import KernelStore

    with KernelStore() as store:
        yield store


@pytest.fixture(scope="session")
def made_kernels() -> MadeKernels:
    """What each contender made for each product on each GPU, or why it did not."""
    return {}


@pytest.fixture
def gemm_bench(request: pytest.FixtureRequest, gpu: Device, kernel_store: KernelStore) -> Bench:
    """What contenders make their kernels with."""
    from pytest_gpuenergy.tuners import Bench

    config = request.config
    return Bench(
        gpu,
        records_folder(config),
        kernel_store,
        cutlass=_path(config, "--cutlass"),
        cutlass_profiler=_path(config, "--cutlass-profiler"),
    )


def products(config: pytest.Config) -> list[Gemm]:
    """The matrix products of ``--gemm``, or all that are bundled and those that ids name.

    Raises:
        InputError: the sizes are not understood, or ask for a tuning.
    """
    if (text := config.getoption("--gemm")) is None:
        bundled = [one for one in network(NETWORK) if isinstance(one, Gemm)]
        if config.getoption("--quick", False):
            bundled = [bundled[0], bundled[-1]]
        named = products_in(" ".join([*config.args, config.getoption("keyword") or ""]))
        return list({one.name: one for one in (*bundled, *named)}.values())
    return measured_products(text)


def records_folder(config: pytest.Config) -> Path:
    """The folder of ``--records``, or that of the project's records.

    Raises:
        InputError: there is no folder of that name.
    """
    if given := _path(config, "--records"):
        return given_folder(given)
    return nearest(config.rootpath, RECORDS) or config.rootpath / RECORDS


def _contenders(config: pytest.Config) -> list[str]:
    from pytest_gpuenergy.tuners import CONTENDERS, CUTLASS_PROFILER

    left_out = () if config.getoption("--cutlass-profiler") else (CUTLASS_PROFILER,)
    return [name for name in CONTENDERS if name not in left_out]


def _path(config: pytest.Config, option: str) -> Path | None:
    given = config.getoption(option)
    return config.invocation_params.dir / str(given) if given else None


def sources_said(sources: Mapping[Path, str], gpu: str) -> list[str]:
    """From which folders kernels for ``gpu`` come, and which GPU each was tuned for."""
    why = "as" if len(sources) == 1 else "where"
    return [
        f"bench: kernels from {source}, tuned for {tuned_for}"
        + ("" if tuned_for == gpu else f", {why} there are none for {gpu}")
        for source, tuned_for in sources.items()
    ]
