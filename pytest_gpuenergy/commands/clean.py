"""``gpuenergy clean``: removes what this package generated, and nothing else.

The first part is the command; the second decides which files and folders are ours.
"""

from __future__ import annotations

import os
import re
import stat
import time
from argparse import Namespace
from collections.abc import Container, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pytest_gpuenergy.commands.command_line import Subparsers, add_command, count
from pytest_gpuenergy.support import GpuEnergyError, InputError, is_link, is_there

_HOME = ".gpuenergy"
_SIGN = "# Made by pytest-gpuenergy"
"""First words of the ``.gitignore`` that this package writes into its folder."""
_DRAFT = r"\.(gpuenergy-[0-9a-f]{16}|[\w.-]+\.\d+)\.tmp"
_RUN_FILES = re.compile(
    r"(run|report)\.json|(measurements|anchors|stations|boards)\.jsonl|csv/([^/]+/)?EMULATED\.txt|"
    rf"csv/[^/]+/(all\.csv|powercap[^/]+/results\.csv|"
    rf"(powercap[^/]+/)?{_DRAFT})|{_DRAFT}"
)
"""The files that a run writes, by their path in its folder."""

CACHE_FOLDERS = (
    "charts",
    "chosen",
    "cubin",
    "cutlass",
    "emulated/host",
    "emulated/traffic",
    "lowered",
    "programs",
    "references",
    "seeds",
    "triton",
    "verified",
)
"""Folders that this package creates in its cache."""

_CACHE_ENTRY = re.compile(
    r"(host-)?[0-9a-f]{12,64}([-.][\w.-]+)?|\.(gpuenergy-)?[0-9a-f]{16,64}[\w.-]*\.tmp|"
    r"\.(host|build)-[\w-]+"
)
"""Names in these folders: the hash of what an entry was made from, or an unfinished build.

The user can choose the cache folder, so the name of a folder in it alone proves nothing.
"""


_MAKING_S = 3600.0
"""Age up to which an unfinished copy of a project may still be in the making."""


@dataclass(frozen=True)
class FoundFiles:
    """The contents of this package's folders.

    Attributes:
        generated: files that we created, which may be removed.
        folders: folders that we created, deepest first; removed if they are empty by then.
        foreign: files, links and folders that we did not create.
        groups: folders whose files are counted together: runs, caches, exports and copies.
        used: folders that we created and that are in use.
    """

    generated: tuple[Path, ...] = ()
    folders: tuple[Path, ...] = ()
    foreign: tuple[Path, ...] = ()
    groups: tuple[Path, ...] = ()
    used: tuple[Path, ...] = ()

    def __add__(self, other: FoundFiles) -> FoundFiles:
        return FoundFiles(
            self.generated + other.generated,
            self.folders + other.folders,
            self.foreign + other.foreign,
            self.groups + other.groups,
            self.used + other.used,
        )


def find_project_files(root: Path, *, keep: int = 0) -> FoundFiles:
    """Return the runs under ``root/.gpuenergy``, except the last ``keep`` of them.

    Raises:
        InputError: there is a folder of that name that this package did not create.
    """
    home = root / _HOME
    if not is_link(home) and not is_there(home):
        return FoundFiles()
    sign = home / ".gitignore"
    if is_link(home) or not _is_ours(sign):
        raise InputError(
            f"{home} was not made by gpuenergy, or is a link, so nothing is removed there: "
            "inspect it and remove it by hand."
        )
    runs, pointer = home / "runs", home / "latest"
    entries = list(_entries(runs)) if _is_folder(runs) else []
    ours = [path for path in entries if _is_folder(path) and _is_file(path / "run.json")]
    kept = _last(ours, keep, pointer)
    found = FoundFiles()
    for folder in entries:
        if folder in ours:
            found += FoundFiles() if folder in kept else _of_run(folder)
        else:
            found += FoundFiles(foreign=(folder,))
    others = [path for path in _entries(home) if path not in (sign, pointer, runs)]
    if (is_link(runs) or is_there(runs)) and not _is_folder(runs):
        others.append(runs)
    # The sign is removed last, so an interrupted clean can be repeated.
    generated = tuple(path for path in (pointer, sign) if _is_file(path) and not kept)
    if found.foreign or others:
        generated = tuple(path for path in generated if path != sign)
    folders = (runs,) if _is_folder(runs) else ()
    return found + FoundFiles(generated, (*folders, home), tuple(others))


def _last(runs: list[Path], count: int, pointer: Path) -> set[Path]:
    """Return the last ``count`` runs, by the time in their names; a resumed run is the last."""
    latest = pointer.read_text(errors="replace").strip() if _is_file(pointer) else ""
    ordered = sorted(runs, key=lambda run: (run.name == latest, run.name))
    return set(ordered[len(ordered) - count :] if count else [])


def find_fleet_files(fleets: Path, *, keep: int = 0) -> FoundFiles:
    """Return what fleets have left on this host: copies of projects, and their older runs.

    Copies that a process has as its working directory are kept, and so are new unfinished ones.

    Args:
        fleets: the folder ``fleet`` in the state folder.
        keep: number of runs of each project to keep.

    Raises:
        InputError: a folder of runs was not made by this package.
    """
    found = FoundFiles()
    if not _is_folder(fleets):
        return found
    for project in _entries(fleets):
        copies = project / "copies"
        if not _is_folder(project) or not _is_folder(copies):
            found += FoundFiles(foreign=(project,))
            continue
        busy = _working_folders()
        for copy in _entries(copies):
            if not _is_folder(copy):
                found += FoundFiles(foreign=(copy,))
            elif _is_new(copy) or any(copy in (folder, *folder.parents) for folder in busy):
                found += FoundFiles(used=(copy,))
            else:
                found += _with_links(copy) + FoundFiles(groups=(copy,))
        found += find_project_files(project, keep=keep)
        found += FoundFiles(folders=(copies, project))
    return found


def _with_links(path: Path) -> FoundFiles:
    """Return a folder of ours and all that is in it; links are removed, not followed."""
    if not _is_folder(path):
        return FoundFiles(generated=(path,))
    found = FoundFiles()
    for entry in _entries(path):
        found += _with_links(entry)
    return found + FoundFiles(folders=(path,))


def _is_new(copy: Path) -> bool:
    """Whether an unfinished copy may still be in the making."""
    return copy.name.startswith(".") and time.time() - copy.lstat().st_mtime < _MAKING_S


def _working_folders() -> set[Path]:
    """Return the working directories of the processes that this user may inspect."""
    folders = set()
    for process in Path("/proc").glob("[0-9]*/cwd"):
        with suppress(OSError):
            folders.add(process.readlink())
    return folders


def find_exports(root: Path) -> FoundFiles:
    """Return what `kernels.export` has written to folders in ``root`` and nobody has changed.

    Raises:
        InputError: the list of a folder's files cannot be used.
    """
    from pytest_gpuenergy.kernels import SIGN, ExportedFolder

    found = FoundFiles()
    for folder in _entries(root):
        if not _is_folder(folder) or not os.access(folder, os.R_OK | os.X_OK):
            continue  # a folder that we cannot read is no export of ours
        if (export := ExportedFolder.find(folder)) is None:
            continue
        ours = {*export.own, *export.folders, folder / SIGN}
        foreign = tuple(path for path in _tops(folder, ours) if path not in ours)
        # The sign is removed last, and only with the rest.
        signs = () if export.changed or foreign else (folder / SIGN,)
        own, folders = (*export.own, *signs), (*export.folders, folder)
        found += FoundFiles(own, folders, foreign, (folder,))
    return found


def _tops(folder: Path, ours: Container[Path]) -> Iterator[Path]:
    """Return the contents of ``folder``, and of folders of ours below it."""
    for path in _entries(folder):
        yield path
        if path in ours and _is_folder(path):
            yield from _tops(path, ours)


def find_cache_files(cache: Path) -> FoundFiles:
    """Return all that is named by a hash in this package's folders in ``cache``."""
    found = FoundFiles()
    for name in CACHE_FOLDERS:
        folder = cache / name
        if not _is_folder(folder) or not _is_folder(folder.parent):
            continue
        for path in _entries(folder):
            if not _CACHE_ENTRY.fullmatch(path.name):
                found += FoundFiles(foreign=(path,))
            else:
                found += _everything(path)
        found += FoundFiles(folders=(folder,), groups=(folder,))
    return found


def _everything(path: Path) -> FoundFiles:
    if _is_file(path):
        return FoundFiles(generated=(path,))
    if not _is_folder(path):
        return FoundFiles(foreign=(path,))
    found = FoundFiles()
    for entry in _entries(path):
        found += _everything(entry)
    return found + FoundFiles(folders=(path,))


def _of_run(folder: Path) -> FoundFiles:
    found = _views(folder, folder)
    # This file marks the folder as a run, so it is removed last, and only with the rest.
    sign = folder / "run.json"
    generated = tuple(path for path in found.generated if path != sign)
    generated = generated if found.foreign else (*generated, sign)
    return FoundFiles(generated, found.folders, found.foreign, (folder,))


def _views(folder: Path, run: Path) -> FoundFiles:
    found = FoundFiles()
    for path in _entries(folder):
        name = path.relative_to(run).as_posix()
        if _is_folder(path) and name.split("/")[0] == "csv":
            found += _views(path, run)
        elif _is_file(path) and _RUN_FILES.fullmatch(name):
            found += FoundFiles(generated=(path,))
        else:
            found += FoundFiles(foreign=(path,))
    return found + FoundFiles(folders=(folder,))


def _entries(folder: Path) -> Iterator[Path]:
    return iter(sorted(folder.iterdir()))


def _is_file(path: Path) -> bool:
    return is_there(path) and stat.S_ISREG(path.lstat().st_mode)


def _is_folder(path: Path) -> bool:
    return is_there(path) and stat.S_ISDIR(path.lstat().st_mode)


def _is_ours(sign: Path) -> bool:
    return _is_file(sign) and sign.read_text(errors="replace").startswith(_SIGN)


def add_parser(subparsers: Subparsers) -> None:
    """Add ``clean``."""
    parser = add_command(
        subparsers,
        "clean",
        run,
        summary="Remove the runs of this project, exported kernels and the caches",
        description="Lists how much would be removed and asks first. Only files that this package "
        "created are removed; links are not followed, and saved power limits are never touched.",
        example="""
gpuenergy clean
gpuenergy clean --keep 10
gpuenergy clean --exports --cache --yes
gpuenergy clean --fleet
""",
    )
    parser.add_argument(
        "--keep",
        metavar="N",
        type=count,
        help="Keep the last N runs; the latest one counts as the last (default: none)",
    )
    parser.add_argument(
        "--exports",
        action="store_true",
        help="Also what gpuenergy kernels export has written to folders in this one",
    )
    parser.add_argument(
        "--cache", action="store_true", help="Also the caches: compiled kernels, references"
    )
    parser.add_argument(
        "--fleet",
        action="store_true",
        help="Also what fleets have left in the state folder of this host: copies of projects and "
        "their runs, of which --keep keeps the last N of each",
    )
    parser.add_argument("--files", action="store_true", help="List every file")
    parser.add_argument("--yes", action="store_true", help="Do not ask")


def run(arguments: Namespace) -> int:
    """List the files, ask, and remove them; 1 if the answer is no."""
    from pytest_gpuenergy.support import cache_dir, compiled_dir, state_dir

    here = Path.cwd()
    found = find_project_files(here, keep=arguments.keep or 0)
    others: list[str] = []
    if arguments.exports:
        found += find_exports(here)
    else:
        with suppress(GpuEnergyError, OSError):
            others += [f"kept without --exports: {line}" for line in _sums(find_exports(here))]
    if arguments.fleet:
        found += find_fleet_files(state_dir() / "fleet", keep=arguments.keep or 0)
    else:
        with suppress(GpuEnergyError, OSError):
            left = find_fleet_files(fleets := state_dir() / "fleet").generated
            others += [f"kept without --fleet: {fleets}: {_sum(left)}"] if left else []
    if arguments.cache:
        for cache in sorted({cache_dir(), compiled_dir()}):
            found += find_cache_files(cache)
    for path in found.foreign:
        print(f"kept, not made by gpuenergy: {path}")
    for path in found.used:
        print(f"kept, in use: {path}")
    for line in others:
        print(line)
    if not found.generated:
        print("nothing to remove")
        return 0
    for line in map(str, (*found.generated, *found.folders)) if arguments.files else _sums(found):
        print(line)
    if not arguments.yes and not _confirmed(f"Remove {_sum(found.generated)}?"):
        print("nothing removed")
        return 1
    return _remove(found)


def _sums(found: FoundFiles) -> Iterator[str]:
    """Return a line for each group of files that would be removed."""
    grouped: dict[Path, list[Path]] = {}
    for path in found.generated:
        folder = next((group for group in found.groups if group in path.parents), path.parent)
        grouped.setdefault(folder, []).append(path)
    for folder, paths in grouped.items():
        yield f"{folder}: {_sum(paths)}"


def _sum(paths: Sequence[Path]) -> str:
    """Return the number of files and their size, such as ``8 files, 12.3 kB``."""
    size = float(sum(path.lstat().st_size for path in paths))
    words = f"{len(paths)} file{'' if len(paths) == 1 else 's'}"
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{words}, {size:.0f} B" if unit == "B" else f"{words}, {size:.1f} {unit}"
        size /= 1000
    return f"{words}, {size:.1f} GB"


def _confirmed(question: str) -> bool:
    try:
        return input(f"{question} [y/N] ").strip().lower() in ("y", "yes")
    except EOFError:  # there is nobody to answer
        print()
        return False


def _remove(found: FoundFiles) -> int:
    size = _sum(found.generated)
    try:
        for path in found.generated:
            path.unlink(missing_ok=True)
        for folder in found.folders:
            if is_there(folder) and not any(folder.iterdir()):
                folder.rmdir()
    except OSError as error:
        raise GpuEnergyError(f"{error.filename} cannot be removed: {error.strerror}.") from None
    print(f"removed {size}")
    return 0
