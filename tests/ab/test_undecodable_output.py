"""Programs whose output is no UTF-8 text."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import pytest_gpuenergy
from pytest_gpuenergy.ab import run_pytest
from pytest_gpuenergy.support import GpuEnergyError, InputError, run_git

PACKAGE = Path(pytest_gpuenergy.__file__).parent
NOISE = """
import os
def pytest_unconfigure():
    os.write(1, b"caf\\xe9 \\xff\\xfe\\n")
    os.write(2, b"\\x80\\n")
"""


@pytest.fixture
def noisy(tmp_path: Path, warm_python: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sys, "executable", str(warm_python))
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = -p no:cacheprovider\n")
    (tmp_path / "conftest.py").write_text(NOISE)
    return tmp_path


@pytest.mark.slow
def test_a_run_that_prints_bytes_has_an_end(noisy):
    (noisy / "test_it.py").write_text("def test_it(): assert False")
    run = run_pytest(noisy, ["test_it.py"], "one")
    assert run.failed
    assert "caf\ufffd" in run.end


@pytest.mark.slow
def test_a_run_that_prints_bytes_and_fails_is_one_message(noisy):
    with pytest.raises(InputError, match="pytest rejects its arguments at one"):
        run_pytest(noisy, ["missing.py"], "one")
    (noisy / "test_it.py").write_text("import os\ndef test_it(): os._exit(9)")
    with pytest.raises(GpuEnergyError, match="pytest ended with exit code 9 at one"):
        run_pytest(noisy, ["test_it.py"], "one")


def test_a_repository_may_have_a_name_that_is_no_text(tmp_path):
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9"))
    try:
        folder.mkdir()
    except OSError:
        pytest.skip("this file system takes UTF-8 names only")
    subprocess.run(["git", "init", "-q"], cwd=folder, check=True)
    assert Path(run_git(folder, "rev-parse", "--show-toplevel")) == folder.resolve()


def test_no_output_of_a_program_is_taken_for_text():
    found = [
        f"{path.relative_to(PACKAGE)}:{call.lineno}"
        for path in sorted(PACKAGE.rglob("*.py"))
        if re.search(r"\b(capture_output|stdout|stderr)=", source := path.read_text())
        for call in ast.walk(ast.parse(source))
        if isinstance(call, ast.Call)
        and {"text", "encoding", "universal_newlines"} & (names := {k.arg for k in call.keywords})
        and {"capture_output", "stdout", "stderr"} & names
        and "errors" not in names
    ]
    assert found == [], "give errors="
