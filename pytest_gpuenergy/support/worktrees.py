"""Makes git worktrees in scratch folders, and leaves nothing behind in the repository."""

from __future__ import annotations

import contextlib
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

from pytest_gpuenergy.support.errors import InputError
from pytest_gpuenergy.support.files import is_folder, is_there
from pytest_gpuenergy.support.signals import uninterrupted

_PATIENCE_S = 60.0
_LINK = re.compile(r"gitdir: (?P<repository>.+)/worktrees/[^/\n]+\s*")
_LARGEST_LINK_BYTES = 8192


def run_git(folder: Path, *arguments: str) -> str:
    """Run git in ``folder`` and return what it prints.

    Raises:
        InputError: git is missing or fails.
    """
    try:
        done = subprocess.run(
            ["git", *arguments],
            cwd=folder,
            capture_output=True,
            text=True,
            errors="surrogateescape",  # paths need not be valid text
            timeout=_PATIENCE_S,
            check=False,
            start_new_session=True,  # a Ctrl-C in the terminal must not end it half-way
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise InputError(f"git cannot be run: {error}.") from None
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise InputError(f"git {arguments[0]} fails in {folder}: {last}")
    return done.stdout.strip()


@contextlib.contextmanager
def worktree(folder: Path, commit: str, place: Path) -> Iterator[Path]:
    """Check out ``folder`` as of ``commit`` in a git worktree at ``place``, removed on exit.

    Args:
        folder: the top of a repository, or a folder in it.
        commit: the full hash of the commit.
        place: an unused path in a scratch folder.

    Raises:
        InputError: git cannot create it, or the folder did not exist at that commit.
    """
    top = Path(run_git(folder, "rev-parse", "--show-toplevel"))
    try:
        with uninterrupted():
            run_git(folder, "worktree", "add", "--detach", str(place), commit)
        inside = place / folder.resolve().relative_to(top.resolve())
        if not is_folder(inside):
            raise InputError(f"There is no folder {folder.name} at {commit[:12]}.")
        yield inside
    finally:
        if is_there(place):
            with uninterrupted():
                run_git(folder, "worktree", "remove", "--force", str(place))


def worktree_repositories(scratch: Path) -> set[Path]:
    """Return the repositories that have worktrees in the folder ``scratch``."""
    found = set()
    for link in scratch.glob("*/.git"):
        with contextlib.suppress(OSError, ValueError):
            with link.open(encoding="utf-8") as file:
                text = file.read(_LARGEST_LINK_BYTES)
            if match := _LINK.fullmatch(text):
                found.add(Path(match["repository"]))
    return found


def forget_removed_worktrees(repository: Path) -> None:
    """Have ``repository`` (a ``.git`` folder) forget worktrees whose folders are gone."""
    with contextlib.suppress(InputError):  # the repository or git may be gone too
        run_git(repository, "worktree", "prune")
