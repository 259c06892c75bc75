"""SIGTERM to a run with pytest-xdist's workers: they are interrupted, not waited for and killed."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest
from processes import pause

if TYPE_CHECKING:
    from conftest import Project

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
def test_fixtures_are_torn_down_in_the_workers(project: Project, ignored: bool) -> None:
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
