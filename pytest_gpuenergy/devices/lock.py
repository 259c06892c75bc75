"""One user at a time on each GPU, across processes."""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from pytest_gpuenergy.devices.gpu import Gpu
from pytest_gpuenergy.errors import DeviceError
from pytest_gpuenergy.paths import state_dir

_POLL_S = 0.1


@contextlib.contextmanager
def gpu_lock(device: Gpu, *, wait_s: float) -> Iterator[None]:
    """Hold ``device`` for this process alone, against every other user of this package.

    Raises:
        DeviceError: another process holds it for longer than ``wait_s``, or there is no place for
            the lock.
    """
    descriptor = _open(_folder(device) / f"{device.uuid}.lock")
    try:
        deadline_s = time.monotonic() + wait_s
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= deadline_s:
                    holder = os.pread(descriptor, 20, 0).decode(errors="replace").strip()
                    raise DeviceError(
                        f"{device.name} ({device.uuid}) is in use by process {holder or '?'}: "
                        "wait for it to end, or choose another GPU."
                    ) from None
                time.sleep(_POLL_S)
        with contextlib.suppress(OSError):  # another user's file, which is open for reading only
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, str(os.getpid()).encode(), 0)
        yield
    finally:
        os.close(descriptor)


def _folder(device: Gpu) -> Path:
    """A real GPU is shared by all users of the machine, an emulated one by those of its state."""
    if device.emulated:
        return state_dir("locks")
    return Path(tempfile.gettempdir()) / "pytest-gpuenergy-locks"


def _open(path: Path) -> int:
    try:
        path.parent.mkdir(exist_ok=True)
        with contextlib.suppress(PermissionError):
            path.parent.chmod(0o1777)
        try:
            return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except PermissionError:
            # Another user made it, and Linux protects such files; a lock needs no more than this.
            return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise DeviceError(
            f"The lock {path} cannot be opened ({error.strerror}): make its folder writable."
        ) from None
