"""Makes temporary folders and git worktrees, and removes those that killed processes have left."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from pytest_gpuenergy.support.children import start_ticks
from pytest_gpuenergy.support.errors import InputError
from pytest_gpuenergy.support.files import is_folder, is_there, lock
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


_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 -- memory rather than disk, if it exists
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NAME = re.compile(r"(gpuenergy|\.build)-[0-9]{1,9}-\w+")
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_LOCKING_S = 60.0
"""A process locks a folder that it has created well within this time."""


@contextlib.contextmanager
def scratch_folder(size_bytes: int) -> Iterator[Path]:
    """Make a folder for files of this total size, in memory if four times as much fits there.

    The folder is locked while in use, which distinguishes it from one that was left behind.

    Raises:
        OSError: the folder cannot be created.
    """
    # /dev/shm if it has room to spare, as other runs need some; a container's is small.
    roomy = (
        os.access(_SHARED_MEMORY, os.W_OK)
        and shutil.disk_usage(_SHARED_MEMORY).free > 4 * size_bytes
    )
    with _locked_folder(_SHARED_MEMORY if roomy else None) as folder:
        yield folder


@contextlib.contextmanager
def disk_folder() -> Iterator[Path]:
    """Make a folder as `scratch_folder` does, but on disk; it may contain git worktrees.

    Raises:
        OSError: the folder cannot be created.
    """
    with _locked_folder(None) as folder:
        yield folder


@contextlib.contextmanager
def build_folder(place: Path) -> Iterator[Path]:
    """Make a folder for a build inside ``place``, into which the result is renamed once complete.

    `sweep` removes the folders of killed processes.

    Args:
        place: a cache folder.

    Raises:
        OSError: the folder cannot be created.
    """
    with _locked_folder(place, prefix=".build-") as folder:
        yield folder


def remove_leftovers() -> None:
    """Remove scratch folders left behind by this user's dead processes."""
    for place in (_SHARED_MEMORY, Path(tempfile.gettempdir())):
        sweep(place)


def sweep(place: Path) -> None:
    """Remove the folders in ``place`` that this user's dead processes left behind."""
    try:
        folders = [folder for folder in place.iterdir() if _NAME.fullmatch(folder.name)]
    except OSError:
        return
    for folder in folders:
        with contextlib.suppress(OSError):  # another user's, or already gone
            descriptor = os.open(folder, _FOLDER)
            try:
                status, pid = os.fstat(descriptor), int(folder.name.split("-")[1])
                # A living process may have just created the folder, and be about to lock it.
                is_new = start_ticks(pid) is not None and time.time() - status.st_mtime < _LOCKING_S
                if status.st_uid == os.geteuid() and not is_new and lock(descriptor, wait=False):
                    repositories = worktree_repositories(folder)
                    shutil.rmtree(folder, ignore_errors=True)
                    for repository in repositories:
                        forget_removed_worktrees(repository)
            finally:
                os.close(descriptor)


@contextlib.contextmanager
def _locked_folder(place: Path | None, *, prefix: str = "gpuenergy-") -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix=f"{prefix}{os.getpid()}-", dir=place))
    descriptor = os.open(folder, _FOLDER)
    try:
        lock(descriptor)
        yield folder
    except OSError as error:
        if error.filename is None and error.errno in _NO_ROOM:  # a failed write names no file
            error.filename = str(folder)
        raise
    finally:
        try:
            with uninterrupted():
                shutil.rmtree(folder, ignore_errors=True)
        finally:
            os.close(descriptor)
