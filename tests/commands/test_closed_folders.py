"""Paths that cannot be looked at end a command with one sentence."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from closed_folders import close
from command_outcomes import outcome_of
from points import each_once

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
    "tune --shape small=1,9,9,8,8,3,3,1,1,1,8 --tuner template --trials 1 --out {}",
    "ab HEAD HEAD {}",
]


def complaint(command: str) -> str:
    """The one sentence with which a command ends."""
    outcome = outcome_of(*command.split())
    assert outcome.code in (1, 2)
    assert outcome.err.startswith("gpuenergy: error: ")
    assert outcome.err.count("\n") == 1
    return outcome.err.rstrip()


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("command", "name"), each_once(COMMANDS, {"name": "x" * 300, "path": "y/" * 2100})
)
@pytest.mark.slow
def test_a_name_that_is_too_long_is_one_sentence(command, name):
    complaint(command.replace("{}", name))


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.slow
def test_a_folder_without_permission_is_one_sentence(monkeypatch, tmp_path, command):
    (tmp_path / "closed").mkdir()
    close(tmp_path / "closed", monkeypatch)
    complaint(command.replace("{}", str(tmp_path / "closed" / "in")))


@pytest.mark.parametrize("command", ["report", "compare b", "history", "clean", "baseline update"])
def test_another_users_folder_of_runs_is_one_sentence(monkeypatch, tmp_path, command):
    (tmp_path / ".gpuenergy").mkdir()
    close(tmp_path / ".gpuenergy", monkeypatch)
    complaint(command)


def test_an_error_of_the_system_that_names_a_file_is_one_sentence(monkeypatch):
    def fail(_: object) -> int:
        raise OSError(5, os.strerror(5), "/some/file")

    monkeypatch.setattr("pytest_gpuenergy.commands.clean.run", fail)
    assert complaint("clean") == "gpuenergy: error: /some/file cannot be used: Input/output error."
