"""Two revisions of a project, and pytest in each of them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_gpuenergy.support.children import run_child
from pytest_gpuenergy.support.errors import GpuEnergyError, InputError
from pytest_gpuenergy.support.worktrees import run_git

_LINES_SHOWN = 30
_OK, _TESTS_FAILED, _USAGE_ERROR, _NOTHING_COLLECTED = 0, 1, 4, 5  # pytest.ExitCode


@dataclass(frozen=True)
class PytestRun:
    """A run of pytest that came to its end.

    Attributes:
        failed: whether a test failed, or the run as a whole.
        end: the last lines of its output.
    """

    failed: bool
    end: str


def commit_of(folder: Path, revision: str) -> str:
    """The full hash of the commit that ``revision`` names.

    Raises:
        InputError: git, the repository or the revision is missing.
    """
    run_git(folder, "rev-parse", "--show-toplevel")  # tells a missing repository from a revision
    try:
        # A revision that begins with a dash would be an option.
        return run_git(
            folder, "rev-parse", "--verify", "--end-of-options", f"{revision}^{{commit}}"
        )
    except InputError:
        raise InputError(
            f"There is no revision {revision!r} in {folder}: give a branch, a tag or a commit."
        ) from None


def check_paths(folder: Path, paths: Sequence[str], title: str) -> None:
    """Make sure that ``folder`` has the tests that ``paths`` name.

    Args:
        folder: of the revision.
        paths: as for pytest, with or without ``::`` and a name.
        title: of the revision, for messages.

    Raises:
        InputError: a path is missing, or leads out of the revision.
    """
    for path in (path.partition("::")[0] for path in paths):
        if Path(path).is_absolute():
            raise InputError(
                f"{path} is the same file in both revisions: give a path relative to this folder."
            )
        if not (folder / path).exists():
            raise InputError(f"There is no {path} at {title}: name tests that both revisions have.")


def run_pytest(folder: Path, arguments: Sequence[str], title: str) -> PytestRun:
    """Run pytest in ``folder``, quietly. That tests fail, or that there are none, is no error.

    Args:
        folder: where to run it.
        arguments: of the command line.
        title: of the revision, for messages.

    Raises:
        InputError: pytest does not accept the arguments; the message ends with what it said.
        GpuEnergyError: it broke off; likewise.
    """
    # -P: what is imported by name comes from the environment, as with the command pytest.
    command = [sys.executable, "-P", "-m", "pytest", "-q", *arguments]
    done = run_child(command, folder)
    end = "\n".join(done.stdout.splitlines()[-_LINES_SHOWN:])
    if done.returncode == _USAGE_ERROR:
        raise InputError(f"pytest does not accept what it is given at {title}:\n{end}")
    if done.returncode not in (_OK, _TESTS_FAILED, _NOTHING_COLLECTED):
        raise GpuEnergyError(f"pytest broke off at {title} with code {done.returncode}:\n{end}")
    return PytestRun(done.returncode == _TESTS_FAILED, end)
