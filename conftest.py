"""Options of this repository's own benches, and the fixture for its bundled kernels."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

import pytest

from pytest_gpuenergy.devices import Device
from pytest_gpuenergy.kernels import Kernel
from pytest_gpuenergy.plugin import load_run
from pytest_gpuenergy.pytest_plugin import (
    CONVOLUTIONS,
    NETWORK,
    chosen_contenders,
    collection_error,
    compares_convolutions,
    records_folder,
    source_lines,
)
from pytest_gpuenergy.record import Measurement
from pytest_gpuenergy.support import GpuEnergyError, InputError, UnavailableError
from pytest_gpuenergy.tuners import KernelStore, check_architecture, kernels_of, records_of
from pytest_gpuenergy.tuning import RecordFile, choose_ranks
from pytest_gpuenergy.workloads import (
    CASES,
    Conv2d,
    Gemm,
    Variants,
    Workload,
    choose_workloads,
    find_workload,
    in_variants,
    is_in_variants,
    network,
    networks_named,
    parse_variants,
    products_in,
    variants_named,
)

pytest_plugins = [
    "pytest_gpuenergy.pytest_plugin.benches.products",
    "pytest_gpuenergy.pytest_plugin.benches.replays",
    "pytest_gpuenergy.pytest_plugin.benches.searches",
]

BENCH = Path(__file__).parent / "bench"
CONV2D, PRODUCTS = BENCH / "test_conv2d.py", BENCH / "test_gemm.py"
REPLAY, SEARCH = BENCH / "test_replay.py", BENCH / "test_search.py"
WHEN_NAMED = (BENCH / "validation", BENCH / "test_values.py")
# pytest would look at each of their 1,500 files.
collect_ignore = [
    BENCH / folder
    for folder in ("corpus", "mutation_kernels", "profiles", "records", "results", "search")
]
QUICK_KERNELS = 2
MOST_NAMES = 12
T = TypeVar("T")
EXCLUDED = re.compile(r"\bnot\s*(?:\s[^\s()]+|\([^()]*\))")
"""A word, or several in parentheses, that -k excludes."""
BUNDLED = re.compile(r"\btest_conv2d(?![\w.])")
"""The name of the test of bundled kernels, which is also part of its module's."""
SAID = pytest.StashKey[list[str]]()


@dataclass(frozen=True)
class Candidate:
    """One kernel of one workload: a rank in the records of its shape."""

    file: RecordFile
    rank: int

    @property
    def workload(self) -> Workload:
        """What the kernel computes, under the name that was asked for."""
        return self.file.workload

    @property
    def label(self) -> str:
        """As in item ids: ``case1-k01``."""
        return f"{self.workload.name}-k{self.rank:02d}"


@dataclass(frozen=True)
class BundledKernel:
    """A kernel ready to be measured, with what it computes."""

    workload: Workload
    kernel: Kernel


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("bench", "this repository's benches")
    group.addoption(
        "--case",
        metavar="NAME[,NAME...]",
        action="append",
        default=[],
        help="Workloads by name, 5 for case5, or all for the seven cases; may be repeated",
    )
    group.addoption(
        "--network",
        metavar="LIST",
        help="Workloads: cases, resnet, yolo, gemm, project (default: cases, and those that -k "
        "names)",
    )
    group.addoption(
        "--shape",
        metavar="[NAME=][KIND:]SIZES",
        action="append",
        default=[],
        help="A workload by its sizes, such as '1,56,56,64,64,3,3,1,1 mode=tf32'; may be repeated",
    )
    group.addoption(
        "--mode",
        metavar="LIST",
        help="Modes of convolutions and products: float32, 3xtf32, tf32, float16, bfloat16 "
        "(default: float32, and those that -k or --gemm names)",
    )
    group.addoption(
        "--layout",
        metavar="LIST",
        help="Layouts of convolutions: nchw, nhwc (default: nchw, and those that -k names)",
    )
    for name, what in (("--bias", "that add a bias"), ("--relu", "that end with a ReLU")):
        group.addoption(name, action="store_true", help=f"Choose convolutions {what}")
    group.addoption(
        "--kernels",
        metavar="LIST",
        help="Kernels of each workload: all, top1, ..., or ranks such as 1,5,25 (default: all)",
    )
    group.addoption(
        "--quick",
        action="store_true",
        help=f"Only the first and the last workload of a network, {QUICK_KERNELS} kernels each",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "bundled(cases, kernels): the bundled kernels a bench takes unless told others"
    )


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Benches that take minutes run only if their path or workloads of theirs are named."""
    left_out = {
        CONV2D: _networks(config) == [NETWORK],
        PRODUCTS: NETWORK not in _networks(config)
        and config.getoption("--gemm") is None
        and not products_in(EXCLUDED.sub("", config.getoption("keyword") or "")),
        REPLAY: config.getoption("--model") is None,
        SEARCH: config.getoption("--search-out") is None,
    }
    if not left_out.get(collection_path, collection_path in WHEN_NAMED):
        return None
    named = [config.invocation_params.dir / arg.partition("::")[0] for arg in config.args]
    return None if any(path.is_relative_to(collection_path) for path in named) else True


def pytest_pycollect_makeitem(collector: pytest.Collector, name: str) -> list[pytest.Item] | None:
    """Collect contenders in convolutions if they are asked for, otherwise bundled kernels.

    Both are collected if ids or -k name both.
    """
    config = collector.config
    left_out = [] if compares_convolutions(config) else [CONVOLUTIONS]
    named = " ".join([config.getoption("keyword"), *config.args])
    if config.getoption("--contenders") is not None or not (left_out or BUNDLED.search(named)):
        left_out.append("test_conv2d")
    return [] if collector.path == CONV2D and name in left_out else None


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Parametrize ``bundled_kernel`` by kernel, ``bench_workload`` by workload."""
    config, marker = metafunc.config, metafunc.definition.get_closest_marker("bundled")
    try:
        if "bench_workload" in metafunc.fixturenames:
            groups = _ends(_groups(config)) if config.getoption("--quick") else _groups(config)
            workloads = list(dict.fromkeys(workload for group in groups for workload in group))
            if compares := "contender" in metafunc.fixturenames:
                records_folder(config)  # it must be one
                workloads = [one for one in workloads if isinstance(one, Conv2d)]
                if not workloads:
                    raise InputError(
                        "No convolution is named: matrix products are compared in "
                        "bench/test_gemm.py, with --gemm."
                    )
            names = [workload.name for workload in workloads]
            metafunc.parametrize("bench_workload", workloads, ids=names)
            if compares:
                metafunc.parametrize("contender", chosen_contenders(config, Conv2d.kind))
        if "bundled_kernel" in metafunc.fixturenames:
            candidates = _candidates(config, **(marker.kwargs if marker else {}))
            labels = [candidate.label for candidate in candidates]
            metafunc.parametrize("bundled_kernel", candidates, ids=labels, indirect=True)
    except GpuEnergyError as error:
        raise collection_error(metafunc.config, error) from None


def pytest_gpuenergy_deselected(config: pytest.Config, measurement: Measurement) -> bool:
    """Whether the options above leave out a kernel that a baseline has."""
    words, rank = config.getoption("--kernels"), measurement.kernel.rank
    contends = f"::{CONVOLUTIONS}[" in measurement.node_id
    if contends and not compares_convolutions(config):
        return True
    if "::test_conv2d[" in measurement.node_id and config.getoption("--contenders") is not None:
        return True
    networks = any(config.getoption(name) for name in ("--case", "--shape", "--network"))
    try:
        if contends and measurement.kernel.label not in chosen_contenders(config, Conv2d.kind):
            return True
        if networks:
            names = {workload.name for group in _groups(config) for workload in group}
            if measurement.workload.name not in names:
                return True
        else:
            kind = measurement.workload.parameters.get("kind")
            wanted = parse_variants(config.getoption("--mode")) if kind == Gemm.kind else {}
            if kind == Conv2d.kind:
                wanted = {**variants_named(""), **_variants(config)}
            if not is_in_variants(measurement.workload.parameters, wanted):
                return True
        if config.getoption("--quick"):
            return True
        return bool(words and rank) and rank not in choose_ranks(words, range(1, 1000))
    except GpuEnergyError:  # such as a rank that nothing has
        return True


def pytest_report_collectionfinish(
    config: pytest.Config, items: Sequence[pytest.Item]
) -> list[str]:
    """From where the bundled kernels come, if any are selected, or could have been."""
    if not items or any("bundled_kernel" in getattr(item, "fixturenames", ()) for item in items):
        return config.stash.get(SAID, [])
    return []


@pytest.fixture(scope="session")
def prefetched() -> set[str]:
    """Names of the workloads whose kernels are being compiled."""
    return set()


@pytest.fixture
def bundled_kernel(
    request: pytest.FixtureRequest, kernel_store: KernelStore, gpu: Device, prefetched: set[str]
) -> BundledKernel:
    """The kernel of this item; those of the same case are compiled while the first one runs."""
    candidate: Candidate = request.param
    try:
        check_architecture(candidate.file, candidate.rank, gpu)
    except UnavailableError as error:
        pytest.skip(str(error))
    try:
        if (name := candidate.workload.name) not in prefetched:
            prefetched.add(name)
            _prepare(request, candidate, gpu, kernel_store)
        (kernel,) = kernels_of(candidate.file, [candidate.rank], kernel_store)
    except GpuEnergyError as error:
        problem = str(error)
    else:
        return BundledKernel(candidate.workload, kernel)
    pytest.fail(problem, pytrace=False)


def _prepare(
    request: pytest.FixtureRequest, candidate: Candidate, gpu: Device, store: KernelStore
) -> None:
    """Compile all kernels of a case in the background, or verify those that come later."""
    session, workload = load_run(request.config).session, candidate.workload
    ranks = _selected(request.session, workload.name)
    for rank in sorted(ranks, key=lambda rank: rank != candidate.rank):
        lowered = partial(kernels_of, candidate.file, [rank], store)

        def expected(lowered: Callable[[], list[Kernel]] = lowered) -> tuple[Kernel, Workload]:
            return lowered()[0], workload

        with contextlib.suppress(GpuEnergyError):  # its own item reports it
            if rank == candidate.rank or not session.expect(expected):
                gpu.prepare(lowered())


def _selected(session: pytest.Session, name: str) -> list[int]:
    """Ranks of the kernels of case ``name`` that this run will measure."""
    specs = [item.callspec for item in session.items if hasattr(item, "callspec")]
    candidates = [spec.params.get("bundled_kernel") for spec in specs]
    return sorted({one.rank for one in candidates if one and one.workload.name == name})


def _candidates(
    config: pytest.Config, cases: Sequence[str] = (), kernels: str = "all"
) -> list[Candidate]:
    given = any(config.getoption(name) for name in ("--case", "--shape", "--network"))
    named = cases and not given
    groups = _record_files(config, [[*map(find_workload, cases)]] if named else _groups(config))
    quick = config.getoption("--quick")
    words = config.getoption("--kernels")
    if words is None:
        words = f"top{QUICK_KERNELS}" if quick else kernels
    files = [file for group in (_ends(groups) if quick else groups) for file in group]
    return [Candidate(file, rank) for file in files for rank in choose_ranks(words, file.ranks)]


def _networks(config: pytest.Config) -> list[str]:
    """The words of ``--network``."""
    given: str = config.getoption("--network") or ""
    return [word.strip() for word in given.split(",")]


def _ends(groups: Sequence[Sequence[T]]) -> list[list[T]]:
    """The first and the last of each group."""
    return [[*group[:1], *group[1:][-1:]] for group in groups]


def _groups(config: pytest.Config) -> list[Sequence[Workload]]:
    """Those of ``--case``, ``--shape`` and ``--network``, or ``cases`` and what ``-k`` or ids name.

    Matrix products have a bench of their own.
    """
    cases, shapes = config.getoption("--case"), config.getoption("--shape")
    if cases or shapes:
        networks = [word for word in _networks(config) if word not in ("", NETWORK)]
        variants = _variants(config)
        found = choose_workloads(cases, networks, shapes, config.rootpath, variants)
        return [[workload for workload in found if not isinstance(workload, Gemm)]]
    if config.getoption("--network"):
        names = [word for word in _networks(config) if word != NETWORK]
    else:
        found = networks_named(" ".join(_named_texts(config)), config.rootpath)
        names = ["cases", *(name for name in found if name != NETWORK)]
    groups = [network(name, config.rootpath) for name in dict.fromkeys(names)]
    return [in_variants(group, _variants(config)) for group in groups]


def _named_texts(config: pytest.Config) -> list[str]:
    """The expression of ``-k``, and what is between the brackets of the ids that are named."""
    return [config.getoption("keyword"), *(arg.partition("[")[2] for arg in config.args)]


def _variants(config: pytest.Config) -> Variants:
    """Those of ``--mode`` and ``--layout``, and besides the usual ones those that ``-k`` names."""
    given = parse_variants(
        config.getoption("--mode"),
        config.getoption("--layout"),
        bias=config.getoption("--bias"),
        relu=config.getoption("--relu"),
    )
    expression, *ids = _named_texts(config)
    named = variants_named(" ".join([EXCLUDED.sub(" ", expression), *ids]))
    return {**{name: some for name, some in named.items() if len(some) > 1}, **given}


def _is_variant(workload: Workload) -> bool:
    """Whether it is a convolution in another mode or layout than the usual."""
    return isinstance(workload, Conv2d) and not workload.is_plain


def _record_files(
    config: pytest.Config, groups: Sequence[Sequence[Workload]]
) -> list[list[RecordFile]]:
    """The records of each group for this GPU or, if there are none, for another one.

    Only the bundled records must include all cases.
    """
    own_records, folder = config.getoption("--records"), records_folder(config)
    gpu = load_run(config).session.card.device.name
    found: list[list[RecordFile]] = []
    sources: dict[Path, str] = {}
    missing: dict[str, UnavailableError] = {}
    for group in groups:
        found.append([])
        for workload in group:
            try:
                file = records_of(folder, workload, gpu)
            except UnavailableError as error:
                if not own_records and workload.name in CASES:
                    raise
                missing[workload.name] = error
            else:
                found[-1].append(file)
                assert file.folder is not None  # it was read
                sources[file.folder] = file.gpu
    if missing and not any(found):
        raise next(iter(missing.values()))
    config.stash[SAID] = source_lines(sources, gpu)
    names = list(missing)
    given = any(map(config.getoption, ("--case", "--mode", "--layout", "--bias", "--relu")))
    if not given and any(_is_variant(file.workload) for files in found for file in files):
        # -k names parts of names, of which not all variants need records.
        whole = re.findall(r"[\w.]+", " ".join(_named_texts(config)).casefold())
        names = [
            name
            for name in names
            if name.casefold() in whole or not _is_variant(find_workload(name, config.rootpath))
        ]
    if names:
        shown = names if len(names) <= MOST_NAMES else [*names[:MOST_NAMES], "..."]
        config.stash[SAID].append(f"bench: left out, without records: {', '.join(shown)}")
    return found
