"""Where views are written: checks that nothing is overwritten, and atomic writing."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from pytest_gpuenergy.report.store import is_raw
from pytest_gpuenergy.support import (
    InputError,
    ReportError,
    check_room,
    followed,
    is_file,
    lock,
    write_atomically,
    write_target,
)

_SOURCES = frozenset(
    (".py", ".pyi", ".toml", ".ini", ".cfg", ".cu", ".cuh", ".c", ".cc", ".cpp", ".h", ".hpp")
)
"""Suffixes of files that people write. No view has one, but ``--json bench/test_scale.py``, where
the path was forgotten, names one."""


class ViewTarget(NamedTuple):
    """The path of a view, and the option that names it."""

    option: str
    path: Path
    folder: bool = False


def check_targets(targets: Sequence[ViewTarget], read: Iterable[Path] = ()) -> None:
    """Check that no view would overwrite another, an input, or a run's measurements.

    Args:
        targets: all views that will be written.
        read: the files they are made from.

    Raises:
        InputError: a view would.
    """
    inputs = set(map(_resolved, read))
    known: list[tuple[ViewTarget, Path]] = []
    for target in targets:
        place = _resolved(target.path)
        _refuse_place(target.path)
        if place in inputs:
            raise InputError(
                f"{target.option} {target.path} is also an input, and would be overwritten: "
                "choose another path."
            )
        for other, taken in known:
            if place == taken or _is_below(place, other, taken) or _is_below(taken, target, place):
                raise InputError(
                    f"{other.option} {other.path} and {target.option} {target.path} conflict: "
                    "give each a path of its own."
                )
        known.append((target, place))


def check_writable(path: Path, *, folder: bool) -> None:
    """Check, before anything is measured, that a view can be written later.

    Raises:
        InputError: a run stores its measurements there.
        ReportError: it cannot be written.
    """
    _refuse_place(path)
    with _writing(path):
        target = followed(path) if folder else write_target(path).parent
        target.mkdir(parents=True, exist_ok=True)
        check_room(target)


def _resolved(path: Path) -> Path:
    return Path(os.path.realpath(path))


def _is_below(place: Path, target: ViewTarget, above: Path) -> bool:
    """Return whether ``place`` lies below ``above``, although ``target`` will be a file there."""
    return not target.folder and above in place.parents


def _refuse_place(path: Path) -> None:
    """Refuse a path that a slip of the command line has made the path of a view."""
    place = _resolved(path)
    if is_raw(place):
        raise InputError(
            f"{path} is where a run stores its measurements: choose another path for the view."
        )
    if place.name == "-":
        raise InputError("- names no file: give the path of one; this output has no other place.")
    if place.suffix in _SOURCES and is_file(place):
        raise InputError(f"{path} is source text, which would be lost: choose another path.")


def write_view(path: Path, content: str | bytes) -> None:
    """Write a view atomically, with its parent folders; a link is followed.

    Raises:
        InputError: a run stores its measurements there.
        ReportError: it cannot be written, or is not a regular file.
    """
    _refuse_place(path)
    with _writing(path):
        target = write_target(path)
    write_file(target, content)


@contextlib.contextmanager
def updating(path: Path) -> Iterator[None]:
    """Lock ``path`` while it is read and rewritten, so that no concurrent update is lost.

    Raises:
        ReportError: its folder cannot be created or locked.
    """
    with _writing(path):
        folder = write_target(path).parent
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with _writing(path):
            lock(descriptor)
        yield
    finally:
        os.close(descriptor)


def write_file(path: Path, content: str | bytes) -> None:
    """Write a file atomically, with its parent folders; an error is a `ReportError`."""
    with _writing(path):
        folder = followed(path.parent)
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(folder / path.name, content)


@contextlib.contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ReportError(
            f"{path} cannot be written ({error.strerror}): choose a writable path."
        ) from None
