"""``gpuenergy clean``: removes what this package generated, and nothing else."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_gpuenergy.commands.command_line import Subparsers, add_command, count
from pytest_gpuenergy.support import GpuEnergyError, is_there

if TYPE_CHECKING:
    from pytest_gpuenergy.commands.clean_files import Found


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
    """List, ask, remove; 1 if the answer is no or something could not be removed."""
    from pytest_gpuenergy.commands.clean_files import (
        find_cache_files,
        find_exports,
        find_fleet_files,
        find_project_files,
    )
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


def _sums(found: Found) -> Iterator[str]:
    """A line for each group of files that would be removed."""
    grouped: dict[Path, list[Path]] = {}
    for path in found.generated:
        folder = next((group for group in found.groups if group in path.parents), path.parent)
        grouped.setdefault(folder, []).append(path)
    for folder, paths in grouped.items():
        yield f"{folder}: {_sum(paths)}"


def _sum(paths: Sequence[Path]) -> str:
    """``8 files, 12.3 kB``."""
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


def _remove(found: Found) -> int:
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
