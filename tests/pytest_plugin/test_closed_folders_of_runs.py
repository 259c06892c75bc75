"""A ``.gpuenergy`` of another user's, which this user cannot look into."""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from closed_folders import close
from points import each_once

if TYPE_CHECKING:
    from conftest import Project


@pytest.fixture
def closed(project: Project, monkeypatch: pytest.MonkeyPatch) -> Project:
    (project.path / ".gpuenergy").mkdir()
    close(project.path / ".gpuenergy", monkeypatch)
    return project


def test_tests_that_measure_nothing_pass(closed):
    closed.module("def test_plain(): pass", "test_plain")
    result = closed.run("test_plain.py")
    result.assert_outcomes(passed=1)
    assert result.ret == pytest.ExitCode.OK


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [(), ("--gpuenergy-resume",)])
def test_items_that_measure_end_the_run_with_one_sentence(closed, arguments):
    result = closed.run("--powercap", "1", *arguments)
    shown = result.stdout.str() + result.stderr.str()
    assert result.ret != pytest.ExitCode.OK
    assert ".gpuenergy" in shown
    assert "Permission denied" in shown
    assert "Traceback" not in shown
    assert "INTERNALERROR" not in shown


@pytest.mark.parametrize(
    ("option", "name"),
    each_once(["json", "csv", "html", "compare"], ["x" * 300, ".gpuenergy/file"]),
)
def test_an_option_with_a_path_that_cannot_be_used_is_one_sentence(closed, option, name):
    result = closed.run(f"--gpuenergy-{option}", name)
    shown = result.stdout.str() + result.stderr.str()
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "ERROR: " in shown
    assert "Traceback" not in shown
    assert "INTERNALERROR" not in shown


def _full(monkeypatch: pytest.MonkeyPatch) -> None:
    make = os.mkdir

    def mkdir(path: str, *arguments: Any, **named: Any) -> None:
        if "full" in Path(path).parts:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
        make(path, *arguments, **named)

    monkeypatch.setattr(os, "mkdir", mkdir)


@pytest.mark.parametrize("variable", ["GPUENERGY_STATE", "GPUENERGY_CACHE"])
@pytest.mark.parametrize("place", ["/proc/nope", "/proc/1", "test_scale.py", "full"])
@pytest.mark.parametrize("arguments", [(), ("--gpuenergy-verify-only",)])
def test_a_folder_of_ours_that_cannot_be_written_is_one_sentence(
    project, monkeypatch, variable, place, arguments
):
    monkeypatch.setenv(variable, place)
    with monkeypatch.context() as patch:
        if place == "full":
            _full(patch)
        result = project.run("--powercap", "1", *arguments)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    (sentence,) = [line for line in result.stderr.str().splitlines() if line]
    assert re.match(
        rf"ERROR: The folder .* cannot be used \(.*\): set {variable} to a fol", sentence
    )
    assert len(result.stdout.str().splitlines()) < 10


def test_a_home_folder_that_cannot_be_written_is_one_sentence(project, monkeypatch):
    for variable in ("GPUENERGY_STATE", "XDG_STATE_HOME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("HOME", "/proc/nope")
    result = project.run("--powercap", "1")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(
        ["ERROR: The folder /proc/nope/.local/state/* cannot be used *: set GPUENERGY_STATE to *"]
    )
    assert "Traceback" not in result.stdout.str() + result.stderr.str()
