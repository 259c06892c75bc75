"""Files are data: whatever stands in them, no code runs and nothing is written."""

from __future__ import annotations

import contextlib
import json
import math
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from report_fixtures import a_run

from pytest_gpuenergy.kernels import Kernel, Launch, launch_plan, load_kernel
from pytest_gpuenergy.replay import read_list, read_power
from pytest_gpuenergy.report import Report, load_report, write_json
from pytest_gpuenergy.support import GpuEnergyError
from pytest_gpuenergy.tuners import load_database, load_records
from pytest_gpuenergy.tuning import RecordFile, dump_records

LOADERS: dict[str, Callable[[Path], object]] = {
    "records": load_records,
    "plan": load_kernel,
    "report": load_report,
    "database": load_database,
    "kernels": read_list,
    "power": read_power,
}
HOSTILE = (
    "__import__('os').system('touch /tmp/owned')",
    "${HOME}`touch owned`$(touch owned);|&",
    "!!python/object/apply:os.system ['touch owned']",
    "../../../../etc/passwd",
    "/etc/passwd",
    "\0",
    "%n%s" * 50,
    "\ud800",
    "x" * 100_000,
    "<script>alert(1)</script>",
)
WATCHER = '''
"""Loads files with everything forbidden that reading them does not take."""
import builtins, json, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from test_hostile_files import LOADERS
from pytest_gpuenergy.support.errors import GpuEnergyError
import pytest_gpuenergy.workloads  # what the loaders import at first use

FORBIDDEN = ("exec", "compile", "os.system", "os.exec", "os.posix_spawn", "os.fork", "socket.",
             "subprocess.Popen", "pickle.find_class", "ctypes.dlopen", "os.remove", "os.rename",
             "os.mkdir", "shutil.")
seen, watching = set(), False
def watch(event, arguments):
    if not watching:
        return
    if event.startswith(FORBIDDEN):
        seen.add(f"{event} {str(arguments)[:100]}")
    elif event == "open":
        path, mode, _ = arguments
        writes = isinstance(mode, str) and set(mode) & set("wax+")
        ours = (sys.argv[2], sys.prefix, sys.base_prefix)
        inside = not isinstance(path, str) or path.startswith(ours)
        if writes or not inside:
            seen.add(f"open {path} {mode}")
sys.addaudithook(watch)
for watched in (False, True):  # the first round imports what is imported at first use
    watching = watched
    for path in sorted(Path(sys.argv[2]).glob("*/*.json")):
        try:
            LOADERS[path.parent.name](path)
        except GpuEnergyError:
            pass
watching = False
print(json.dumps(sorted(seen)))
'''


@pytest.fixture
def documents(record_file: RecordFile, tmp_path: Path) -> dict[str, Any]:
    """A good file for each loader but the database's."""
    dump_records(record_file, tmp_path / "records.json")
    kernel = Kernel(
        'extern "C" __global__ void f(float* y) {}', (Launch("f", (1, 1, 1), (1, 1, 1), ("y",)),)
    )
    run = a_run()
    write_json(Report(run, ()), tmp_path / "report.json")
    return {
        "records": json.loads((tmp_path / "records.json").read_text()),
        "plan": launch_plan(kernel, "f.cu"),
        "report": json.loads((tmp_path / "report.json").read_text()),
    }


def poisoned(document: Any) -> Iterator[Any]:
    """The document with one of its strings replaced by something hostile, for every place."""
    if isinstance(document, str):
        yield from HOSTILE
    elif isinstance(document, dict):
        for key, value in document.items():
            yield from ({**document, key: bad} for bad in poisoned(value))
    elif isinstance(document, list):
        for place, value in enumerate(document[:2]):
            for bad in poisoned(value):
                yield [*document[:place], bad, *document[place + 1 :]]


@pytest.mark.slow
def test_no_file_runs_code_writes_or_leads_elsewhere(documents, tmp_path):
    folder = tmp_path / "hostile"
    count = 0
    for name, document in documents.items():
        (folder / name).mkdir(parents=True)
        for count, bad in enumerate([document, *poisoned(document)]):
            (folder / name / f"{count}.json").write_text(json.dumps(bad))
        assert count >= len(HOSTILE)
    bomb = pickle.dumps(print)
    for name in LOADERS:
        (folder / name).mkdir(exist_ok=True)
        (folder / name / "pickle.json").write_bytes(bomb)
    done = subprocess.run(
        [sys.executable, "-c", WATCHER, str(Path(__file__).parent), str(folder)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == []


@pytest.mark.parametrize("loader", LOADERS)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=st.binary(max_size=300) | st.text(max_size=300).map(str.encode))
def test_any_bytes_are_read_or_refused(tmp_path, loader, content):
    path = tmp_path / "file.json"
    path.write_bytes(content)
    with contextlib.suppress(GpuEnergyError):
        LOADERS[loader](path)


@pytest.mark.parametrize("loader", ["records", "plan", "report"])
@pytest.mark.parametrize("keep", [0, 1, 100, -1, -100])
def test_a_truncated_file_is_refused(tmp_path, documents, loader, keep):
    text = json.dumps(documents[loader])
    path = tmp_path / "file.json"
    path.write_text(text[:keep])
    with pytest.raises(GpuEnergyError):
        LOADERS[loader](path)


@pytest.mark.parametrize("loader", LOADERS)
@pytest.mark.parametrize("opening", ["[", '{"a":'], ids=["lists", "objects"])
def test_a_file_that_is_nested_too_deeply_is_refused(tmp_path, loader, opening):
    path = tmp_path / "file.json"
    path.write_text(opening * 100_000)
    with pytest.raises(GpuEnergyError):
        LOADERS[loader](path)


def misnumbered(document: Any) -> Iterator[Any]:
    """The document with one of its numbers replaced by an impossible one, for every place."""
    if type(document) in (int, float):
        yield from (math.nan, math.inf, -math.inf, 10**400, 2**64, -1, -1e308, 5e-324, True)
        yield nested(900)
    elif isinstance(document, dict):
        for key, value in document.items():
            yield from ({**document, key: bad} for bad in misnumbered(value))
    elif isinstance(document, list):
        for place, value in enumerate(document[:2]):
            for bad in misnumbered(value):
                yield [*document[:place], bad, *document[place + 1 :]]


def nested(depth: int) -> Any:
    value: Any = 0
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.slow
@pytest.mark.parametrize("loader", ["records", "plan", "report"])
def test_impossible_numbers_are_read_or_refused(tmp_path, documents, loader):
    path = tmp_path / "file.json"
    for bad in misnumbered(documents[loader]):
        path.write_text(json.dumps(bad))
        with contextlib.suppress(GpuEnergyError):
            LOADERS[loader](path)


@pytest.mark.slow
@pytest.mark.parametrize("loader", LOADERS)
def test_a_huge_file_is_refused_unread(tmp_path, loader):
    path = tmp_path / "file.json"
    with path.open("wb") as file:
        file.truncate(1 << 40)  # sparse: it takes no room
    with pytest.raises(GpuEnergyError, match="larger than"):
        LOADERS[loader](path)


@pytest.mark.parametrize("loader", LOADERS)
@pytest.mark.parametrize("kind", ["folder", "loop", "pipe"])
def test_what_is_no_file_is_refused(tmp_path, loader, kind):
    path = tmp_path / "file.json"
    if kind == "folder":
        path.mkdir()
    elif kind == "loop":
        path.symlink_to(path)
    else:
        os.mkfifo(path)  # nobody writes: opening it would wait for ever
    with pytest.raises(GpuEnergyError):
        LOADERS[loader](path)
