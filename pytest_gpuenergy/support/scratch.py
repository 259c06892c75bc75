"""Makes temporary folders, and removes those that killed processes have left."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from pytest_gpuenergy.support.children import start_ticks
from pytest_gpuenergy.support.files import lock
from pytest_gpuenergy.support.signals import uninterrupted
from pytest_gpuenergy.support.worktrees import forget_removed_worktrees, worktree_repositories

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
