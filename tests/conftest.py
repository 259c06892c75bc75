"""What the tests share: no test touches a real GPU's settings or the user's own folders."""

from __future__ import annotations

import contextlib
import gc
import itertools
import json
import os
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import hypothesis
import numpy as np
import pytest
from _pytest import runner
from _pytest.pytester import SysModulesSnapshot
from kept_for_runs import keep_for_runs
from small_project import BENCH, INI, PARTS, QUICK
from warm_python import warm_python as open_warm_python

import pytest_gpuenergy
from pytest_gpuenergy.devices import lock
from pytest_gpuenergy.emulator import Toolchain, find_compiler
from pytest_gpuenergy.support import GpuEnergyError
from pytest_gpuenergy.tuners import FORMS, Database, installed_tvm, load_database
from pytest_gpuenergy.tuning import BANDS, Record, RecordFile
from pytest_gpuenergy.workloads import CASES

# It cannot be imported twice, which is what happens when a run within a test is the first to do so.
with contextlib.suppress(ImportError):
    import vl_convert  # noqa: F401

pytest_plugins = ["pytester", "energy_fixtures", "report_fixtures"]
gc.disable()  # until all is collected
# No deadlines: several tests at once share the processor.
THOROUGH = bool(os.environ.get("GPUENERGY_THOROUGH"))
# Tests of finished studies, and long fuzzing, belong to the nightly run.
collect_ignore = [] if THOROUGH else ["studies"]
hypothesis.settings.register_profile(
    "shared", deadline=None, max_examples=60 if THOROUGH else 10, derandomize=not THOROUGH
)
hypothesis.settings.load_profile("shared")
# Who runs the tests in the background, or with nohup, has these ignored, and so would children.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
# pytest-xdist has its workers believe in a terminal of 80 columns.
os.environ.pop("COLUMNS", None)
RAW = Path(__file__).parent / "data/case7_raw"
# Of this package, of others that are installed, and of Python itself.
_INSTALLED = tuple(
    f"{Path(module.__file__).parents[depth]}{os.sep}"
    for module, depth in ((pytest_gpuenergy, 0), (pytest, 1), (np, 1), (json, 1))
)


class _LessForgetful(SysModulesSnapshot):
    """Keep what is installed: every run within a test would import, and compile, it again."""

    def __init__(self, preserve: Callable[[str], bool] = lambda _: False) -> None:
        super().__init__(lambda name: preserve(name) or _is_installed(name))


_installed: dict[str, ModuleType] = {}
"""Modules that have been found to be installed, by name."""


def _is_installed(name: str) -> bool:
    module = sys.modules[name]
    if _installed.get(name) is module:
        return True
    if found := (getattr(module, "__file__", None) or "").startswith(_INSTALLED):
        _installed[name] = module
    return found


@pytest.fixture(scope="session")
def shared_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What can be made again, one for all workers: files in it are named after their content."""
    base = tmp_path_factory.getbasetemp()
    cache = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "cache"
    _copy_toolchain(cache, tmp_path_factory)
    return cache


def _copy_toolchain(cache: Path, factory: pytest.TempPathFactory) -> None:
    """Copy what all kernels of the emulated GPU share from the user's cache, if it is there.

    To build it takes 7 s of processor time.
    """
    (programs := cache / "emulated" / "host").mkdir(parents=True, exist_ok=True)
    own = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    given = Path(os.environ.get("GPUENERGY_CACHE") or Path(own, "pytest-gpuenergy"))
    try:
        built = Toolchain.locate(programs, find_compiler()).folder
    except GpuEnergyError:  # tests that need a compiler say so
        return
    found = given / "emulated" / "host" / built.name
    # A precompiled header of clang must stay where it is.
    if not built.exists() and (found / "plain" / "kernel.h.gch").exists():
        copy = shutil.copytree(found, factory.mktemp("copies") / built.name)
        with contextlib.suppress(OSError):  # another worker was faster
            copy.rename(built)


@pytest.fixture(scope="session", autouse=True)
def own_environment(tmp_path_factory: pytest.TempPathFactory, shared_cache: Path) -> Iterator[None]:
    """For all that tests start: no folder of the user's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GPUENERGY_CACHE", str(shared_cache))
        patch.setenv("GPUENERGY_STATE", str(tmp_path_factory.mktemp("state")))
        patch.setenv("GPUENERGY_CAP_WRITES", "deny")
        # Coverage of what tests start would take a third of their time; it is 95 % without.
        patch.delenv("COVERAGE_FILE", raising=False)
        patch.delenv("PYTEST_XDIST_AUTO_NUM_WORKERS", raising=False)
        patch.delenv("GITHUB_ACTIONS", raising=False)  # else there are annotations
        patch.delenv("COMPILE_CACHE_DIR", raising=False)
        for variable in ("OPENAI_API_KEY", "OPENAI_BASE_URL"):  # no test asks the user's endpoint
            patch.delenv(variable, raising=False)
        # To read all certificates takes half of the time of a question to an endpoint.
        patch.setenv("SSL_CERT_DIR", str(tmp_path_factory.mktemp("certificates")))
        # Hypothesis is imported at the end of each run, and trio for AnyIO's plugin at its start:
        # two thirds of what an empty run takes.
        patch.setenv("PYTEST_ADDOPTS", QUICK)
        patch.setattr("_pytest.pytester.SysModulesSnapshot", _LessForgetful)
        keep_for_runs(patch)
        # No test turns the power off, and a disk takes milliseconds each time.
        patch.setattr(os, "fsync", lambda _: None)
        # Runs in this process import modules that a test may rewrite within the same second.
        patch.setattr(sys, "dont_write_bytecode", True)
        yield


@pytest.fixture(scope="session")
def transformers() -> Iterator[None]:
    """Skips what needs PyTorch and transformers, and has these load nothing from elsewhere."""
    pytest.importorskip("torch", reason="needs PyTorch")
    pytest.importorskip("transformers", reason="needs transformers")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_HUB_OFFLINE", "1")
        yield


@pytest.fixture(scope="session")
def host_cache(shared_cache: Path) -> Path:
    """The emulated GPU's part of it, with what all kernels share: headers and runtime."""
    folder = shared_cache / "emulated" / "host"
    Toolchain.prepare(folder, find_compiler(), jobs=2)
    return folder


@pytest.fixture
def give_toolchain(host_cache: Path) -> Callable[[Path], None]:
    """Put what all kernels share into another folder of host programs."""

    def give(folder: Path) -> None:
        for built in host_cache.glob("host-*"):
            shutil.copytree(built, folder / built.name)

    return give


@pytest.fixture(scope="session")
def folder_name(tmp_path_factory: pytest.TempPathFactory) -> Callable[[], Path]:
    """Name a folder that does not exist yet."""
    root, numbers = tmp_path_factory.mktemp("folders"), itertools.count()
    return lambda: root / str(next(numbers))


@pytest.fixture(scope="session")
def new_folder(folder_name: Callable[[], Path]) -> Callable[[], Path]:
    """Make an empty folder; pytest would look through all that it has made, which are thousands."""

    def make() -> Path:
        folder = folder_name()
        folder.mkdir()
        return folder

    return make


@pytest.fixture(autouse=True)
def own_folders(folder_name: Callable[[], Path]) -> Iterator[Path]:
    """A state folder for each test, which exists as soon as something is written there."""
    before = os.environ["GPUENERGY_STATE"]
    os.environ["GPUENERGY_STATE"] = str(state := folder_name())
    yield state
    os.environ["GPUENERGY_STATE"] = before


@pytest.fixture(scope="session")
def warm_python(new_folder: Callable[[], Path], host_cache: Path) -> Iterator[Path]:
    """A command in place of `sys.executable`, see `warm_python.py`."""
    assert host_cache.exists()  # a program that tests start shall not build what kernels share
    project = new_folder()
    (project / "pyproject.toml").write_text(INI)
    (project / "parts.py").write_text(PARTS)
    (project / "test_scale.py").write_text(BENCH)
    with open_warm_python(new_folder(), project) as command:
        yield command


@pytest.fixture(scope="session")
def warm_programs(new_folder: Callable[[], Path], warm_python: Path) -> Path:
    """A folder for ``PATH`` with pytest and gpuenergy as programs of a warm Python."""
    folder = new_folder()
    for name, module in (("pytest", "pytest"), ("gpuenergy", "pytest_gpuenergy.cli")):
        program = folder / name
        program.write_text(f'#!/bin/sh\nexec {warm_python} -P -m {module} "$@"\n')
        program.chmod(0o755)
    return folder


@pytest.fixture
def machine_apart(new_folder: Callable[[], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """What all processes of a machine share, apart: temporary files, and the locks of GPUs."""
    folder = str(new_folder())
    monkeypatch.setenv("TMPDIR", folder)
    monkeypatch.setattr(tempfile, "tempdir", folder)
    monkeypatch.setattr(lock, "MACHINE_FOLDER", Path(folder))
    for variable in ("PYTEST_XDIST_WORKER", "GPUENERGY_EMULATED_FAULTS"):
        monkeypatch.delenv(variable, raising=False)


@pytest.fixture
def ray_folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A folder for Ray, whose sockets need a short path."""
    with tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp", ignore_cleanup_errors=True) as own:
        monkeypatch.setenv("RAY_TMPDIR", own)
        yield


@pytest.fixture(scope="session")
def database() -> Database:
    return load_database(RAW)


@pytest.fixture(scope="session")
def record_file(database: Database) -> RecordFile:
    """Ranks 1 to 5 of case7, one of each band, none measured; the times are invented."""
    ranked = sorted(database.valid, key=lambda record: record.time_ms)[: len(BANDS)]
    return RecordFile(
        workload=CASES["case7"],
        tuner=FORMS["tvm"].tuner,
        gpu="Test GPU",
        driver="580.0",
        toolchain={"tvm": "0.27.0.post1", "target": json.loads(ranked[0].text)[2]},
        date="2026-11-21",
        trials_total=len(database.records),
        trials_valid=len(database.valid),
        records=tuple(
            Record(rank, band, record.text)
            for rank, (band, record) in enumerate(zip(BANDS, ranked, strict=True), start=1)
        ),
    )


@pytest.hookimpl(tryfirst=True)  # before xdist takes its own default
def pytest_cmdline_main(config: pytest.Config) -> None:
    """Workers that have nothing left take tests from others, who keep whole modules otherwise."""
    _keep_compiled(config)
    # Other tests or workers keep all cores busy: threads of libraries would wait for one another.
    for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ.setdefault(variable, "1")
    if getattr(config.option, "numprocesses", None) and config.option.dist == "no":
        config.option.dist = "worksteal"


def _keep_compiled(config: pytest.Config) -> None:
    """Keep compiled modules in pytest's cache, if Python shall write none beside their sources.

    Otherwise each worker, and each process that tests start, would compile all that it imports,
    which takes two thirds of what it takes to collect the tests.
    """
    if sys.dont_write_bytecode and (cache := getattr(config, "cache", None)) is not None:
        folder = cache.mkdir("bytecode")
        # Of projects that tests of earlier runs made.
        shutil.rmtree(folder.joinpath(*Path(tempfile.gettempdir()).parts[1:]), ignore_errors=True)
        sys.pycache_prefix, sys.dont_write_bytecode = str(folder), False
        os.environ["PYTHONPYCACHEPREFIX"] = str(folder)
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> object:
    """Run a test where Python 3.11 has room for the frames of all that it calls.

    Otherwise, a loop at the end of a 16 KiB chunk of frames maps and unmaps memory with each call.
    """
    return _with_room(item, nextitem)


def _with_room(item: pytest.Item, nextitem: pytest.Item | None) -> object:
    return runner.pytest_runtest_protocol(item, nextitem)


# A frame of more than 1 MiB is in a chunk of 2 MiB, where the frames after it have room, too.
_with_room.__code__ = _with_room.__code__.replace(co_stacksize=140_000)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int | None:
    """For ``-n auto``, start three workers on two cores: tests wait for processes of their own."""
    if os.environ.get("PYTEST_XDIST_AUTO_NUM_WORKERS"):
        return None
    return len(os.sched_getaffinity(0)) * 3 // 2


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes(config: pytest.Config) -> None:
    """If all tests run, build what kernels share while the workers collect them."""
    tests = Path(__file__).parent
    folders = [(config.invocation_params.dir / arg).resolve() for arg in config.args]
    if not {tests, tests.parent}.isdisjoint(folders):
        # pytest's own attribute, because no test has begun whose fixture could be asked.
        factory: pytest.TempPathFactory = vars(config)["_tmp_path_factory"]
        cache = factory.getbasetemp() / "cache"
        threading.Thread(target=_prepare_toolchain, args=[cache, factory], daemon=True).start()


def _prepare_toolchain(cache: Path, factory: pytest.TempPathFactory) -> None:
    # Tests that need it say why it cannot be built; a run may also end before it is.
    with contextlib.suppress(GpuEnergyError, OSError):
        _copy_toolchain(cache, factory)
        Toolchain.prepare(cache / "emulated" / "host", find_compiler(), jobs=2)


def pytest_collection_finish() -> None:
    """Let no later search for garbage look through all that was imported and collected."""
    gc.freeze()
    # Tests make little garbage in circles, and Hypothesis has a function called at each search.
    gc.set_threshold(20_000, 20, 20)
    gc.enable()


@pytest.hookimpl(tryfirst=True)  # before -m chooses
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark what is slow, which workers begin with; skip what cannot run here, with the reason.

    Of a function that cannot run, only the first item is skipped; its others are deselected.
    """
    marks = {item: {mark.name for mark in item.iter_markers()} for item in items}
    for item, names in marks.items():
        if names & {"tvm", "browser"}:
            item.add_marker("slow")
            names.add("slow")
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: "slow" not in marks[item])
    checks = (
        ("gpu", _why_no_gpu),
        ("ray", _why_no_ray),
        ("tvm", _why_no_tvm),
        ("thorough", _why_not_thorough),
    )
    deselected = set()
    for marker, why_not in checks:
        marked = [item for item in items if marker in marks[item]]
        if marked and (reason := why_not()):
            # One item of each function tells the reason: to skip hundreds takes seconds.
            told = {_function(item): item for item in reversed(marked)}
            deselected |= set(marked).difference(told.values())
            for item in told.values():
                item.add_marker(pytest.mark.skip(reason=reason))
    if deselected:
        config.hook.pytest_deselected(items=[item for item in items if item in deselected])
        items[:] = [item for item in items if item not in deselected]


def _function(item: pytest.Item) -> str:
    """The id of an item's function."""
    return item.nodeid.partition("[")[0]


def _why_not_thorough() -> str | None:
    return None if THOROUGH else "repeats what another test shows: set GPUENERGY_THOROUGH=1"


def _why_no_ray() -> str | None:
    return None if find_spec("ray") else "needs Ray: pip install 'pytest-gpuenergy[ray]'"


def _why_no_tvm() -> str | None:
    version = installed_tvm()
    if version is not None and version.startswith("0.27."):
        return None
    return f"needs Apache TVM 0.27: {version or 'none'} is installed"


def _why_no_gpu() -> str | None:
    from pytest_gpuenergy.devices import find_gpus
    from pytest_gpuenergy.support import DeviceError

    try:
        _, gpus = find_gpus()
    except DeviceError as error:
        return f"needs an NVIDIA GPU: {error}"
    return None if gpus else "needs an NVIDIA GPU: CUDA sees none"
