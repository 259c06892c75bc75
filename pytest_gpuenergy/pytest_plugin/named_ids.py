"""Ids that were copied from a report, on pytest's command line."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

import pytest

from pytest_gpuenergy.report import HOME, RunFolder, is_run, shown_ids
from pytest_gpuenergy.support import GpuEnergyError, is_folder

_SETPOINT = re.compile(
    r"(?<=[-\[])([0-9]{1,5}(?:\.[0-9]{1,3})?W(?:-[0-9]{1,5}MHz)?|[0-9]{1,5}MHz|current)"
    r"(?=[\]\s)]|$)",
    re.ASCII,
)
_OPERATORS = {"and", "or", "not"}
_MOST_RUNS = 10
_CHOSEN = "gpuenergy-chosen-by-id"
_EXPRESSION = re.compile(r"[\w:+\-.\[\]\\/()\s]*")
"""What an expression of pytest's consists of; words stand between operators."""


def setpoints_named(config: pytest.Config) -> list[str]:
    """The labels of setpoints at the ends of ids, in ``-k`` and in arguments.

    Such as ``300W`` of ``a.py::test_a[300W]``, or ``450W-1500MHz``. A cap alone, ``-k 300W``, is
    no id: it may be a parameter of somebody else's.
    """
    arguments = [argument for argument in config.args if "::" in argument]
    return list(dict.fromkeys(_SETPOINT.findall(" ".join([*arguments, _keyword(config)]))))


def name_items(config: pytest.Config, items: Sequence[pytest.Item]) -> None:
    """Let ``-k`` select items by their whole id, and by the ids in this project's latest runs.

    This concerns words of ``-k`` that are part of no item's own names. The label of a kernel, for
    example, is only known once the item has run.
    """
    own = [name.casefold() for item in items for name in _names(item)]
    keyword = _keyword(config)
    words = {word for word in _words(keyword) if not any(word in name for name in own)}
    if whole := _no_expression(keyword):
        words = {whole}
    by_id = {item.nodeid.casefold(): item for item in items}
    for word in words & by_id.keys():
        by_id[word].extra_keyword_matches.add(word)
    unknown = words - by_id.keys()
    for run in _latest_runs(config.rootpath) if unknown else ():
        unknown -= _name_as_in(run, by_id, unknown)
        if not unknown:
            break
    if whole and not unknown:  # pytest is given a word that it understands
        for item in items:
            if whole in item.extra_keyword_matches:
                item.extra_keyword_matches.add(_CHOSEN)
        config.option.keyword = _CHOSEN


def _name_as_in(run: Path, by_id: dict[str, pytest.Item], words: Collection[str]) -> set[str]:
    """Name items as a run did; returns the words that this concerned."""
    try:
        measurements = RunFolder(run).load().measurements
    except (GpuEnergyError, OSError):
        return set()  # damaged: others may have the id
    found = set()
    for m in measurements:
        item = by_id.get(m.node_id.casefold())
        for word in {name.casefold() for name in shown_ids(m)} & set(words) if item else ():
            assert item is not None
            item.extra_keyword_matches.add(word)
            found.add(word)
    return found


def _latest_runs(root: Path) -> list[Path]:
    folder = root / HOME / "runs"
    runs = sorted(folder.iterdir(), reverse=True) if is_folder(folder) else []
    return [run for run in runs[:_MOST_RUNS] if is_run(run)]


def _names(item: pytest.Item) -> Iterator[str]:
    """The names that ``-k`` looks through."""
    for node in item.listchain():
        yield node.name
    yield from item.listextrakeywords()


def _keyword(config: pytest.Config) -> str:
    return str(config.getoption("keyword") or "")


def _no_expression(keyword: str) -> str:
    """``keyword`` as a single id, if it cannot be an expression: ``scale-scale<4>-300W``.

    Ids also have blanks, where a parameter has: ``test_scale[two words-300W]``.
    """
    words = re.findall(r"[^\s()]+", keyword.casefold())
    is_one = _EXPRESSION.fullmatch(keyword) is not None
    return (
        "" if is_one and (len(words) < 2 or _OPERATORS & {*words}) else keyword.casefold().strip()
    )


def _words(expression: str) -> set[str]:
    return {*re.findall(r"[^\s()]+", expression.casefold())} - _OPERATORS
