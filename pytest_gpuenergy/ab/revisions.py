"""Resolves revisions of a project and runs pytest in them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_gpuenergy.support import GpuEnergyError, InputError, is_there, run_child, run_git

_LINES_SHOWN = 30
_OK, _TESTS_FAILED, _USAGE_ERROR, _NOTHING_COLLECTED = 0, 1, 4, 5  # pytest.ExitCode


@dataclass(frozen=True)
class PytestRun:
    """A completed run of pytest.

    Attributes:
        failed: whether a test or the run as a whole failed.
        end: the last lines of its output.
    """

    failed: bool
    end: str


def commit_of(folder: Path, revision: str) -> str:
    """The full hash of the commit that ``revision`` names.

    Raises:
        InputError: git, the repository or the revision is missing.
    """
    run_git(folder, "rev-parse", "--show-toplevel")  # reports a missing repository as such
    try:
        # Without --end-of-options, a revision that begins with a dash would be an option.
        return run_git(
            folder, "rev-parse", "--verify", "--end-of-options", f"{revision}^{{commit}}"
        )
    except InputError:
        raise InputError(
            f"There is no revision {revision!r} in {folder}: give a branch, a tag or a commit."
        ) from None


def check_paths(folder: Path, paths: Sequence[str], title: str) -> None:
    """Check that ``folder`` contains the tests that ``paths`` name.

    Args:
        folder: the revision's folder.
        paths: as for pytest, with or without ``::`` and a name.
        title: the revision's name in messages.

    Raises:
        InputError: a path is missing or absolute.
    """
    for path in (path.partition("::")[0] for path in paths):
        if Path(path).is_absolute():
            raise InputError(
                f"{path} is the same file in both revisions: give a path relative to this folder."
            )
        if not is_there(folder / path):
            raise InputError(f"There is no {path} at {title}: name tests that both revisions have.")


def run_pytest(folder: Path, arguments: Sequence[str], title: str) -> PytestRun:
    """Run pytest in ``folder``, quietly. Failing tests, or no tests at all, are not an error.

    Args:
        folder: where to run it.
        arguments: command-line arguments for pytest.
        title: the revision's name in messages.

    Raises:
        InputError: pytest rejects the arguments; the message ends with pytest's own.
        GpuEnergyError: pytest was interrupted or crashed; likewise.
    """
    # -P keeps the working directory off sys.path, as with the command pytest.
    command = [sys.executable, "-P", "-m", "pytest", "-q", *arguments]
    done = run_child(command, folder)
    end = "\n".join(done.stdout.splitlines()[-_LINES_SHOWN:])
    if done.returncode == _USAGE_ERROR:
        raise InputError(f"pytest rejects its arguments at {title}:\n{end}")
    if done.returncode not in (_OK, _TESTS_FAILED, _NOTHING_COLLECTED):
        raise GpuEnergyError(f"pytest ended with exit code {done.returncode} at {title}:\n{end}")
    return PytestRun(done.returncode == _TESTS_FAILED, end)
