"""One user at a time on each GPU, across processes."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path

from pytest_gpuenergy.devices.gpu import Gpu
from pytest_gpuenergy.errors import DeviceError
from pytest_gpuenergy.paths import state_dir

MACHINE_FOLDER = Path("/tmp")  # noqa: S108 -- the same for all, whatever their TMPDIR is
_POLL_S = 0.1
_NAMING_S = 1.0
"""A process that has just got the lock takes this long, at most, to write who it is."""


@contextlib.contextmanager
def gpu_lock(device: Gpu, *, wait_s: float, group: str = "") -> Iterator[None]:
    """Hold ``device`` for this process alone, against every other user of this package.

    Args:
        device: the GPU.
        wait_s: how long to wait for another process that holds it.
        group: processes of one group, such as the workers of one run, wait for each other however
            long that takes.

    Raises:
        DeviceError: another process holds it for longer than ``wait_s``, or there is no place for
            the lock.
    """
    descriptor = _open(_folder(device) / f"{device.uuid}.lock")
    try:
        # Whether the holder is one of ours is known once it has had time to say so.
        patience_s = max(wait_s, _NAMING_S) if group else wait_s
        deadline_s = time.monotonic() + patience_s
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                holder, _, holders_group = _holder(descriptor).partition(" ")
                if group and holders_group == group:
                    deadline_s = time.monotonic() + patience_s
                elif time.monotonic() >= deadline_s:
                    raise DeviceError(
                        f"{device.name} ({device.uuid}) is in use by process {holder or '?'}: "
                        "wait for it to end (pytest: --gpuenergy-lock-wait SECONDS), or choose "
                        "another GPU."
                    ) from None
                time.sleep(_POLL_S)
        with contextlib.suppress(OSError):  # another user's file, which is open for reading only
            written = os.pwrite(descriptor, f"{os.getpid()} {group}".strip().encode(), 0)
            os.ftruncate(descriptor, written)
        yield
    finally:
        os.close(descriptor)


def _holder(descriptor: int) -> str:
    return os.pread(descriptor, 100, 0).decode(errors="replace").strip()


def _folder(device: Gpu) -> Path:
    """A real GPU is shared by all users of the machine, an emulated one by those of its state."""
    if device.emulated:
        return state_dir("locks")
    return MACHINE_FOLDER / "pytest-gpuenergy-locks"


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
