"""Paths on machines that several users share: whom a folder or a link on the way may belong to.

A path is walked from the root folder, one name at a time. Where nobody but this user and root can
change what a folder holds, what was found there stays, so a path that was walked to its end can be
used by name.
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
_MOST_LINKS = 40  # as Linux has it, see path_resolution(7)
_Check = Callable[[Path, os.stat_result, os.stat_result], None]
"""Called with every entry on the way, its status, and that of the folder it is in."""


def own_folder(path: Path) -> Path:
    """A folder in which other users can change nothing, made where it is missing.

    It belongs to this user or root, and so does every folder and link on the way to it. None of
    the folders can be written by everybody, except those on the way that protect their entries by
    the sticky bit, such as ``/tmp``; or by a group that this process is not in.

    Returns:
        Its path without links.

    Raises:
        OSError: it cannot be made, or others can change it; the message says where.
    """
    trusted = {0, os.geteuid(), _ROOT.stat().st_uid}  # root has no number in some containers
    folder = _walked(path, partial(_belongs_to, trusted), make=True)
    status = folder.stat()
    if not stat.S_ISDIR(status.st_mode):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder))
    if others_can_write(status):
        raise PermissionError(errno.EPERM, f"other users can write in {folder}", str(folder))
    return folder


def followed(path: Path) -> Path:
    """``path`` without links, as far as it exists.

    A link in a folder that everybody can write is followed only if this user or the owner of that
    folder made it, as the kernel does under ``fs.protected_symlinks``
    (https://docs.kernel.org/admin-guide/sysctl/fs.html).

    Raises:
        OSError: there is another link on the way, they lead in a circle, or a name is too long.
    """
    return _walked(path, _may_be_followed, make=False)


def others_can_write(folder: os.stat_result) -> bool:
    """Whether its mode lets users make entries who are in no group of this process."""
    if folder.st_mode & stat.S_IWOTH:
        return True
    groups = {0, os.getegid(), *os.getgroups()}
    return bool(folder.st_mode & stat.S_IWGRP) and folder.st_gid not in groups


def keeps_entries(folder: os.stat_result) -> bool:
    """Whether only its owner, root and the maker of an entry can remove or replace that entry."""
    return bool(folder.st_mode & stat.S_ISVTX) or not others_can_write(folder)


def _belongs_to(
    trusted: set[int], entry: Path, status: os.stat_result, _folder: os.stat_result
) -> None:
    if status.st_uid not in trusted:
        raise PermissionError(errno.EPERM, f"{entry} belongs to user {status.st_uid}", str(entry))
    if stat.S_ISDIR(status.st_mode) and not keeps_entries(status):
        raise PermissionError(errno.EPERM, f"other users can write in {entry}", str(entry))


def _may_be_followed(entry: Path, status: os.stat_result, folder: os.stat_result) -> None:
    makers = (os.geteuid(), folder.st_uid)
    everybodys = folder.st_mode & stat.S_IWOTH
    if stat.S_ISLNK(status.st_mode) and everybodys and status.st_uid not in makers:
        raise PermissionError(
            errno.EPERM, f"{entry} is a link that another user has made", str(entry)
        )


def _walked(path: Path, check: _Check, *, make: bool) -> Path:
    """``path`` without links; folders that are missing are made, or taken as they are named."""
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
    with suppress(FileExistsError):  # somebody has just made it: it is checked like any other
        entry.mkdir(mode=0o700)
    return entry.lstat()
