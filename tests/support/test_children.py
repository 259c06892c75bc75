"""Commands that run at the same time and end together."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from pytest_gpuenergy.support import run_together

NUMBER = "import os, sys; number = int(os.environ['NUMBER']); "
FOREVER = "import signal; signal.pause()"


def together(text: str, tmp_path: Path) -> list[int | None]:
    environments = [{**os.environ, "NUMBER": str(number)} for number in (0, 1)]
    return run_together([sys.executable, "-c", NUMBER + text], tmp_path, environments, [None, None])


def test_each_has_an_environment_of_its_own(tmp_path):
    assert together("open(str(number), 'w')", tmp_path) == [0, 0]
    assert {path.name for path in tmp_path.iterdir()} == {"0", "1"}


@pytest.fixture
def little_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pytest_gpuenergy.support.children._POLL_S", 0.002)


@pytest.mark.usefixtures("little_patience")
def test_where_one_fails_the_others_are_ended(tmp_path):
    assert together(f"number or sys.exit(3); {FOREVER}", tmp_path) == [3, None]


@pytest.mark.usefixtures("little_patience")
def test_where_one_is_killed_the_others_are_ended(tmp_path):
    text = f"import signal\nif number: os.kill(os.getpid(), signal.SIGKILL)\n{FOREVER}"
    assert together(text, tmp_path) == [None, -9]


def test_what_cannot_be_started_is_said(tmp_path):
    with pytest.raises(OSError, match="absent"):
        run_together([str(tmp_path / "absent")], tmp_path, [{}, {}], [None, None])
