"""A run folder with damaged bytes, and views that must not replace what is no file of theirs."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from pytest_gpuenergy.report import RunFolder, check_writable, write_json
from pytest_gpuenergy.support import ReportError, ReportInputError

Make = Callable[..., Any]


@pytest.fixture
def folder(tmp_path: Path, measured: Make, run_info: Make) -> RunFolder:
    """A run of three measurements."""
    folder = RunFolder.create(tmp_path, run_info())
    for rank in (1, 2, 3):
        folder.append(measured(rank))
    return folder


@pytest.mark.parametrize("damage", [b"\xff", b"\x80\x81", b"\xed\xa0\x80", b"\0", b"\r"])
def test_a_bad_byte_costs_its_line(folder: RunFolder, damage: bytes) -> None:
    path = folder.path / "measurements.jsonl"
    first, second, third, _ = path.read_bytes().split(b"\n")
    middle = len(second) // 2
    second = second[:5] + damage + second[5:middle] + damage + second[middle:]
    path.write_bytes(b"\n".join([first, second, third, b""]))
    assert [m.kernel.rank for m in folder.load().measurements] == [1, 3]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_bytes_in_a_line_cost_at_most_that_line(folder: RunFolder, data: st.DataObject) -> None:
    path = folder.path / "measurements.jsonl"
    content = path.read_bytes()
    lines = content.split(b"\n")
    lines[1] = data.draw(st.binary(max_size=20).filter(lambda b: b"\n" not in b))
    path.write_bytes(b"\n".join(lines))
    found = "line 2"
    try:
        ranks = [m.kernel.rank for m in folder.load().measurements]
    except ReportInputError as error:  # JSON that is no measurement
        ranks, found = [1, 3], str(error)
    assert (ranks, "line 2" in found) == ([1, 3], True)
    path.write_bytes(content)


@pytest.mark.parametrize("name", ["/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"])
def test_a_log_behind_a_descriptor_is_not_replaced(tmp_path: Path, name: str) -> None:
    log = tmp_path / "log"
    program = (
        "import sys; from pathlib import Path\n"
        "from pytest_gpuenergy.report import write_view\n"
        "from pytest_gpuenergy.support.errors import ReportError\n"
        "print('before', flush=True)\n"
        "try:\n"
        f"    write_view(Path({name!r}), 'replaced')\n"
        "except ReportError as error:\n"
        "    print(error)\n"
    )
    with log.open("w") as stream:
        before = os.fstat(stream.fileno()).st_ino
        subprocess.run([sys.executable, "-c", program], stdout=stream, check=True)
    assert log.stat().st_ino == before
    assert log.read_text() == (
        f"before\n{name} cannot be written (it is not a regular file): choose a writable path.\n"
    )


@pytest.mark.parametrize("name", ["/dev/stdout", "/dev/null", "/proc/self/fd/1"])
def test_what_is_no_regular_file_is_refused_before_anything_is_measured(name: str) -> None:
    with pytest.raises(ReportError, match="it is not a regular file"):
        check_writable(Path(name), folder=False)


def test_a_regular_file_in_memory_is_written(report: Make, measured: Make) -> None:
    place = Path("/dev/shm")
    if not os.access(place, os.W_OK):
        pytest.skip("there is no /dev/shm")
    path = place / f"gpuenergy-test-{os.getpid()}.json"
    try:
        write_json(report(measured(1)), path)
        assert path.stat().st_size
    finally:
        path.unlink(missing_ok=True)
