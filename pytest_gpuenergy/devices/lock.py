"""Locks a GPU across processes, so that one of them uses it at a time.

All users of a machine lock a real GPU in one shared folder, created by the first of them. It may
belong to anyone, so nothing in it is trusted: links are not followed, and anything but a plain file
with a single name is refused. The owner of the folder or of a file can deny the lock to others, but
can do no other harm.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import time
from collections.abc import Iterator
from pathlib import Path

from pytest_gpuenergy.devices.device import Gpu
from pytest_gpuenergy.support import DeviceError, keeps_entries, lock, open_file, state_dir

# The same for all users, whatever their TMPDIR. On some systems only root can write in /run/lock.
MACHINE_FOLDER = Path("/tmp")  # noqa: S108 -- see above
_SHARED = "pytest-gpuenergy-locks"
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_FOR_EVERYBODY = 0o1777
_POLL_S = 0.1
_NAMING_S = 1.0
"""The longest time between taking the lock and writing the identity of the process to it."""


@contextlib.contextmanager
def gpu_lock(device: Gpu, *, wait_s: float, group: str = "") -> Iterator[None]:
    """Hold ``device`` exclusively, against all other processes that use this package.

    Args:
        device: the GPU.
        wait_s: how long to wait for another process that holds it.
        group: processes of the same group, such as the workers of one run, wait for each other
            indefinitely.

    Raises:
        DeviceError: another process holds it for longer than ``wait_s``, or the lock cannot be
            opened.
    """
    with _open_folder(device) as folder:
        descriptor = _acquire(device, folder, wait_s, group)
    try:
        with contextlib.suppress(OSError):  # another user's file, opened read-only
            written = os.pwrite(descriptor, f"{os.getpid()} {group}".strip().encode(), 0)
            os.ftruncate(descriptor, written)
        yield
    finally:
        os.close(descriptor)


def _acquire(device: Gpu, folder: int, wait_s: float, group: str) -> int:
    """Return the lock file, open and locked."""
    # The holder's group is only known once it has had time to write it.
    patience_s = max(wait_s, _NAMING_S) if group else wait_s
    deadline_s = time.monotonic() + patience_s
    name = f"{device.uuid}.lock"
    while True:
        with contextlib.ExitStack() as stack:
            with _opening(_path(device)):
                descriptor = _open_lock_file(folder, name)
            stack.callback(os.close, descriptor)
            while not lock(descriptor, wait=False):
                # The ID and group of the process that holds the lock, as written in its file.
                text = os.pread(descriptor, 100, 0).decode(errors="replace").strip()
                number, _, holders_group = text.partition(" ")
                holder = number if number.isascii() and number.isdecimal() else "?"
                if group and holders_group == group:
                    deadline_s = time.monotonic() + patience_s
                elif time.monotonic() >= deadline_s:
                    raise DeviceError(
                        f"{device.name} ({device.uuid}) is in use by process {holder}: "
                        "wait for it to end (pytest: --gpuenergy-lock-wait SECONDS), or choose "
                        "another GPU."
                    )
                time.sleep(_POLL_S)
            with contextlib.suppress(FileNotFoundError):
                named = os.stat(name, dir_fd=folder, follow_symlinks=False)
                if os.path.samestat(os.fstat(descriptor), named):  # later processes lock that name
                    stack.pop_all()
                    return descriptor


def _path(device: Gpu) -> Path:
    """Return the path of a GPU's lock: shared by all users, or in the emulated GPU's folder."""
    folder = state_dir("emulated") if device.emulated else MACHINE_FOLDER / _SHARED
    return folder / f"{device.uuid}.lock"


@contextlib.contextmanager
def _open_folder(device: Gpu) -> Iterator[int]:
    path = _path(device)
    with _opening(path):
        if device.emulated:
            descriptor = os.open(path.parent, _FOLDER | os.O_NOFOLLOW)
        else:
            descriptor = _folder_for_everybody(path.parent)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _folder_for_everybody(path: Path) -> int:
    """Open the shared folder; create it if it is missing."""
    with contextlib.ExitStack() as stack:
        above = os.open(path.parent, _FOLDER)
        stack.callback(os.close, above)
        with contextlib.suppress(FileExistsError):
            os.mkdir(path.name, _FOR_EVERYBODY, dir_fd=above)
        folder = os.open(path.name, _FOLDER | os.O_NOFOLLOW, dir_fd=above)
        with contextlib.ExitStack() as failed:
            failed.callback(os.close, folder)
            status = os.fstat(folder)
            unfinished = stat.S_IMODE(status.st_mode) != _FOR_EVERYBODY  # because of the umask
            # Only if nobody can have replaced it by another folder of ours: that must stay closed.
            if unfinished and status.st_uid == os.geteuid() and keeps_entries(os.fstat(above)):
                os.fchmod(folder, _FOR_EVERYBODY)
            if not keeps_entries(os.fstat(folder)):
                raise PermissionError(errno.EPERM, "other users can replace files in its folder")
            failed.pop_all()
    return folder


def _open_lock_file(folder: int, name: str) -> int:
    """Open the lock file; create it for all users if it is missing."""
    while True:
        # With O_CREAT, Linux refuses even root another user's file in a world-writable folder.
        with contextlib.suppress(FileNotFoundError):
            try:
                return open_file(name, os.O_RDWR, dir_fd=folder)
            except PermissionError:  # another user's, of an earlier release; can still be locked
                return open_file(name, os.O_RDONLY, dir_fd=folder)
        with contextlib.suppress(FileExistsError):
            descriptor = open_file(name, os.O_RDWR | os.O_CREAT | os.O_EXCL, dir_fd=folder)
            os.fchmod(descriptor, 0o666)  # regardless of the umask
            return descriptor


@contextlib.contextmanager
def _opening(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise DeviceError(
            f"The lock {path} cannot be opened ({error.strerror}): make its folder writable, or "
            f"remove {path.parent}, as root if it is another user's."
        ) from None
