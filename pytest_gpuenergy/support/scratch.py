"""Temporary folders for large buffers, removed at the next start when a process was killed."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from pytest_gpuenergy.support.files import lock

_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 -- memory rather than disk, where there is such a thing
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NAME = re.compile(r"gpuenergy-\d+-\w+")


@contextlib.contextmanager
def scratch_folder(size_bytes: int) -> Iterator[Path]:
    """A folder for files of this size altogether, in memory if that has room for it four times.

    The folder is locked while it is used, which tells it from one that was left behind.

    Raises:
        OSError: it cannot be made.
    """
    draft = Path(tempfile.mkdtemp(prefix="gpuenergy-new-", dir=_place(size_bytes)))
    folder = draft.with_name(draft.name.replace("-new-", f"-{os.getpid()}-"))
    descriptor = os.open(draft, _FOLDER)
    try:
        lock(descriptor)
        draft.rename(folder)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(descriptor)


def remove_leftovers() -> None:
    """Remove the scratch folders of this user's processes that are gone."""
    for place in (_SHARED_MEMORY, Path(tempfile.gettempdir())):
        with contextlib.suppress(OSError):
            for folder in place.iterdir():
                if _NAME.fullmatch(folder.name):
                    _remove_if_left(folder)


def _remove_if_left(folder: Path) -> None:
    with contextlib.suppress(OSError):  # somebody else's, or in use
        descriptor = os.open(folder, _FOLDER)
        try:
            ours = os.fstat(descriptor).st_uid == os.geteuid()
            if ours and lock(descriptor, wait=False):
                shutil.rmtree(folder, ignore_errors=True)
        finally:
            os.close(descriptor)


def _place(size_bytes: int) -> Path | None:
    """A container's /dev/shm is often 64 MiB, and other runs need some of it."""
    if not os.access(_SHARED_MEMORY, os.W_OK):
        return None
    return _SHARED_MEMORY if shutil.disk_usage(_SHARED_MEMORY).free > 4 * size_bytes else None
