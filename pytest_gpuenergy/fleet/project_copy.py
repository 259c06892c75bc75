"""Copies the project that Ray has sent to a node, because Ray removes what it has sent."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
import time
from pathlib import Path

from pytest_gpuenergy.report import HOME
from pytest_gpuenergy.support import DeviceError, is_folder, state_dir

_COPY_LIFETIME_S = 7 * 86400.0
"""The time after which a copy that has not been used is removed."""


def persistent_copy(sent: Path, name: str) -> Path:
    """Return a copy of the project in ``sent`` whose results folder survives Ray's cleanup.

    Ray removes what it has sent when it needs the space, with everything that was written there.

    Args:
        sent: The folder to which Ray has sent the project.
        name: The name of the project; all copies of a project share a results folder.

    Raises:
        GpuEnergyError, OSError: The copy cannot be written.
    """
    copies = state_dir("fleet", name, "copies")
    copy = copies / sent.name
    if not is_folder(copy):
        _make_copy(sent, copy, results=state_dir("fleet", name, HOME))
    os.utime(copy)  # it is in use
    oldest_s = time.time() - _COPY_LIFETIME_S
    with os.scandir(copies) as entries:
        unused = [entry.path for entry in entries if entry.stat().st_mtime < oldest_s]
    for path in unused:
        shutil.rmtree(path, ignore_errors=True)
    return copy


def _make_copy(sent: Path, copy: Path, *, results: Path) -> None:
    """Copy ``sent`` to ``copy``, unless another actor of the node does so first."""
    unfinished = Path(tempfile.mkdtemp(prefix=".", dir=copy.parent))
    try:
        shutil.copytree(sent, unfinished, symlinks=True, dirs_exist_ok=True)
        (unfinished / HOME).symlink_to(results)
        try:
            unfinished.rename(copy)
        except OSError as error:
            if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):  # another actor was first
                raise
    except shutil.Error as error:  # contains a list of files, each with its reason
        reason = error.args[0][0][2]
        raise DeviceError(
            f"The project cannot be copied to {copy.parent} ({reason}): make room there."
        ) from None
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)  # where it has not become the copy
