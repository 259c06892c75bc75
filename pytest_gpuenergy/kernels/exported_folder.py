"""What an export has written to a folder, so that it can be exported to again, or removed."""

from __future__ import annotations

import hashlib
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Literal

from msgspec import Struct

from pytest_gpuenergy.support import (
    FormError,
    InputError,
    decode,
    encode,
    is_link,
    is_there,
    read_bytes,
    write_atomically,
)

SIGN = "gpuenergy-export.json"
"""The file that lists what an export has written."""

_LARGEST_BYTES = 64 << 20


class _Sign(Struct, frozen=True):
    """Its content: the SHA-256 of each file, by its path in the folder."""

    made_by: Literal["pytest-gpuenergy"]
    files: dict[str, str]


@dataclass(frozen=True)
class ExportedFolder:
    """The files that exports have written to a folder.

    Attributes:
        path: the folder.
        own: files that are there as they were written.
        changed: files that somebody has changed since, or replaced by something else.
    """

    path: Path
    own: tuple[Path, ...] = ()
    changed: tuple[Path, ...] = ()

    @classmethod
    def find(cls, folder: Path) -> ExportedFolder | None:
        """What exports have written to ``folder``; None if none has.

        Raises:
            InputError: it cannot be read.
        """
        sign = folder / SIGN
        if not _is_regular(sign):
            return None
        try:
            listed = decode(read_bytes(sign, "list of exported files", _LARGEST_BYTES), _Sign)
        except FormError as error:
            raise InputError(f"{sign} cannot be used: {error}. Remove it by hand.") from None
        own: list[Path] = []
        changed: list[Path] = []
        for name, digest in listed.files.items():
            path = _inside(folder, name)
            if path is None:
                raise InputError(f"{sign} names {name[:80]!r}, which is not in its folder.")
            if is_there(path):
                (own if _sha256(path) == digest else changed).append(path)
        return cls(folder, tuple(own), tuple(changed))

    def remove(self) -> None:
        """Remove what exports have written, and the folders that are empty then.

        Raises:
            OSError: a file cannot be removed.
        """
        for path in self.own:
            path.unlink(missing_ok=True)
        for folder in self.folders:
            if is_there(folder) and not any(folder.iterdir()):
                folder.rmdir()

    @property
    def folders(self) -> tuple[Path, ...]:
        """The folders of these files below the exported one, the deepest first."""
        found = {
            parent
            for path in self.own
            for parent in path.parents
            if parent != self.path and parent.is_relative_to(self.path)
        }
        return tuple(sorted(found, key=lambda folder: -len(folder.parts)))


def check_exportable(folder: Path) -> ExportedFolder | None:
    """Check that ``folder`` is missing, empty, or one that only exports have written to.

    Files that a build adds, in a folder such as ``build``, are left alone.

    Returns:
        What an earlier export has written there.

    Raises:
        InputError: it is something else, or somebody has changed what was exported.
    """
    try:
        if not is_there(folder) or not any(folder.iterdir()):
            return None
        earlier = ExportedFolder.find(folder)
    except OSError as error:
        raise InputError(f"{folder} cannot be written: {error.strerror}.") from None
    if earlier is None:
        raise InputError(
            f"The folder {folder} is not empty, and no earlier export has written it: name a new "
            "one."
        )
    if earlier.changed:
        raise InputError(
            f"{earlier.changed[0]} was changed after it had been exported: move it elsewhere, or "
            "name a new folder."
        )
    return earlier


def write_export(content: Mapping[str, str], folder: Path) -> list[Path]:
    """Replace what an earlier export has written to ``folder`` by ``content``, by relative paths.

    Returns:
        The files written.

    Raises:
        InputError: as `check_exportable`; a file of somebody else is in the way; or one cannot be
            written.
    """
    earlier = check_exportable(folder)
    own = set(earlier.own) if earlier else set()
    for name in content:
        if (path := folder / name) not in own and is_there(path):
            raise InputError(f"{path} is in the way, and was not exported: move it elsewhere.")
    digests = {name: hashlib.sha256(text.encode()).hexdigest() for name, text in content.items()}
    try:
        if earlier is not None:
            earlier.remove()
        folder.mkdir(parents=True, exist_ok=True)
        # First: what an interrupted export has written is known to be ours.
        write_atomically(folder / SIGN, encode(_Sign("pytest-gpuenergy", digests)) + b"\n")
        for name, text in content.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, text)
    except OSError as error:
        raise InputError(f"{error.filename} cannot be written: {error.strerror}.") from None
    return [folder / name for name in content]


def _inside(folder: Path, name: str) -> Path | None:
    """The path of a listed file; None if it would lead out of the folder, also through a link."""
    parts = PurePosixPath(name).parts
    if not parts or ".." in parts or parts[0] == "/" or "\0" in name:
        return None
    path = folder
    for part in parts[:-1]:
        path = path / part
        if is_link(path):
            return None
    return path / parts[-1]


def _is_regular(path: Path) -> bool:
    return is_there(path) and stat.S_ISREG(path.lstat().st_mode)


def _sha256(path: Path) -> str:
    if not _is_regular(path):
        return ""
    return hashlib.sha256(path.read_bytes()).hexdigest()
