"""Signals to a run: one to a run with workers, and a second one while the report is written."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

import pytest
from processes import pause

pytestmark = pytest.mark.slow

WAITS = """
import time
from pathlib import Path
import pytest

@pytest.fixture
def card():
    yield
    Path("torn-down").touch()

def test_waits(card):
    Path("started").touch()
    time.sleep(600)
"""
PATIENCE_S = 60.0


@pytest.mark.parametrize(
    "ignored",
    [pytest.param(False, marks=pytest.mark.thorough), True],
    ids=["from a terminal", "in the background"],
)
def test_fixtures_are_torn_down_in_the_workers(project, ignored):
    project.module(WAITS)
    options = ["-p", "xdist", "-n", "1", "--gpu-device", "emulated"]

    def as_a_shell_does() -> None:
        if ignored:
            signal.signal(signal.SIGINT, signal.SIG_IGN)

    with (project.path / "out.txt").open("w") as out:
        run = subprocess.Popen(
            [sys.executable, "-m", "pytest", "-q", *options],
            cwd=project.path,
            stdout=out,
            stderr=out,
            preexec_fn=as_a_shell_does,
        )
    deadline_s = time.monotonic() + PATIENCE_S
    while not (project.path / "started").exists() and time.monotonic() < deadline_s:
        pause()
    run.send_signal(signal.SIGTERM)
    assert run.wait(PATIENCE_S) == pytest.ExitCode.INTERRUPTED
    assert (project.path / "torn-down").exists()


CONFTEST = """
import os, signal
import pytest

@pytest.hookimpl(tryfirst={first})
def {hook}():
    os.kill(os.getpid(), signal.{name})
"""


@pytest.mark.parametrize("hook", ["pytest_terminal_summary", "pytest_unconfigure"])
@pytest.mark.parametrize(
    "name",
    ["SIGINT", *(pytest.param(name, marks=pytest.mark.thorough) for name in ("SIGTERM", "SIGHUP"))],
)
def test_the_report_is_written_all_the_same(project, hook, name):
    project.bench(after="os.kill(os.getpid(), 2)  # SIGINT")
    project.pytester.makeconftest(CONFTEST.format(hook=hook, name=name, first=True))
    result = project.run_apart("--powercap", "1", "--gpuenergy-json", "r.json")
    assert result.ret == pytest.ExitCode.INTERRUPTED
    shown = result.stdout.str() + result.stderr.str()
    assert "Traceback" not in shown
    assert (project.path / "r.json").exists()
