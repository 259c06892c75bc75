"""Resolves revisions of a project, runs pytest in them, and loads the energy items of each."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_gpuenergy.ab.exhibit import Exhibit, load_exhibits, load_problems
from pytest_gpuenergy.support import (
    GpuEnergyError,
    InputError,
    is_folder,
    is_there,
    run_child,
    run_git,
)

_LINES_SHOWN = 30
_OK, _TESTS_FAILED, _USAGE_ERROR, _NOTHING_COLLECTED = 0, 1, 4, 5  # pytest.ExitCode


@dataclass(frozen=True)
class PytestRun:
    """A completed run of pytest: whether a test or the whole run failed, and its last lines."""

    failed: bool
    end: str


def resolve_commit(folder: Path, revision: str) -> str:
    """Return the full hash of the commit that ``revision`` names.

    Raises:
        InputError: Git, the repository or the revision is missing.
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
        folder: The folder of the revision.
        paths: The paths as pytest takes them, with or without ``::`` and a name.
        title: The name of the revision in messages.

    Raises:
        InputError: A path is missing or absolute.
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
        folder: The folder to run it in.
        arguments: The command-line arguments for pytest.
        title: The name of the revision in messages.

    Raises:
        InputError: pytest rejects the arguments; the message ends with pytest's own.
        GpuEnergyError: pytest was interrupted or crashed; the message ends with pytest's own.
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


@dataclass(frozen=True)
class RevisionItems:
    """A revision's name in messages, and its exported energy items, if it has any."""

    title: str
    exhibits: tuple[Exhibit, ...]


def load_side(folder: Path, title: str, done: PytestRun) -> RevisionItems:
    """Read what the pytest run ``done`` exported to ``folder``.

    Raises:
        InputError: none of its energy items can be exported, or the files are damaged.
        GpuEnergyError: the run as a whole failed, or all of its energy items failed before they
            could be exported.
    """
    exhibits = load_exhibits(folder)
    if problems := load_problems(folder):
        raise GpuEnergyError(f"At {title}: {' '.join(problems)}")
    if exhibits or not is_folder(folder):
        return RevisionItems(title, exhibits)
    if done.failed:
        raise GpuEnergyError(f"No kernel could be verified at {title}:\n{done.end}")
    raise InputError(
        f"None of the energy items at {title} can be exported: pass kernels to energy_benchmark, "
        "because callables cannot be compared between revisions. pytest -rs lists what is skipped."
    )


def check_sides(base: RevisionItems, head: RevisionItems) -> None:
    """Check that both revisions have energy items.

    Raises:
        InputError: one or both have none.
    """
    if base.exhibits and head.exhibits:
        return
    if not base.exhibits and not head.exhibits:
        raise InputError(
            f"Neither {base.title} nor {head.title} has an energy item among the selected tests: "
            "name the folder or file of the bench, as in gpuenergy ab main HEAD bench -k case1."
        )
    full, empty = (base, head) if base.exhibits else (head, base)
    raise InputError(
        f"Among the selected tests, {full.title} has energy items but {empty.title} has none: "
        "choose revisions that both have the bench, and paths that exist in both."
    )
