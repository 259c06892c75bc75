"""Selects and orders items: ids from a report, deselected kernels, interleaving.

A kernel of the baseline that a run lacks counts as lost unless an option or an argument on the
command line itself deselected it. A kernel that is gone from the code, a case that is no longer
collected, a cap that was skipped and items that ``-x`` did not reach are lost.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import suppress
from fnmatch import fnmatch
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import pytest

from pytest_gpuenergy.pytest_plugin._compat import command_line, selects, unmatched
from pytest_gpuenergy.pytest_plugin.declared_options import (
    CACHE,
    POWERCAP,
    POWERCAP_FIXTURE,
    SMCLOCK,
)
from pytest_gpuenergy.record import Measurement
from pytest_gpuenergy.report import HOME, RunFolder, is_run, shown_ids
from pytest_gpuenergy.support import GpuEnergyError, is_folder, is_there

_T = TypeVar("_T")
_SETPOINT = re.compile(
    r"(?<=[-\[])([0-9]{1,5}(?:\.[0-9]{1,3})?W(?:-[0-9]{1,5}MHz)?|[0-9]{1,5}MHz|current)"
    r"(?=[\]\s)]|$)",
    re.ASCII,
)
_OPERATORS = {"and", "or", "not"}
_MAX_RUNS = 10
"""The number of latest runs that are searched for an id."""
_CHOSEN = "gpuenergy-chosen-by-id"
_EXPRESSION = re.compile(r"[\w:+\-.\[\]\\/()\s]*")
"""The characters that an expression of pytest may contain."""
COLLECTED = "gpuenergy_collected"
"""Key of a worker's ``workeroutput``: what it has collected; see `Selection.sent`."""
_REPORTED = ("lf", "stepwise", "stepwise_skip", "splits", "shard_id", "num_shards")
"""Options, some from other plugins, that report to pytest what they deselect."""


def setpoints_named(config: pytest.Config) -> list[str]:
    """Return the labels of setpoints at the ends of ids, in ``-k`` and in arguments.

    Examples are ``300W`` in ``a.py::test_a[300W]``, and ``450W-1500MHz``. A cap alone, ``-k 300W``,
    is not an id: it may be a parameter of a test that does not use this plugin.
    """
    arguments = [argument for argument in config.args if "::" in argument]
    return list(dict.fromkeys(_SETPOINT.findall(" ".join([*arguments, _keyword(config)]))))


def name_items(config: pytest.Config, items: Sequence[pytest.Item]) -> list[str]:
    """Let ``-k`` select items by their whole id, and by ids in this project's latest runs.

    Only words of ``-k`` that match no item's own names are looked up. The label of a kernel, for
    example, is only known once the item has run. Return the words that name nothing.
    """
    own = [name.casefold() for item in items for name in _names(item)]
    keyword = _keyword(config)
    spelled = re.findall(r"[^\s()]+", keyword.casefold())
    operators = _OPERATORS & {*spelled}
    words = {word for word in spelled if not any(word in name for name in own)} - operators
    # A single id that is no expression, such as scale-scale<4>-300W or test_scale[two words-300W].
    is_expression = _EXPRESSION.fullmatch(keyword) and (len(spelled) < 2 or operators)
    whole = "" if is_expression else keyword.casefold().strip()
    if whole:
        words = {whole}
    by_id = {item.nodeid.casefold(): item for item in items}
    for word in words & by_id.keys():
        by_id[word].extra_keyword_matches.add(word)
    unknown = words - by_id.keys()
    folder = config.rootpath / HOME / "runs"
    runs = sorted(folder.iterdir(), reverse=True) if unknown and is_folder(folder) else []
    for run in filter(is_run, runs[:_MAX_RUNS]):
        found: set[str] = set()
        with suppress(GpuEnergyError, OSError):  # a damaged run; another one may have the id
            for m in RunFolder(run).load().measurements if unknown else ():
                if (item := by_id.get(m.node_id.casefold())) is not None:
                    shown = {name.casefold() for name in shown_ids(m)} & unknown
                    item.extra_keyword_matches.update(shown)
                    found |= shown
        unknown -= found
    if whole and not unknown:  # pytest cannot parse the id, so it gets a keyword instead
        for item in items:
            if whole in item.extra_keyword_matches:
                item.extra_keyword_matches.add(_CHOSEN)
        config.option.keyword = _CHOSEN
    return sorted(unknown)


def _names(item: pytest.Item) -> Iterator[str]:
    """Return the names that ``-k`` compares with."""
    for node in item.listchain():
        yield node.name
    yield from item.listextrakeywords()


def _keyword(config: pytest.Config) -> str:
    return str(config.getoption("keyword") or "")


class Selection:
    """The items that a run has collected, and the options that chose among them.

    With pytest-xdist, the workers collect and send the result to the controller.
    """

    def __init__(self, config: pytest.Config, baseline: Iterable[Measurement]) -> None:
        self._config = config
        self._baseline = {m.node_id for m in baseline}
        self._selected: set[str] = set()
        self._deselected: dict[str, list[str]] = {}
        self._caps: set[str] = set()
        self._marks: dict[str, list[str]] = {}

    def select(self, items: Iterable[pytest.Item]) -> None:
        """Note items that will run."""
        self._selected.update(item.nodeid for item in items)
        self._note(items)

    def deselect(self, items: Iterable[pytest.Item]) -> None:
        """Note items that an option deselected, and whether it may have been ``-k`` or ``-m``."""
        self._deselected.update((item.nodeid, unmatched(self._config, item)) for item in items)
        self._note(items)

    def sent(self) -> dict[str, Any]:
        """Return what was collected, in the form that a worker sends."""
        return {
            "selected": sorted(self._selected),
            "deselected": self._deselected,
            "caps": sorted(self._caps),
            "marks": self._marks,
        }

    def receive(self, sent: dict[str, Any]) -> None:
        """Add what a worker has collected."""
        self._selected.update(sent["selected"])
        self._deselected.update(sent["deselected"])
        self._caps.update(sent["caps"])
        self._marks.update(sent["marks"])

    def deselects(self, measurement: Measurement) -> bool:
        """Return whether the command line left out an item of the baseline."""
        return measurement.node_id not in self._selected and any(self._reasons(measurement))

    def _note(self, items: Iterable[pytest.Item]) -> None:
        for item in items:
            parameters: dict[str, Any] = getattr(getattr(item, "callspec", None), "params", {})
            if (setpoint := parameters.get(POWERCAP_FIXTURE)) is not None:
                self._caps.add(setpoint.label)
            function = item.nodeid.partition("[")[0]
            self._marks[function] = [mark.name for mark in item.iter_markers()]

    def _reasons(self, measurement: Measurement) -> Iterator[bool]:
        item, given = measurement.node_id, self._given
        yield self._is_elsewhere(item)
        yield any(item.startswith(prefix) for prefix in given.deselect or ())
        if (unmatched_by := self._deselected.get(item)) is not None:
            yield any(getattr(given, name) for name in unmatched_by)
            stated = any(item.startswith(each) for each in self._config.option.deselect or ())
            yield not (unmatched_by or stated) and self._names(*_REPORTED)
            return
        # The item was not collected. Would it have been selected? Its function's marks tell.
        function = item.partition("[")[0]
        marks = self._marks.get(function, [])
        if given.keyword:
            names = [name.casefold() for name in (*shown_ids(measurement), *marks)]
            yield not selects(
                self._config.option.keyword,
                lambda word: any(word.casefold() in name for name in names),
            )
        if given.markexpr:
            alike = [each for each in self._deselected if each.partition("[")[0] == function]
            yield bool(alike) and not self._collects(function)
        if self._names("lf"):  # while any item failed, those that passed are not even collected
            cache = getattr(self._config, "cache", None)
            failed = {} if cache is None else cache.get("cache/lastfailed", {})
            if any(map(self._collects, failed)):
                yield is_there(self._config.rootpath / item.partition("::")[0])
        if self._names(POWERCAP.key, SMCLOCK.key):
            yield bool(self._caps) and measurement.cap not in self._caps
        if self._names(CACHE.key):
            yield measurement.cache != CACHE.value(self._config)
        yield any(
            self._config.hook.pytest_gpuenergy_deselected(
                config=self._config, measurement=measurement
            )
        )

    def _collects(self, prefix: str) -> bool:
        """Return whether any selected item's id begins with ``prefix``."""
        return any(item.startswith(prefix) for item in self._selected)

    @cached_property
    def _given(self) -> Any:
        """The options on the command line itself, without those that ``addopts`` adds."""
        return command_line(self._config)

    def _names(self, *options: str) -> bool:
        """Return whether the command line has one of ``options``, or ``-o`` with its ini option."""
        given = self._given
        overridden = {each.partition("=")[0] for each in given.override_ini or ()}
        return any(getattr(given, name, None) or name in overridden for name in options)

    def _is_elsewhere(self, item: str) -> bool:
        """Return whether an item is outside the paths in the arguments, or in an ignored one."""
        config, given, (file, *names) = self._config, self._given, item.split("::")
        path, here = (config.rootpath / file).resolve(), config.invocation_params.dir
        if any(path.is_relative_to((here / name).resolve()) for name in given.ignore or ()) or any(
            fnmatch(str(path), str(here / name)) for name in given.ignore_glob or ()
        ):
            return True
        arguments = given.file_or_dir
        if not arguments and config.args_source is pytest.Config.ArgsSource.INVOCATION_DIR:
            arguments = [str(here)]
        elif not arguments and self._names("testpaths"):
            arguments = [str(config.rootpath / name) for name in config.getini("testpaths")]
        if not arguments or config.getoption("pyargs") or not self._has_our_ids:
            return False
        return not any(_holds(argument, here, path, names) for argument in arguments)

    @cached_property
    def _has_our_ids(self) -> bool:
        """Whether ids in the baseline are relative to this project's root folder."""
        collected = self._selected | self._deselected.keys()
        files = {item.partition("::")[0] for item in self._baseline}
        return (
            not collected
            or bool(collected & self._baseline)
            or any(is_there(self._config.rootpath / file) for file in files)
        )


def _holds(argument: str, here: Path, path: Path, names: Sequence[str]) -> bool:
    """Return whether an argument of pytest covers the test ``names`` in the file ``path``."""
    place, *chosen = argument.split("::")
    if not path.is_relative_to((here / place).resolve()):
        return False
    if not chosen:
        return True
    name, asked = "::".join(names), "::".join(chosen)
    return name == asked or name.startswith((f"{asked}[", f"{asked}::"))


class ItemPlace(NamedTuple):
    """An item's place; only adjacent items of the same ``group`` are reordered."""

    group: Hashable
    kernel: Hashable
    setpoint: Hashable


def interleave(items: Sequence[_T], place: Callable[[_T], ItemPlace | None]) -> list[_T]:
    """Interleave the setpoints and kernels of each group, deterministically.

    The warming of the card then favours no setpoint and no kernel. A group is a table of kernels
    and setpoints. It is traversed in as many rounds as there are setpoints. Each round has every
    kernel once, alternately forwards and backwards. From one round to the next, a kernel advances
    by one in the sequence of setpoints first, last, second, second to last, and so on; the kernels
    start at places spread over that sequence. Each setpoint and each kernel is therefore spread
    about evenly over the run.

    Args:
        items: the items as written.
        place: returns an item's place; None for an item that stays where it is.
    """
    ordered: list[_T] = []
    for group, members in groupby(items, lambda item: (found := place(item)) and (found.group,)):
        if group is None:
            ordered += members
            continue
        cells: dict[tuple[Hashable, Hashable], list[_T]] = {}
        for item in members:
            found = place(item)
            assert found is not None
            cells.setdefault((found.kernel, found.setpoint), []).append(item)
        kernels = list(dict.fromkeys(kernel for kernel, _ in cells))
        written = list(dict.fromkeys(setpoint for _, setpoint in cells))
        # From both ends: first, last, second, second to last, and so on.
        setpoints = [written[-1 - i // 2 if i % 2 else i // 2] for i in range(len(written))]
        apart = max(1, len(setpoints) // len(kernels))
        for turn in range(len(setpoints)):
            row = list(enumerate(kernels))
            for number, kernel in row if turn % 2 == 0 else reversed(row):
                setpoint = setpoints[(number * apart + turn) % len(setpoints)]
                ordered += cells.get((kernel, setpoint), [])
    return ordered


def item_place(item: pytest.Item) -> ItemPlace | None:
    """Return the place of an item that is parametrized with setpoints; None for other items."""
    # Parameters are distinguished by identity: their values may be large or not comparable.
    values = dict(item.callspec.params) if hasattr(item, "callspec") else {}
    if POWERCAP_FIXTURE not in values:
        return None
    setpoint = id(values.pop(POWERCAP_FIXTURE))
    function = getattr(item, "originalname", item.name)
    return ItemPlace((item.parent, function), tuple(map(id, values.values())), setpoint)
