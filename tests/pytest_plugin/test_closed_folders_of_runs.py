"""A ``.gpuenergy`` of another user's, which this user cannot look into."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from closed_folders import close
from points import each_once

if TYPE_CHECKING:
    from conftest import Project

pytestmark = pytest.mark.slow


@pytest.fixture
def closed(project: Project, monkeypatch: pytest.MonkeyPatch) -> Project:
    (project.path / ".gpuenergy").mkdir()
    close(project.path / ".gpuenergy", monkeypatch)
    return project


def test_tests_that_measure_nothing_pass(closed: Project) -> None:
    closed.module("def test_plain(): pass", "test_plain")
    result = closed.run("test_plain.py")
    result.assert_outcomes(passed=1)
    assert result.ret == pytest.ExitCode.OK


@pytest.mark.parametrize("arguments", [(), ("--gpuenergy-resume",)])
def test_items_that_measure_end_the_run_with_one_sentence(
    closed: Project, arguments: tuple[str, ...]
) -> None:
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
def test_an_option_with_a_path_that_cannot_be_used_is_one_sentence(
    closed: Project, option: str, name: str
) -> None:
    result = closed.run(f"--gpuenergy-{option}", name)
    shown = result.stdout.str() + result.stderr.str()
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "ERROR: " in shown
    assert "Traceback" not in shown
    assert "INTERNALERROR" not in shown
