"""Options of this repository's own benches, and the fixture for its shipped kernels."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from pytest_gpuenergy.devices.device import Device
from pytest_gpuenergy.errors import GpuEnergyError, InputError
from pytest_gpuenergy.kernels.kernel import Kernel
from pytest_gpuenergy.kernels.records import RecordFile, find_records, load_records
from pytest_gpuenergy.tuning.lowering import KernelStore
from pytest_gpuenergy.workloads import CASES, Conv2d, find_workload

BENCH = Path(__file__).parent / "bench"
RECORDS = BENCH / "records"
VALIDATION = BENCH / "validation"
QUICK_KERNELS = 2
TUNED_FOR = pytest.StashKey[list[str]]()


@dataclass(frozen=True)
class Candidate:
    """One kernel of one case: a rank in its record file."""

    workload: Conv2d
    file: RecordFile
    rank: int

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
        "--kernels",
        metavar="LIST",
        help="Kernels of each case: all, top1, top2, ..., or ranks such as 1,5,25 (default: all)",
    )
    group.addoption(
        "--quick",
        action="store_true",
        help=f"Only the first and the last case, {QUICK_KERNELS} kernels each",
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
    """Validation takes minutes, and is run only when its path is named."""
    if collection_path != VALIDATION:
        return None
    named = [config.invocation_params.dir / arg.partition("::")[0] for arg in config.args]
    return None if any(path.is_relative_to(VALIDATION) for path in named) else True


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
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


def pytest_report_header(config: pytest.Config) -> str:
    return f"bench: kernels from {_records_folder(config)}"


def pytest_report_collectionfinish(config: pytest.Config) -> list[str]:
    gpus = config.stash.get(TUNED_FOR, [])
    return [f"bench: these kernels were tuned for {', '.join(gpus)}"] if gpus else []


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
    config: pytest.Config, cases: Sequence[str] = tuple(CASES), kernels: str = "all"
) -> list[Candidate]:
    folder = _records_folder(config)
    if config.getoption("--quick"):
        cases, kernels = (cases[0], cases[-1]), f"top{QUICK_KERNELS}"
    words = config.getoption("--kernels") or kernels
    candidates = []
    for file in _record_files(folder, cases):
        workload = file.workload
        ranks = _choose(words, [record.rank for record in file.records])
        candidates += [Candidate(workload, file, rank) for rank in ranks]
    return candidates


def _record_files(folder: Path, cases: Sequence[str]) -> list[RecordFile]:
    """The record files of ``cases``; an own folder need not have all of them."""
    files = []
    problem: InputError | None = None
    for workload in map(find_workload, cases):
        try:
            path = find_records(folder, workload)
        except InputError as error:
            if folder.parent == RECORDS:
                raise
            problem = problem or error
        else:
            file = load_records(path)
            if file.workload != workload:
                raise InputError(
                    f"The record file {path} holds kernels of {file.workload.name} instead of "
                    f"{workload.name}: restore it from where it came."
                )
            files.append(file)
    if not files and problem is not None:
        raise problem
    return files


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
