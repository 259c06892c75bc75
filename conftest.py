"""Options of this repository's own benches, and the fixture for its shipped kernels."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from pytest_gpuenergy.devices.device import Device
from pytest_gpuenergy.kernels.kernel import Kernel
from pytest_gpuenergy.support.errors import GpuEnergyError, InputError
from pytest_gpuenergy.tuning.record_folders import find_records
from pytest_gpuenergy.tuning.records import RecordFile
from pytest_gpuenergy.tvm.records import records_of
from pytest_gpuenergy.tvm.store import KernelStore
from pytest_gpuenergy.workloads import CASES, Conv2d, all_networks, find_workload, network

BENCH = Path(__file__).parent / "bench"
RECORDS = BENCH / "records"
WHEN_NAMED = (BENCH / "validation", BENCH / "peers")
QUICK_KERNELS = 2
TUNED_FOR = pytest.StashKey[list[str]]()
MISSING = pytest.StashKey[list[str]]()


@dataclass(frozen=True)
class Candidate:
    """One kernel of one workload: a rank in the records of its shape."""

    file: RecordFile
    rank: int

    @property
    def workload(self) -> Conv2d:
        """What the kernel computes, under the name that was asked for."""
        return self.file.workload

    @property
    def label(self) -> str:
        """As in item ids: ``case1-k01``."""
        return f"{self.workload.name}-k{self.rank:02d}"


@dataclass(frozen=True)
class ShippedKernel:
    """A kernel ready to be measured, with what it computes."""

    workload: Conv2d
    kernel: Kernel


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("bench", "this repository's benches")
    group.addoption(
        "--network",
        metavar="LIST",
        help="Workloads: cases, resnet, yolo, project (default: cases, and those that -k names)",
    )
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
    group.addoption(
        "--records",
        default=None,
        metavar="DIR",
        help="Folder of record files (default: bench/records/nvidia-h200)",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "shipped(cases, kernels): the shipped kernels a bench takes unless told others"
    )


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """What takes minutes, and compares, is run only when its path is named."""
    if collection_path not in WHEN_NAMED:
        return None
    named = [config.invocation_params.dir / arg.partition("::")[0] for arg in config.args]
    return None if any(path.is_relative_to(collection_path) for path in named) else True


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "bench_workload" in metafunc.fixturenames:
        _parametrize_workloads(metafunc)
    if "shipped_kernel" not in metafunc.fixturenames:
        return
    try:
        marker = metafunc.definition.get_closest_marker("shipped")
        candidates = _candidates(metafunc.config, **(marker.kwargs if marker else {}))
    except InputError as error:
        raise pytest.Collector.CollectError(str(error)) from None
    metafunc.config.stash[TUNED_FOR] = sorted({c.file.gpu for c in candidates})
    labels = [candidate.label for candidate in candidates]
    metafunc.parametrize("shipped_kernel", candidates, ids=labels, indirect=True)


def _parametrize_workloads(metafunc: pytest.Metafunc) -> None:
    """``bench_workload``: each of those that the command line names, records or not."""
    try:
        groups = _groups(metafunc.config)
    except InputError as error:
        raise pytest.Collector.CollectError(str(error)) from None
    if metafunc.config.getoption("--quick"):
        groups = [(*group[:1], *group[1:][-1:]) for group in groups]
    workloads = list(dict.fromkeys(workload for group in groups for workload in group))
    names = [workload.name for workload in workloads]
    metafunc.parametrize("bench_workload", workloads, ids=names)


def pytest_report_header(config: pytest.Config) -> str:
    return f"bench: kernels from {_records_folder(config)}"


def pytest_report_collectionfinish(config: pytest.Config) -> list[str]:
    lines = []
    if gpus := config.stash.get(TUNED_FOR, []):
        lines.append(f"bench: these kernels were tuned for {', '.join(gpus)}")
    if missing := config.stash.get(MISSING, []):
        lines.append(f"bench: left out, without records: {', '.join(missing)}")
    return lines


@pytest.fixture(scope="session")
def kernel_store() -> Iterator[KernelStore]:
    with KernelStore() as store:
        yield store


@pytest.fixture(scope="session")
def prefetched() -> set[str]:
    """Names of the workloads whose kernels are on their way."""
    return set()


@pytest.fixture
def shipped_kernel(
    request: pytest.FixtureRequest, kernel_store: KernelStore, gpu: Device, prefetched: set[str]
) -> ShippedKernel:
    """The kernel of this item; those of the same case are compiled while the first one runs."""
    candidate: Candidate = request.param
    name = candidate.workload.name
    if name not in prefetched:
        prefetched.add(name)
        ranks = _selected(request.session, name)
        _prefetch(gpu, kernel_store, candidate.file, ranks)
    try:
        kernel = kernel_store.kernel(candidate.file, candidate.rank)
    except GpuEnergyError as error:
        problem = str(error)
    else:
        return ShippedKernel(candidate.workload, kernel)
    pytest.fail(problem, pytrace=False)


def _prefetch(device: Device, store: KernelStore, file: RecordFile, ranks: Sequence[int]) -> None:
    """Lower the kernels of ``ranks`` and compile each meanwhile; their own items tell of faults."""
    for rank in ranks:
        with contextlib.suppress(GpuEnergyError):
            device.prepare([store.kernel(file, rank)])


def _selected(session: pytest.Session, name: str) -> list[int]:
    """Ranks of the kernels of case ``name`` that this run will measure."""
    wanted = set()
    for item in session.items:
        callspec = getattr(item, "callspec", None)
        candidate = callspec.params.get("shipped_kernel") if callspec else None
        if candidate is not None and candidate.workload.name == name:
            wanted.add(candidate.rank)
    return sorted(wanted)


def _records_folder(config: pytest.Config) -> Path:
    given = config.getoption("--records")
    return config.invocation_params.dir / given if given else RECORDS / "nvidia-h200"


def _candidates(
    config: pytest.Config, cases: Sequence[str] = (), kernels: str = "all"
) -> list[Candidate]:
    named = cases and not config.getoption("--network")
    groups = [tuple(map(find_workload, cases))] if named else _groups(config)
    quick = config.getoption("--quick")
    words = config.getoption("--kernels") or (f"top{QUICK_KERNELS}" if quick else kernels)
    candidates = []
    for files in _record_files(config, groups):
        for file in [*files[:1], *files[1:][-1:]] if quick else files:
            candidates += [Candidate(file, rank) for rank in _choose(words, file.ranks)]
    return candidates


def _groups(config: pytest.Config) -> list[tuple[Conv2d, ...]]:
    """The networks of ``--network``, or those that are meant without it."""
    given = config.getoption("--network")
    names = [word.strip() for word in given.split(",")] if given else _named_networks(config)
    return [network(name, config.rootpath) for name in dict.fromkeys(names)]


def _named_networks(config: pytest.Config) -> list[str]:
    """The network ``cases``, and those whose workloads ``-k`` or the id of an item names."""
    ids = [arg.partition("[")[2] for arg in config.args]
    text = " ".join([config.getoption("keyword"), *ids]).casefold()
    words = re.findall(r"[\w.-]+", text)  # of pytest's expressions
    known = all_networks(config.rootpath)
    named = [
        name
        for name, workloads in known.items()
        for workload in (one.name.casefold() for one in workloads)
        if any(word.startswith(workload) or workload.startswith(word) for word in words)
    ]
    return ["cases", *named]


def _record_files(
    config: pytest.Config, groups: Sequence[Sequence[Conv2d]]
) -> list[list[RecordFile]]:
    """The records of each group; only the shipped ones must have all cases."""
    folder = _records_folder(config)
    found: list[list[RecordFile]] = []
    missing: dict[str, InputError] = {}
    for group in groups:
        found.append([])
        for workload in group:
            try:
                find_records(folder, workload)
            except InputError as error:
                if folder.parent == RECORDS and workload.name in CASES:
                    raise
                missing[workload.name] = error
            else:
                found[-1].append(records_of(folder, workload))
    if missing and not any(found):
        raise next(iter(missing.values()))
    config.stash[MISSING] = list(missing)
    return found


def _choose(words: str, ranks: Sequence[int]) -> list[int]:
    """The ranks that ``--kernels`` names, of those there are."""
    if words == "all":
        return list(ranks)
    if (best := words.removeprefix("top")) != words and best.isdecimal() and int(best):
        return list(ranks[: int(best)])
    chosen = words.split(",")
    if not all(word.strip().isdecimal() for word in chosen):
        raise InputError(
            f"--kernels {words!r} is not understood: give all, top1, top2, ..., or ranks "
            "such as 1,5,25."
        )
    wanted = {int(word) for word in chosen}
    if unknown := wanted - set(ranks):
        raise InputError(
            f"--kernels {words}: there is no kernel {min(unknown)}; "
            f"there are {min(ranks)} to {max(ranks)}."
        )
    return [rank for rank in ranks if rank in wanted]
