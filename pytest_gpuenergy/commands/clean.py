"""``gpuenergy clean``: removes what this package generated, and nothing else."""

from __future__ import annotations

import re
import stat
from argparse import Namespace
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pytest_gpuenergy.commands import Subparsers, add_command
from pytest_gpuenergy.support.errors import GpuEnergyError, InputError
from pytest_gpuenergy.support.files import is_link, is_there

_HOME = ".gpuenergy"
_SIGN = "# Made by pytest-gpuenergy"
_DRAFT = r"\.(gpuenergy-[0-9a-f]{16}|[\w.-]+\.\d+)\.tmp"
_RUN_FILES = re.compile(
    rf"(run|report)\.json|(measurements|anchors)\.jsonl|csv/[^/]+/(all\.csv|powercap[^/]+/results\.csv|"
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


@dataclass(frozen=True)
class Found:
    """The contents of our folders.

    Attributes:
        generated: files that we created, which may be removed.
        folders: folders that we created, deepest first; removed if they are empty by then.
        foreign: files, links and folders that we did not create.
    """

    generated: tuple[Path, ...] = ()
    folders: tuple[Path, ...] = ()
    foreign: tuple[Path, ...] = ()

    def __add__(self, other: Found) -> Found:
        return Found(
            self.generated + other.generated,
            self.folders + other.folders,
            self.foreign + other.foreign,
        )


def add_parser(subparsers: Subparsers) -> None:
    """Add ``clean``."""
    parser = add_command(
        subparsers,
        "clean",
        run,
        summary="Remove the runs of this project, and the caches",
        description="Lists what would be removed and asks first. Only files that this package "
        "created are removed; links are not followed, and saved power limits are never touched.",
        example="""
gpuenergy clean
gpuenergy clean --cache --yes
""",
    )
    parser.add_argument(
        "--cache", action="store_true", help="Also the caches: compiled kernels, references"
    )
    parser.add_argument("--yes", action="store_true", help="Do not ask")


def run(arguments: Namespace) -> int:
    """List, ask, remove; 1 if the answer is no or something could not be removed."""
    found = find_project_files(Path.cwd())
    if arguments.cache:
        from pytest_gpuenergy.support.paths import cache_dir, compiled_dir

        for cache in sorted({cache_dir(), compiled_dir()}):
            found += find_cache_files(cache)
    for path in found.foreign:
        print(f"kept, not made by gpuenergy: {path}")
    if not found.generated:
        print("nothing to remove")
        return 0
    size = sum(path.lstat().st_size for path in found.generated)
    for path in (*found.generated, *found.folders):
        print(path)
    count = len(found.generated)
    if not arguments.yes and not _confirmed(f"Remove these {count} files ({size / 1e6:.1f} MB)?"):
        print("nothing removed")
        return 1
    return _remove(found)


def find_project_files(root: Path) -> Found:
    """The runs under ``root/.gpuenergy``.

    Raises:
        InputError: there is a folder of that name that this package did not create.
    """
    home = root / _HOME
    if not is_link(home) and not is_there(home):
        return Found()
    sign = home / ".gitignore"
    if is_link(home) or not _is_ours(sign):
        raise InputError(
            f"{home} was not made by gpuenergy, or is a link, so nothing is removed there: "
            "inspect it and remove it by hand."
        )
    runs = home / "runs"
    found = Found()
    for folder in _entries(runs) if _is_folder(runs) else ():
        if _is_folder(folder) and _is_file(folder / "run.json"):
            found += _of_run(folder)
        else:
            found += Found(foreign=(folder,))
    ours = {sign, home / "latest"}
    others = [path for path in _entries(home) if path not in ours and path != runs]
    if (is_link(runs) or is_there(runs)) and not _is_folder(runs):
        others.append(runs)
    # The sign is removed last, so an interrupted clean can be repeated.
    generated = tuple(path for path in (home / "latest", sign) if _is_file(path))
    if found.foreign or others:
        generated = tuple(path for path in generated if path != sign)
    folders = (runs,) if _is_folder(runs) else ()
    return found + Found(generated, (*folders, home), tuple(others))


def find_cache_files(cache: Path) -> Found:
    """Everything named by a hash in this package's folders in ``cache``, which itself is kept."""
    found = Found()
    for name in CACHE_FOLDERS:
        folder = cache / name
        if not _is_folder(folder) or not _is_folder(folder.parent):
            continue
        for path in _entries(folder):
            if not _CACHE_ENTRY.fullmatch(path.name):
                found += Found(foreign=(path,))
            else:
                found += _everything(path)
        found += Found(folders=(folder,))
    return found


def _everything(path: Path) -> Found:
    if _is_file(path):
        return Found(generated=(path,))
    if not _is_folder(path):
        return Found(foreign=(path,))
    found = Found()
    for entry in _entries(path):
        found += _everything(entry)
    return found + Found(folders=(path,))


def _of_run(folder: Path) -> Found:
    found = _views(folder, folder)
    # It identifies the folder as that of a run, so it is removed last, and only with the rest.
    sign = folder / "run.json"
    generated = tuple(path for path in found.generated if path != sign)
    return Found(generated if found.foreign else (*generated, sign), found.folders, found.foreign)


def _views(folder: Path, run: Path) -> Found:
    found = Found()
    for path in _entries(folder):
        name = path.relative_to(run).as_posix()
        if _is_folder(path) and name.split("/")[0] == "csv":
            found += _views(path, run)
        elif _is_file(path) and _RUN_FILES.fullmatch(name):
            found += Found(generated=(path,))
        else:
            found += Found(foreign=(path,))
    return found + Found(folders=(folder,))


def _entries(folder: Path) -> Iterator[Path]:
    return iter(sorted(folder.iterdir()))


def _is_file(path: Path) -> bool:
    return is_there(path) and stat.S_ISREG(path.lstat().st_mode)


def _is_folder(path: Path) -> bool:
    return is_there(path) and stat.S_ISDIR(path.lstat().st_mode)


def _is_ours(sign: Path) -> bool:
    return _is_file(sign) and sign.read_text(errors="replace").startswith(_SIGN)


def _confirmed(question: str) -> bool:
    try:
        return input(f"{question} [y/N] ").strip().lower() in ("y", "yes")
    except EOFError:  # there is nobody to answer
        print()
        return False


def _remove(found: Found) -> int:
    try:
        for path in found.generated:
            path.unlink(missing_ok=True)
        for folder in found.folders:
            if not any(folder.iterdir()):
                folder.rmdir()
    except OSError as error:
        raise GpuEnergyError(f"{error.filename} cannot be removed: {error.strerror}.") from None
    print(f"removed {len(found.generated)} files")
    return 0
