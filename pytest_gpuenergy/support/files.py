"""Files that others may tamper with: opened safely, locked, and written atomically."""

from __future__ import annotations

import errno
import fcntl
import fnmatch
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from pytest_gpuenergy.support.errors import InputError
from pytest_gpuenergy.support.folders import followed

_NOTHING_THERE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)
_LARGEST_LIST_BYTES = 1 << 30
_CAREFULLY = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


def open_file(path: str | Path, flags: int, mode: int = 0o666, *, dir_fd: int | None = None) -> int:
    """`os.open` for a regular file with a single name; also an ``opener`` for `open`.

    Symbolic links, pipes, devices and files with several hard links are refused, so that a user who
    can write in the folder cannot make this process read, write or wait for anything else. The file
    is truncated (``O_TRUNC``) only after these checks.

    Raises:
        OSError: it is something else, or cannot be opened.
    """
    descriptor = os.open(path, flags & ~os.O_TRUNC | _CAREFULLY, mode, dir_fd=dir_fd)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "it is not a file", str(path))
        if status.st_nlink > 1:
            raise OSError(errno.EMLINK, "the file has another name (a hard link)", str(path))
        if flags & os.O_TRUNC:
            os.ftruncate(descriptor, 0)
        os.set_blocking(descriptor, True)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def is_there(path: Path) -> bool:
    """Whether ``path`` leads to anything.

    In this package these functions take the place of those of `Path`, which raise or return
    false, depending on the version of Python, where it may not be known.

    Raises:
        InputError: it cannot be known, for example without permission for a folder on the way, or
            since a name is too long.
    """
    return _mode(path) is not None


def is_file(path: Path) -> bool:
    """Whether ``path`` leads to a regular file; raises as `is_there`."""
    mode = _mode(path)
    return mode is not None and stat.S_ISREG(mode)


def is_folder(path: Path) -> bool:
    """Whether ``path`` leads to a folder; raises as `is_there`."""
    mode = _mode(path)
    return mode is not None and stat.S_ISDIR(mode)


def is_link(path: Path) -> bool:
    """Whether ``path`` itself is a symbolic link; raises as `is_there`."""
    mode = _mode(path, follow=False)
    return mode is not None and stat.S_ISLNK(mode)


def is_socket(path: Path) -> bool:
    """Whether ``path`` leads to a socket; raises as `is_there`."""
    mode = _mode(path)
    return mode is not None and stat.S_ISSOCK(mode)


def matching(folder: Path, pattern: str) -> list[Path]:
    """What matches a pattern below ``folder``, sorted, as far as it can be looked at.

    Folders that vanish meanwhile or may not be read have nothing in them; `Path.glob` raises for
    the former, depending on the version of Python.

    Args:
        folder: where to begin.
        pattern: relative path, each part of which is matched as by `fnmatch.fnmatchcase`.

    Raises:
        InputError: it cannot be known whether ``folder`` is there; see `is_there`.
    """
    places = [folder] if is_folder(folder) else []
    for part in pattern.split("/"):
        entries = (entry for place in places for entry in _entries(place))
        places = [entry for entry in entries if fnmatch.fnmatchcase(entry.name, part)]
    return sorted(places)


def lock(descriptor: int, *, wait: bool = True) -> bool:
    """Lock an open file or folder against other processes, until `unlock` or its last close.

    Returns:
        Whether it is locked now; always true with ``wait``.
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
    """Write ``path`` completely or not at all; a link there is replaced, not followed.

    Text is written as UTF-8. Half of a surrogate pair, which JSON allows and UTF-8 does not,
    becomes a question mark.

    Args:
        path: the file.
        content: its whole content.
        durable: whether the content must be on disk when this returns.

    Raises:
        OSError: it cannot be written.
    """
    data = content if isinstance(content, bytes) else content.encode("utf-8", "replace")
    with written_atomically(path, durable=durable) as file:
        file.write(data)


@contextmanager
def written_atomically(path: Path, *, durable: bool = False) -> Iterator[BinaryIO]:
    """As `write_atomically`, for what is too large to be in memory: yields a file to write to.

    If the block raises, nothing is written.
    """
    try:
        draft, descriptor = _new_draft(path.parent)
        try:
            with os.fdopen(descriptor, "wb") as file:
                yield file
                if durable:
                    file.flush()
                    os.fsync(file.fileno())
            draft.replace(path)
        except BaseException:
            draft.unlink(missing_ok=True)
            raise
        if durable:
            _sync_folder(path.parent)
    except OSError as error:
        error.filename, error.filename2 = str(path), None  # the draft's name is meaningless
        raise


def keep_for_later(path: Path, content: str | bytes) -> None:
    """Cache ``content`` in ``path``; if that fails, it will be computed again."""
    with suppress(OSError):
        write_atomically(path, content)


def drop_torn_line(path: Path) -> None:
    """Remove what a killed process has written of its last line.

    Nothing is done to a file that is too large to be a list of lines, which its reader refuses.

    Raises:
        OSError: it cannot be read or written.
    """
    if path.stat().st_size > _LARGEST_LIST_BYTES:
        return
    with open(path, "rb+", opener=open_file) as stream:
        content = stream.read()
        whole = content.rfind(b"\n") + 1
        if whole < len(content):
            stream.truncate(whole)


def check_folder_writable(folder: Path) -> None:
    """Check that `write_atomically` can create a draft in ``folder``; the draft is removed.

    Raises:
        OSError: files cannot be written there.
    """
    draft, descriptor = _new_draft(folder)
    os.close(descriptor)
    draft.unlink()


def check_room(folder: Path, size_bytes: int) -> None:
    """Check that ``folder`` takes a file of this size, which is removed again.

    Raises:
        OSError: it does not, for example because the disk is full or has become read-only.
    """
    draft, descriptor = _new_draft(folder)
    try:
        os.posix_fallocate(descriptor, 0, size_bytes)
    finally:
        os.close(descriptor)
        draft.unlink()


def written_to(path: Path) -> Path:
    """The file to write when the user names ``path``: links are followed.

    Devices are refused: replacing ``/dev/null`` with a file would break the machine for everybody.

    Raises:
        OSError: it exists but is not a file, or its links must not be followed; see `followed`.
    """
    target = followed(path)
    if is_folder(target):
        raise IsADirectoryError(errno.EISDIR, "it is a folder", str(path))
    if is_there(target) and not is_file(target):
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    return target


def _mode(path: Path, *, follow: bool = True) -> int | None:
    try:
        return path.stat(follow_symlinks=follow).st_mode
    except OSError as error:
        if error.errno in _NOTHING_THERE:
            return None
        raise InputError(f"{path} cannot be used: {error.strerror}.") from None
    except ValueError as error:
        raise InputError(f"{str(path)!r} cannot be used: {error}.") from None


def _entries(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:  # it is a file, it is gone, or it is somebody else's
        return []


def _new_draft(folder: Path) -> tuple[Path, int]:
    """A new file with an unpredictable name, which is short even if the final name is long."""
    draft = folder / f".gpuenergy-{os.urandom(8).hex()}.tmp"
    return draft, os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _CAREFULLY, 0o666)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
