"""Files of any content are read, or refused in one sentence: never a traceback, never for long.

CI tries a few examples of each. ``GPUENERGY_FUZZ_EXAMPLES=10000 pytest tests/fuzz`` tries more.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from fuzz_edits import VALUES, nearly
from fuzz_readers import Reader, readers
from hypothesis import HealthCheck, given, settings, strategies as st

from pytest_gpuenergy.record import AnchorCheck, Estimate, Interval, Measurement, Window
from pytest_gpuenergy.report import Report
from pytest_gpuenergy.support import GpuEnergyError
from pytest_gpuenergy.tuning import RecordFile

EXAMPLES = int(os.environ.get("GPUENERGY_FUZZ_EXAMPLES") or 5)
CPU_S = 20
"""Processor time after which reading a file counts as endless: a hundred times what it takes."""
NAMES = (
    "report", "run", "records", "database", "trials", "trace", "plan", "triton", "library",
    "program", "job", "spec", "spec with data", "t4", "state", "lease", "faults", "outputs",
    "kernels", "power", "profile", "schedule",
)  # fmt: skip
FUZZ = settings(
    max_examples=EXAMPLES,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
JSON = VALUES.map(lambda value: json.dumps(value).encode())
Files = dict[Path, bytes]

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def good() -> dict[str, Files]:
    """The good files of each reader, by their path in its folder."""
    return {}


@pytest.fixture
def reader(
    request: pytest.FixtureRequest,
    report: Callable[..., Report],
    measured: Callable[..., Measurement],
    failed: Callable[..., Measurement],
    record_file: RecordFile,
) -> Reader:
    full = measured(
        1,
        time_ms_ci95=Interval(0.499, 0.501),
        energy_mj_ci95=Interval(99.0, 101.0),
        trials=(Window(0.5, 100.0, 1000.0, 0.0),) * 2,
        validity=("interval_wide",),
    )
    check = AnchorCheck(
        *(full.node_id, "case1", "k01", "450W", "good", "2026-01-02T03:04:05+00:00"),
        "2026-01-02T03:09:05+00:00",
        time=Estimate(1.001, 0.999, 1.003),
    )
    made = msgspec.structs.replace(report(full, failed(2)), anchors=(check,))
    return readers(made, record_file, check)[request.param]


@pytest.fixture
def files(
    reader: Reader, good: dict[str, Files], request: pytest.FixtureRequest, tmp_path: Path
) -> Files:
    name = request.node.callspec.params["reader"]
    if name not in good:
        folder = tmp_path / "good"
        folder.mkdir()
        reader.write(folder)
        reader.read(folder)
        good[name] = {
            path.relative_to(folder): path.read_bytes()
            for path in sorted(folder.rglob("*"))
            if path.is_file()
        }
    return good[name]


@contextlib.contextmanager
def bounded() -> Iterator[None]:
    """Fail where reading does not end."""

    def endless(*_: Any) -> None:
        raise AssertionError(f"reading took more than {CPU_S} s of processor time")

    before = signal.signal(signal.SIGPROF, endless)
    signal.setitimer(signal.ITIMER_PROF, CPU_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def refusal(reader: Reader, folder: Path, contents: Files) -> str | None:
    """What is said about the files, or None if they are read."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for path, content in contents.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)
    try:
        with bounded():
            reader.read(folder)
    except GpuEnergyError as error:
        return str(error)
    return None


@st.composite
def nearly_right(draw: st.DrawFn, files: Files) -> Files:
    path = draw(st.sampled_from(sorted(files)))
    return {**files, path: draw(nearly(files[path]))}


@st.composite
def of_any_content(draw: st.DrawFn, files: Files) -> Files:
    content = st.binary(max_size=300) | st.text(max_size=300).map(str.encode) | JSON
    return {**files, draw(st.sampled_from(sorted(files))): draw(content)}


@st.composite
def missing_or_exchanged(draw: st.DrawFn, files: Files) -> Files:
    contents = {path: draw(st.sampled_from([*files.values(), None])) for path in files}
    return {path: content for path, content in contents.items() if content is not None}


@pytest.mark.parametrize("edits", [nearly_right, of_any_content, missing_or_exchanged])
@pytest.mark.parametrize("reader", NAMES, indirect=True)
@FUZZ
@given(data=st.data())
def test_files_are_read_or_refused(reader, edits, files, tmp_path, data):
    said = refusal(reader, tmp_path / "read", data.draw(edits(files)))
    # It fits a terminal: one line of a bearable length that controls nothing.
    assert said is None or (said.isprintable() and 0 < len(said) <= 8003)
