"""Copies the few files of HeCBench that the kernel specs need, to carry them to another machine.

python bench/hecbench_files.py CHECKOUT TO

TO then stands for the checkout: ``gpuenergy optimize bench/search/hecbench --sources TO``. HeCBench
is under the BSD 3-Clause License, some of its programs under others; its licence is copied, too.
"""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from pytest_gpuenergy.search import extract, raw_spec, read_spec, spec_paths

SPECS = Path(__file__).parent / "search/hecbench"
LICENCE = PurePosixPath("LICENSE")


def needed(checkout: Path, specs: Path) -> Iterator[PurePosixPath]:
    """The files that the specs of a folder read, each after the ones that include it."""

    def read(path: PurePosixPath) -> str | None:
        try:
            return (checkout / path).read_text(encoding="utf-8-sig")
        except (OSError, UnicodeDecodeError):
            return None

    for path in spec_paths(specs):
        read_spec(path, checkout)  # refuses what is missing or differs
        spec = raw_spec(path)
        file = PurePosixPath(spec.file)
        yield from extract(file, spec.entry, read, spec.launch.constants).files
        folder = checkout / file.parent
        yield from (file.parent / one.name for one in folder.glob("LICENSE*"))


def main(arguments: list[str] | None = None) -> None:
    """Copy them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkout", type=Path)
    parser.add_argument("to", type=Path)
    given = parser.parse_args(arguments)
    found = dict.fromkeys([LICENCE, *needed(given.checkout, SPECS)])
    for name in found:
        target = given.to / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(given.checkout / name, target)
    print(f"{len(found)} files copied to {given.to}")


if __name__ == "__main__":
    main()
