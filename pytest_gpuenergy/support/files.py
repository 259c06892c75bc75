"""Files and folders that others may tamper with: opened safely, locked, and written atomically."""

from __future__ import annotations

import errno
import fcntl
import fnmatch
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import BinaryIO

from pytest_gpuenergy.support.errors import InputError

_ABSENT_ERRORS = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)
_LARGEST_LIST_BYTES = 1 << 30
_SAFE_FLAGS = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_ROOT = Path("/")
_PROCESSES = Path("/proc")
_MAX_LINKS = 40  # the limit of Linux, see path_resolution(7)
_Check = Callable[[Path, os.stat_result, os.stat_result], None]
"""Called with each entry on the way, its status, and the status of its folder; may raise."""


def open_file(path: str | Path, flags: int, mode: int = 0o666, *, dir_fd: int | None = None) -> int:
    """`os.open` for a regular file with a single name; also an ``opener`` for `open`.

    Symbolic links, pipes, devices and files with several hard links are refused, so that a user who
    can write in the folder cannot make this process read, write or wait for anything else. The file
    is truncated (``O_TRUNC``) only after these checks.

    Raises:
        OSError: the path is something else, or cannot be opened.
    """
    descriptor = os.open(path, flags & ~os.O_TRUNC | _SAFE_FLAGS, mode, dir_fd=dir_fd)
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
    """Return whether ``path`` exists; a symbolic link counts only if its target exists.

    This package uses these functions instead of the methods of `Path`. Where the answer cannot be
    determined, those raise or return False, depending on the version of Python.

    Raises:
        InputError: the answer cannot be determined, for example because a folder on the way may not
            be searched, or because a name is too long.
    """
    return _mode(path) is not None


def is_file(path: Path) -> bool:
    """Return whether ``path`` leads to a regular file; raises as `is_there`."""
    mode = _mode(path)
    return mode is not None and stat.S_ISREG(mode)


def is_folder(path: Path) -> bool:
    """Return whether ``path`` leads to a folder; raises as `is_there`."""
    mode = _mode(path)
    return mode is not None and stat.S_ISDIR(mode)


def is_link(path: Path) -> bool:
    """Return whether ``path`` itself is a symbolic link; raises as `is_there`."""
    mode = _mode(path, follow=False)
    return mode is not None and stat.S_ISLNK(mode)


def is_socket(path: Path) -> bool:
    """Return whether ``path`` leads to a socket; raises as `is_there`."""
    mode = _mode(path)
    return mode is not None and stat.S_ISSOCK(mode)


def matching(folder: Path, pattern: str) -> list[Path]:
    """Return the paths below ``folder`` that match a pattern, sorted.

    Folders that vanish meanwhile or may not be read count as empty; `Path.glob` raises for the
    former, depending on the version of Python.

    Args:
        folder: the folder that the pattern is relative to.
        pattern: a relative path, each part of which is matched as by `fnmatch.fnmatchcase`.

    Raises:
        InputError: it cannot be determined whether ``folder`` exists; see `is_there`.
    """
    places = [folder] if is_folder(folder) else []
    for part in pattern.split("/"):
        entries: list[Path] = []
        for place in places:
            with suppress(OSError):  # it is a file, it is gone, or it may not be read
                entries += place.iterdir()
        places = [entry for entry in entries if fnmatch.fnmatchcase(entry.name, part)]
    return sorted(places)


def lock(descriptor: int, *, wait: bool = True) -> bool:
    """Lock an open file or folder against other processes, until `unlock` or its last close.

    Returns:
        Whether the lock is held now; always True with ``wait``.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    return True


def unlock(descriptor: int) -> None:
    """Release the lock taken by `lock`."""
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
        OSError: the file cannot be written.
    """
    data = content if isinstance(content, bytes) else content.encode("utf-8", "replace")
    with written_atomically(path, durable=durable) as file:
        file.write(data)


@contextmanager
def written_atomically(path: Path, *, durable: bool = False) -> Iterator[BinaryIO]:
    """Yield a file whose content replaces ``path`` when the block ends, see `write_atomically`.

    If the block raises, ``path`` is left as it was.
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
            folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
    except OSError as error:
        error.filename, error.filename2 = str(path), None  # the user has never seen the draft
        raise


def keep_for_later(path: Path, content: str | bytes) -> None:
    """Cache ``content`` in ``path``; a failure is ignored, as the content can be computed again."""
    with suppress(OSError):
        write_atomically(path, content)


def drop_torn_line(path: Path) -> None:
    """Remove an incomplete last line, which a killed process may have left.

    A file that is too large to be a list of lines is left alone: its reader refuses it.

    Raises:
        OSError: the file cannot be read or written.
    """
    if path.stat().st_size > _LARGEST_LIST_BYTES:
        return
    with open(path, "rb+", opener=open_file) as stream:
        content = stream.read()
        whole = content.rfind(b"\n") + 1
        if whole < len(content):
            stream.truncate(whole)


def check_room(folder: Path, size_bytes: int = 0) -> None:
    """Check that a file of this size can be written in ``folder``; the file is removed again.

    Raises:
        OSError: it cannot, for example because the disk is full or has become read-only.
    """
    draft, descriptor = _new_draft(folder)
    try:
        if size_bytes:
            os.posix_fallocate(descriptor, 0, size_bytes)
    finally:
        os.close(descriptor)
        draft.unlink()


def write_target(path: Path) -> Path:
    """Return the file to write when the user names ``path``: links are followed.

    Devices are refused: replacing ``/dev/null`` with a file would break the machine for everybody.

    Raises:
        OSError: ``path`` exists but is not a file, or its links must not be followed; see
            `followed`.
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
        if error.errno in _ABSENT_ERRORS:
            return None
        raise InputError(f"{path} cannot be used: {error.strerror}.") from None
    except ValueError as error:
        raise InputError(f"{str(path)!r} cannot be used: {error}.") from None


def _new_draft(folder: Path) -> tuple[Path, int]:
    """Create a file with an unpredictable name, which is short even if the final name is long."""
    draft = folder / f".gpuenergy-{os.urandom(8).hex()}.tmp"
    return draft, os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _SAFE_FLAGS, 0o666)


def own_folder(path: Path) -> Path:
    """Return a folder in which other users can change nothing; create it if it is missing.

    The folder, and every folder and link on the way to it, must belong to this user or root. None
    of the folders may be writable for everybody, or for a group that this process is not in, except
    folders on the way whose sticky bit protects their entries, such as ``/tmp``.

    Returns:
        Its path without links.

    Raises:
        OSError: the folder cannot be created, or others can change it; the message says where.
    """
    trusted = {0, os.geteuid(), _ROOT.stat().st_uid}  # in some containers root is not mapped to 0
    folder = _walked(path, partial(_belongs_to, trusted), make=True)
    status = folder.stat()
    if not stat.S_ISDIR(status.st_mode):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder))
    if others_can_write(status):
        raise PermissionError(errno.EPERM, f"other users can write in {folder}", str(folder))
    return folder


def followed(path: Path) -> Path:
    """Return ``path`` with its links resolved, as far as it exists.

    A link in a world-writable folder is followed only if it belongs to this user or to the owner of
    that folder, as with the kernel's ``fs.protected_symlinks``
    (https://docs.kernel.org/admin-guide/sysctl/fs.html).

    Raises:
        OSError: a link on the way belongs to somebody else or to /proc, links form a loop, or a
            name is too long.
    """
    return _walked(path, _may_be_followed, make=False)


def roots_alone(path: Path) -> Path:
    """Return ``path`` with its links resolved, if only root can change it or what it leads to.

    Every entry on the way, and the last one, must belong to root, and only links may be writable
    for their group or for others.

    Raises:
        OSError: ``path`` is missing, or somebody else can change it; the message says where.
    """
    _belongs_to_root(_ROOT, _ROOT.lstat(), _ROOT.lstat())
    place = _walked(path, _belongs_to_root, make=False)
    place.lstat()
    return place


def others_can_write(folder: os.stat_result) -> bool:
    """Return whether a folder's mode lets users outside this process's groups create entries."""
    if folder.st_mode & stat.S_IWOTH:
        return True
    groups = {0, os.getegid(), *os.getgroups()}
    return bool(folder.st_mode & stat.S_IWGRP) and folder.st_gid not in groups


def keeps_entries(folder: os.stat_result) -> bool:
    """Return whether only root, a folder's owner and an entry's owner can replace that entry."""
    return bool(folder.st_mode & stat.S_ISVTX) or not others_can_write(folder)


def _belongs_to(
    trusted: set[int], entry: Path, status: os.stat_result, _folder: os.stat_result
) -> None:
    if status.st_uid not in trusted:
        raise PermissionError(errno.EPERM, f"{entry} belongs to user {status.st_uid}", str(entry))
    if stat.S_ISDIR(status.st_mode) and not keeps_entries(status):
        raise PermissionError(errno.EPERM, f"other users can write in {entry}", str(entry))


def _belongs_to_root(entry: Path, status: os.stat_result, _folder: os.stat_result) -> None:
    if status.st_uid != 0:
        raise PermissionError(errno.EPERM, f"{entry} belongs to user {status.st_uid}", str(entry))
    if not stat.S_ISLNK(status.st_mode) and status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise PermissionError(errno.EPERM, f"other users can write to {entry}", str(entry))


def _may_be_followed(entry: Path, status: os.stat_result, folder: os.stat_result) -> None:
    if not stat.S_ISLNK(status.st_mode):
        return
    if is_there(_PROCESSES) and status.st_dev == _PROCESSES.lstat().st_dev:
        # A descriptor of some process, such as /dev/stdout: its file is not ours to replace.
        raise OSError(errno.EINVAL, "it is not a regular file", str(entry))
    if folder.st_mode & stat.S_IWOTH and status.st_uid not in (os.geteuid(), folder.st_uid):
        raise PermissionError(
            errno.EPERM, f"{entry} is a link that belongs to another user", str(entry)
        )


def _walked(path: Path, check: _Check, *, make: bool) -> Path:
    """Return ``path`` with its links resolved, after ``check`` of each entry on the way.

    Missing folders are created if ``make``; otherwise the rest of the path is taken as it is.
    """
    place, links = _ROOT, 0
    names = [*reversed(path.absolute().parts[1:])]
    while names:
        name = names.pop()
        if name == "..":
            place = place.parent
            continue
        entry = place / name
        status = _status(entry, make=make)
        if status is not None:
            check(entry, status, place.lstat())
        if status is None or not stat.S_ISLNK(status.st_mode):
            place = entry
            continue
        links += 1
        if links > _MAX_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
        target = entry.readlink()
        if target.is_absolute():
            place = _ROOT
        names += reversed(target.parts[target.is_absolute() :])
    return place


def _status(entry: Path, *, make: bool) -> os.stat_result | None:
    try:
        return entry.lstat()
    except FileNotFoundError:
        if not make:
            return None
    with suppress(FileExistsError):  # another process just created it: check it like any other
        entry.mkdir(mode=0o700)
    return entry.lstat()
