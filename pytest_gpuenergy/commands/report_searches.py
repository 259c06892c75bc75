"""The part of ``gpuenergy report`` that shows searches for better kernels."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_gpuenergy.commands.command_line import print_lines
from pytest_gpuenergy.support import InputError

if TYPE_CHECKING:
    from pytest_gpuenergy.search import SearchRecord


def split(named: Iterable[str]) -> tuple[list[str], list[Path]]:
    """The runs among what was named, and the folders of searches."""
    from pytest_gpuenergy.report import is_run
    from pytest_gpuenergy.search import search_folders

    runs, searches = list[str](), list[Path]()
    for name in named:
        path = Path(name)
        if not is_run(path) and search_folders(path):
            searches.append(path)
        else:
            runs.append(name)
    return runs, searches


def read(named: Iterable[Path]) -> list[SearchRecord]:
    """The searches in folders, each once.

    Raises:
        InputError: one cannot be read.
    """
    from pytest_gpuenergy.search import read_searches

    found = [one for path in named for one in read_searches(path)]
    return list({one.folder.resolve(): one for one in found}.values())


def show_alone(
    searches: Sequence[SearchRecord], html: str | None, others: Iterable[str], first: Path
) -> None:
    """Write the page of searches without a run, or print what they have gained.

    Args:
        searches: at least one.
        html: where to write the page; None prints.
        others: options that are given and need a run, without the dashes.
        first: a folder that was named.

    Raises:
        InputError: such an option is given.
        ReportError: the page cannot be written.
    """
    from pytest_gpuenergy.commands.command_line import write_text
    from pytest_gpuenergy.report import Report, html_page

    for name in others:
        raise InputError(
            f"--{name.replace('_', '-')} is of measurements, and {first} has searches only: omit "
            f"it, or name a run, too, such as one of bench/test_search.py --search-out {first}."
        )
    if html is None:
        print_searches(searches)
        return
    latest = max(searches, key=lambda one: one.run.started)
    write_text(html_page(Report(latest.run, ()), searches=values(searches)), html)


def values(searches: Iterable[SearchRecord]) -> list[Mapping[str, Any]]:
    """What the page shows of searches."""
    from pytest_gpuenergy.search import search_values

    return [search_values(one) for one in searches]


def print_searches(searches: Sequence[SearchRecord]) -> None:
    """A table of what they have gained, and the sums."""
    from pytest_gpuenergy.search import summary_of, table_of, totals_of
    from pytest_gpuenergy.support import aligned

    summary = summary_of((one.spec, one.state) for one in searches)
    assert summary is not None  # each has a baseline
    print_lines([*aligned(table_of(summary)), *totals_of(summary)])
