"""Files that others may tamper with: opened without surprises, locked, and written whole."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from contextlib import suppress
from pathlib import Path

from pytest_gpuenergy.support.folders import followed

_CAREFULLY = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


def open_file(path: str | Path, flags: int, mode: int = 0o666, *, dir_fd: int | None = None) -> int:
    """`os.open` of a regular file that has no other name; also an ``opener`` for `open`.

    Neither a link at ``path`` nor a pipe, a device or another name of somebody's file is opened,
    so that whoever may write in the folder cannot have anything else read, written or waited for.
    The file is emptied (``O_TRUNC``) only once it is known to be one.

    Raises:
        OSError: it is something else, or cannot be opened.
    """
    descriptor = os.open(path, flags & ~os.O_TRUNC | _CAREFULLY, mode, dir_fd=dir_fd)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "it is not a file", str(path))
        if status.st_nlink > 1:
            raise OSError(errno.EMLINK, "the file has another name, by a hard link", str(path))
        if flags & os.O_TRUNC:
            os.ftruncate(descriptor, 0)
        os.set_blocking(descriptor, True)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def lock(descriptor: int, *, wait: bool = True) -> bool:
    """Lock an open file or folder against other processes, until `unlock` or its last close.

    Returns:
        Whether it is locked now; always with ``wait``.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    return True


def unlock(descriptor: int) -> None:
    """Undo `lock`."""
    fcntl.flock(descriptor, fcntl.LOCK_UN)


def write_atomically(path: Path, content: str | bytes, *, durable: bool = False) -> None:
    """Write ``path`` whole or not at all, text as UTF-8; a link there is replaced, not followed.

    Half of a surrogate pair, which JSON can hold and UTF-8 cannot, becomes a question mark.

    Args:
        path: the file.
        content: all of it.
        durable: whether it must have reached the disk when this returns.

    Raises:
        OSError: it cannot be written.
    """
    data = content if isinstance(content, bytes) else content.encode("utf-8", "replace")
    try:
        _write_by_draft(path, data, durable=durable)
    except OSError as error:
        error.filename, error.filename2 = str(path), None  # the draft's name says nothing
        raise


def keep_for_later(path: Path, content: str | bytes) -> None:
    """Write what can be made again; where that is not possible, it will be made again."""
    with suppress(OSError):
        write_atomically(path, content)


def check_folder_writable(folder: Path) -> None:
    """Write a draft in ``folder`` as `write_atomically` does, and remove it.

    Raises:
        OSError: files cannot be written there.
    """
    draft, descriptor = _new_draft(folder)
    os.close(descriptor)
    draft.unlink()


def written_to(path: Path) -> Path:
    """The file that somebody means who wants ``path`` written: links are followed.

    Replacing a device such as ``/dev/null`` by a file would break the machine for everybody.

    Raises:
        OSError: it is there and no file, or its links may not be followed; see `followed`.
    """
    target = followed(path)
    if target.is_dir():
        raise IsADirectoryError(errno.EISDIR, "it is a folder", str(path))
    if target.exists() and not target.is_file():
        raise OSError(errno.EINVAL, "it is no file but a device or the like", str(path))
    return target


def _write_by_draft(path: Path, data: bytes, *, durable: bool) -> None:
    draft, descriptor = _new_draft(path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        draft.replace(path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
    if durable:
        _sync_folder(path.parent)


def _new_draft(folder: Path) -> tuple[Path, int]:
    """A new file of a name that nobody can foresee, and short whatever it will be called."""
    draft = folder / f".gpuenergy-{os.urandom(8).hex()}.tmp"
    return draft, os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _CAREFULLY, 0o666)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
