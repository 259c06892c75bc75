"""Paths on machines with several users: who may own the folders and links along a path.

A path is walked from the root folder, one name at a time. If only this user and root can change the
entries of the folders on the way, what was checked stays as it is, so a path walked to its end can
then be used by name.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

_ROOT = Path("/")
_PROCESSES = Path("/proc")
_MOST_LINKS = 40  # the limit of Linux, see path_resolution(7)
_Check = Callable[[Path, os.stat_result, os.stat_result], None]
"""Called with each entry on the way, its status, and the status of its folder."""


def own_folder(path: Path) -> Path:
    """A folder in which other users can change nothing; created if it is missing.

    The folder, and every folder and link on the way to it, must belong to this user or root. None
    of the folders may be writable for everybody, or for a group that this process is not in, except
    folders on the way whose sticky bit protects their entries, such as ``/tmp``.

    Returns:
        Its path without links.

    Raises:
        OSError: it cannot be created, or others can change it; the message says where.
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
    """``path`` without links, as far as it exists.

    A link in a world-writable folder is followed only if it belongs to this user or to the owner of
    that folder, as with the kernel's ``fs.protected_symlinks``
    (https://docs.kernel.org/admin-guide/sysctl/fs.html).

    Raises:
        OSError: a link on the way belongs to somebody else or to /proc, links form a loop, or a
            name is too long.
    """
    return _walked(path, _may_be_followed, make=False)


def roots_alone(path: Path) -> Path:
    """``path`` without links, if only root can change what it is or leads to.

    Everything on the way, and what is there, must belong to root, and nothing but links may be
    writable for its group or for others.

    Raises:
        OSError: it is missing, or somebody else can change it; the message says where.
    """
    _belongs_to_root(_ROOT, _ROOT.lstat(), _ROOT.lstat())
    place = _walked(path, _belongs_to_root, make=False)
    place.lstat()
    return place


def others_can_write(folder: os.stat_result) -> bool:
    """Whether its mode lets users outside this process's groups create entries."""
    if folder.st_mode & stat.S_IWOTH:
        return True
    groups = {0, os.getegid(), *os.getgroups()}
    return bool(folder.st_mode & stat.S_IWGRP) and folder.st_gid not in groups


def keeps_entries(folder: os.stat_result) -> bool:
    """Whether only its owner, root and the owner of an entry can remove or replace that entry."""
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
    makers = (os.geteuid(), folder.st_uid)
    everybodys = folder.st_mode & stat.S_IWOTH
    if stat.S_ISLNK(status.st_mode) and status.st_dev == _device_of(_PROCESSES):
        # A descriptor of some process, such as /dev/stdout: its file is not ours to replace.
        raise OSError(errno.EINVAL, "it is not a regular file", str(entry))
    if stat.S_ISLNK(status.st_mode) and everybodys and status.st_uid not in makers:
        raise PermissionError(
            errno.EPERM, f"{entry} is a link that belongs to another user", str(entry)
        )


def _device_of(place: Path) -> int | None:
    try:
        return place.lstat().st_dev
    except OSError:
        return None


def _walked(path: Path, check: _Check, *, make: bool) -> Path:
    """``path`` without links; missing folders are created if ``make``, else taken as named."""
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
        if links > _MOST_LINKS:
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
    with suppress(FileExistsError):  # just created by somebody else: checked like any other
        entry.mkdir(mode=0o700)
    return entry.lstat()
