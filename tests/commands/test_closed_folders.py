"""Paths that cannot be looked at end a command with one sentence."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from closed_folders import close
from points import each_once

from pytest_gpuenergy.cli import main

COMMANDS = [
    "report {}",
    "report {} --json -",
    "report . --json {}",
    "report . --csv {}",
    "compare {} {}",
    "baseline update {}",
    "baseline update . --to {}",
    "history --json {}",
    "kernels list --records {}",
    "kernels export --records {} --out out",
    "kernels export --out {}",
    "tune --case case1 --trials 1 --out {}",
    "ab HEAD HEAD {}",
]


def complaint(capsys: pytest.CaptureFixture[str]) -> str:
    """What is on stderr."""
    return capsys.readouterr().err.rstrip()


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("command", "name"), each_once(COMMANDS, {"name": "x" * 300, "path": "y/" * 2100})
)
def test_a_name_that_is_too_long_is_one_sentence(
    capsys: pytest.CaptureFixture[str], command: str, name: str
) -> None:
    assert main(command.replace("{}", name).split()) in (1, 2)
    found = complaint(capsys)
    assert found.startswith("gpuenergy: error: ")
    assert "\n" not in found


@pytest.mark.parametrize("command", COMMANDS)
def test_a_folder_without_permission_is_one_sentence(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    command: str,
) -> None:
    (tmp_path / "closed").mkdir()
    close(tmp_path / "closed", monkeypatch)
    place = tmp_path / "closed" / "in"
    assert main(command.replace("{}", str(place)).split()) in (1, 2)
    found = complaint(capsys)
    assert found.startswith("gpuenergy: error: ")
    assert "\n" not in found


@pytest.mark.parametrize("command", ["report", "compare b", "history", "clean", "baseline update"])
def test_another_users_folder_of_runs_is_one_sentence(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    command: str,
) -> None:
    (tmp_path / ".gpuenergy").mkdir()
    close(tmp_path / ".gpuenergy", monkeypatch)
    assert main(command.split()) in (1, 2)
    found = complaint(capsys)
    assert found.startswith("gpuenergy: error: ")
    assert "\n" not in found


def test_an_error_of_the_system_that_names_a_file_is_one_sentence(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: object) -> int:
        raise OSError(5, os.strerror(5), "/some/file")

    monkeypatch.setattr("pytest_gpuenergy.commands.clean.run", fail)
    assert main(["clean"]) == 1
    assert complaint(capsys) == "gpuenergy: error: /some/file cannot be used: Input/output error."
