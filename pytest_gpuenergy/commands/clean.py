"""``gpuenergy clean``: removes what this package generated, and nothing else."""

from __future__ import annotations

import os
import stat
import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from pytest_gpuenergy import kernels, report as reports
from pytest_gpuenergy.commands.command_line import Subparsers, add_command, count
from pytest_gpuenergy.support import (
    CACHE_ENTRY,
    CACHE_FOLDERS,
    GpuEnergyError,
    InputError,
    cache_dir,
    compiled_dir,
    counted,
    is_link,
    is_there,
    state_dir,
)

_MAKING_S = 3600.0
"""Age up to which an unfinished copy of a project may still be in the making."""


@dataclass
class FoundFiles:
    """The contents of this package's folders.

    Attributes:
        generated: files that we created, which may be removed.
        folders: folders that we created, deepest first; removed if they are empty by then.
        foreign: files, links and folders that we did not create.
        groups: folders whose files are counted together: runs, caches, exports and copies.
        used: folders that we created and that are in use.
    """

    generated: list[Path] = field(default_factory=list)
    folders: list[Path] = field(default_factory=list)
    foreign: list[Path] = field(default_factory=list)
    groups: list[Path] = field(default_factory=list)
    used: list[Path] = field(default_factory=list)

    @classmethod
    def in_tree(cls, path: Path, is_ours: Callable[[Path], object]) -> FoundFiles:
        """Return what is at ``path`` and below it; links are not followed."""
        found = cls()
        if not is_ours(path):
            found.foreign.append(path)
        elif _is_folder(path):
            for entry in _entries(path):
                found.add(cls.in_tree(entry, is_ours))
            found.folders.append(path)
        else:
            found.generated.append(path)
        return found

    def add(self, other: FoundFiles) -> None:
        """Add what was found elsewhere."""
        self.generated += other.generated
        self.folders += other.folders
        self.foreign += other.foreign
        self.groups += other.groups
        self.used += other.used

    def remove_last(self, sign: Path) -> None:
        """Have a file that marks a folder as ours removed last, and only with all the rest.

        An interrupted or incomplete clean can then be repeated.
        """
        if sign in self.generated:
            self.generated.remove(sign)
            self.generated += () if self.foreign else (sign,)


def find_runs(root: Path, *, keep: int = 0) -> FoundFiles:
    """Return the runs of a project, except the last ``keep`` of them."""
    home = root / reports.HOME
    found = FoundFiles()
    if not is_link(home) and not is_there(home):
        return found
    sign, runs, pointer = home / ".gitignore", home / "runs", home / "latest"
    marked = not is_link(home) and _is_file(sign)
    if not (marked and sign.read_text(errors="replace").startswith(reports.IGNORE_SIGN)):
        raise InputError(
            f"{home} was not made by gpuenergy, or is a link, so nothing is removed there: "
            "inspect it and remove it by hand."
        )
    entries = _entries(runs) if _is_folder(runs) else []
    ours = [path for path in entries if _is_folder(path) and _is_file(path / "run.json")]
    # The names of runs begin with their time; one that was resumed is the latest.
    latest = pointer.read_text(errors="replace").strip() if _is_file(pointer) else ""
    ordered = sorted(ours, key=lambda run: (run.name == latest, run.name))
    kept = ordered[len(ordered) - keep :] if keep else []
    for path in entries:
        if path not in ours:
            found.foreign.append(path)
        elif path not in kept:
            run = FoundFiles.in_tree(path, partial(_is_of_run, path))
            run.remove_last(path / "run.json")
            run.groups.append(path)
            found.add(run)
    for path in _entries(home):
        if path == runs and _is_folder(runs):
            found.folders.append(runs)
        elif path not in (pointer, sign):
            found.foreign.append(path)
        elif _is_file(path) and not kept:
            found.generated.append(path)
    found.folders.append(home)
    found.remove_last(sign)
    return found


def find_fleet_files(fleets: Path, *, keep: int = 0) -> FoundFiles:
    """Return what fleets have left on this host: copies of projects, and their older runs.

    Copies that a process has as its working directory are kept, new unfinished ones, and the last
    ``keep`` runs of each project.

    Raises:
        InputError: a folder of runs was not made by this package.
    """
    found = FoundFiles()
    busy: set[Path] = set()  # the working directories of processes that this user may inspect
    for process in Path("/proc").glob("[0-9]*/cwd") if _is_folder(fleets) else ():
        with suppress(OSError):
            folder = process.readlink()
            busy.update((folder, *folder.parents))
    for project in _entries(fleets) if _is_folder(fleets) else ():
        copies = project / "copies"
        if not _is_folder(project) or not _is_folder(copies):
            found.foreign.append(project)
            continue
        for copy in _entries(copies):
            age_s = time.time() - copy.lstat().st_mtime
            if not _is_folder(copy):
                found.foreign.append(copy)
            elif copy in busy or (copy.name.startswith(".") and age_s < _MAKING_S):
                found.used.append(copy)
            else:
                found.add(FoundFiles.in_tree(copy, lambda _: True))
                found.groups.append(copy)
        found.add(find_runs(project, keep=keep))
        found.folders += (copies, project)
    return found


def find_exports(root: Path) -> FoundFiles:
    """Return what `kernels.export` has written to folders in ``root`` and nobody has changed.

    Raises:
        InputError: the list of a folder's files cannot be used.
    """
    found = FoundFiles()
    for folder in _entries(root):
        if not _is_folder(folder) or not os.access(folder, os.R_OK | os.X_OK):
            continue  # a folder that we cannot read is no export of ours
        if (export := kernels.ExportedFolder.find(folder)) is not None:
            ours = {*export.own, *export.folders, folder, folder / kernels.SIGN}
            inside = FoundFiles.in_tree(folder, ours.__contains__)
            inside.remove_last(folder / kernels.SIGN)
            inside.groups.append(folder)
            found.add(inside)
    return found


def find_cache_files(cache: Path) -> FoundFiles:
    """Return all that is named by a hash in this package's folders in ``cache``."""
    found = FoundFiles()
    for folder in map(cache.joinpath, CACHE_FOLDERS):
        if _is_folder(folder) and _is_folder(folder.parent):
            found.add(FoundFiles.in_tree(folder, partial(_is_cached, folder)))
            found.groups.append(folder)
    return found


def _is_of_run(run: Path, path: Path) -> bool:
    name = path.relative_to(run).as_posix()
    if _is_folder(path):
        return path == run or name.partition("/")[0] == "csv"
    return _is_file(path) and reports.RUN_FILES.fullmatch(name) is not None


def _is_cached(folder: Path, path: Path) -> bool:
    named = path.parent != folder or CACHE_ENTRY.fullmatch(path.name)
    return path == folder or bool(named and (_is_file(path) or _is_folder(path)))


def _entries(folder: Path) -> list[Path]:
    return sorted(folder.iterdir())


def _is_file(path: Path) -> bool:
    return is_there(path) and stat.S_ISREG(path.lstat().st_mode)


def _is_folder(path: Path) -> bool:
    return is_there(path) and stat.S_ISDIR(path.lstat().st_mode)


def add_parser(subparsers: Subparsers, summary: str) -> None:
    """Add ``clean``."""
    parser = add_command(
        subparsers,
        "clean",
        run,
        summary=summary,
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
        help="Keep the N latest runs; one that was resumed is the latest (default: none)",
    )
    parser.add_argument(
        "--exports",
        action="store_true",
        help="Also remove what gpuenergy kernels export has written to folders in this one",
    )
    parser.add_argument(
        "--cache",
        action="store_true",
        help="Also remove the caches of compiled kernels and of references",
    )
    parser.add_argument(
        "--fleet",
        action="store_true",
        help="Also remove what fleets have left in the state folder of this host: copies of "
        "projects, and their runs, of which --keep keeps the last N for each project",
    )
    parser.add_argument("--files", action="store_true", help="List every file")
    parser.add_argument("--yes", action="store_true", help="Do not ask")


def run(arguments: Namespace) -> int:
    """List the files, ask, and remove them; 1 if the answer is no."""
    here = Path.cwd()
    found = find_runs(here, keep=arguments.keep or 0)
    others: list[str] = []
    if arguments.exports:
        found.add(find_exports(here))
    else:
        with suppress(GpuEnergyError, OSError):
            others += [f"kept without --exports: {line}" for line in _sums(find_exports(here))]
    if arguments.fleet:
        found.add(find_fleet_files(state_dir() / "fleet", keep=arguments.keep or 0))
    else:
        with suppress(GpuEnergyError, OSError):
            left = find_fleet_files(fleets := state_dir() / "fleet").generated
            others += [f"kept without --fleet: {fleets}: {_sum(left)}"] if left else []
    if arguments.cache:
        for cache in sorted({cache_dir(), compiled_dir()}):
            found.add(find_cache_files(cache))
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
    words = f"{counted(len(paths), 'file')}"
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
