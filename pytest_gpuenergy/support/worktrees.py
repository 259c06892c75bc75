"""Git worktrees in scratch folders, of which nothing stays in the repository either."""

from __future__ import annotations

import contextlib
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

from pytest_gpuenergy.support.errors import InputError
from pytest_gpuenergy.support.signals import uninterrupted

_PATIENCE_S = 60.0
_LINK = re.compile(r"gitdir: (?P<repository>.+)/worktrees/[^/\n]+\s*")
_LARGEST_LINK_BYTES = 8192


def run_git(folder: Path, *arguments: str) -> str:
    """What git prints in ``folder``.

    Raises:
        InputError: git is missing, or does not do it.
    """
    try:
        done = subprocess.run(
            ["git", *arguments],
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=_PATIENCE_S,
            check=False,
            start_new_session=True,  # a Ctrl-C in the terminal does not end it half way
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise InputError(f"git cannot be run: {error}.") from None
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise InputError(f"git {arguments[0]} does not work in {folder}: {last}")
    return done.stdout.strip()


@contextlib.contextmanager
def worktree(folder: Path, commit: str, place: Path) -> Iterator[Path]:
    """``folder`` as it was at ``commit``, in a new git worktree at ``place``, removed at the end.

    Args:
        folder: the top of a repository, or a folder in it.
        commit: full hash.
        place: a path in a scratch folder where there is nothing.

    Raises:
        InputError: git cannot make it, or the folder was not there at that commit.
    """
    top = Path(run_git(folder, "rev-parse", "--show-toplevel"))
    try:
        with uninterrupted():
            run_git(folder, "worktree", "add", "--detach", str(place), commit)
        inside = place / folder.resolve().relative_to(top.resolve())
        if not inside.is_dir():
            raise InputError(f"There is no folder {folder.name} at {commit[:12]}.")
        yield inside
    finally:
        if place.exists():
            with uninterrupted():
                run_git(folder, "worktree", "remove", "--force", str(place))


def repositories_of(scratch: Path) -> set[Path]:
    """The repositories of the worktrees that lie in the folder ``scratch``."""
    found = set()
    for link in scratch.glob("*/.git"):
        with contextlib.suppress(OSError, ValueError):
            with link.open(encoding="utf-8") as file:
                text = file.read(_LARGEST_LINK_BYTES)
            if match := _LINK.fullmatch(text):
                found.add(Path(match["repository"]))
    return found


def forget_removed_worktrees(repository: Path) -> None:
    """Have ``repository`` (its ``.git`` folder) forget worktrees whose folders are gone."""
    with contextlib.suppress(InputError):  # it is gone too, or git is
        run_git(repository, "worktree", "prune")
