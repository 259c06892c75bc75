"""What the command line selects: of what a baseline has, what did it leave out on purpose?

A kernel of the baseline that a run lacks counts as lost unless an option or an argument on the
command line itself deselected it. A kernel that is gone from the code, a case that is no longer
collected, a cap that was skipped and items that ``-x`` did not get to are lost.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatch
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest
from _pytest.mark.expression import Expression

from pytest_gpuenergy.pytest_plugin._compat import command_line, unmatched
from pytest_gpuenergy.pytest_plugin.names import POWERCAP_FIXTURE
from pytest_gpuenergy.pytest_plugin.option_table import either
from pytest_gpuenergy.record import Measurement
from pytest_gpuenergy.report import shown_ids
from pytest_gpuenergy.support import is_there

COLLECTED = "gpuenergy_collected"
"""Key of a worker's ``workeroutput``: what it has collected; see `Selection.sent`."""

_REPORTED = ("lf", "stepwise", "stepwise_skip", "splits", "shard_id", "num_shards")
"""Options, some of other plugins, that report to pytest what they deselect."""

_CAPS = ("powercap", "smclock")


class Selection:
    """The items that a run has collected, and the options that chose among them.

    With pytest-xdist the workers collect, and send what they did to the controller.

    Args:
        config: pytest's.
        baseline: what the baseline has.
    """

    def __init__(self, config: pytest.Config, baseline: Iterable[Measurement]) -> None:
        self._config = config
        self._baseline = {one.node_id for one in baseline}
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
        """What was collected, as a worker sends it."""
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

    def deselects(self, one: Measurement) -> bool:
        """Whether the command line left an item of the baseline out of the run."""
        return one.node_id not in self._selected and any(self._reasons(one))

    def _note(self, items: Iterable[pytest.Item]) -> None:
        self._caps.update(_caps_of(items))
        for item in items:
            function = item.nodeid.partition("[")[0]
            self._marks[function] = [mark.name for mark in item.iter_markers()]

    def _reasons(self, one: Measurement) -> Iterator[bool]:
        item, given = one.node_id, self._given
        yield self._is_elsewhere(item)
        yield any(item.startswith(prefix) for prefix in given.deselect or ())
        if (unmatched_by := self._deselected.get(item)) is not None:
            yield any(getattr(given, name) for name in unmatched_by)
            stated = any(item.startswith(each) for each in self._config.option.deselect or ())
            yield not (unmatched_by or stated) and self._names(*_REPORTED)
            return
        # It was not collected: would it have been selected? Marks are those of its function.
        function = item.partition("[")[0]
        marks = self._marks.get(function, [])
        if given.keyword:
            names = [each.casefold() for each in (*shown_ids(one), *marks)]

            def is_named(name: str, /, **_: object) -> bool:
                return any(name.casefold() in each for each in names)

            yield not Expression.compile(self._config.option.keyword).evaluate(is_named)
        if given.markexpr:
            alike = [each for each in self._deselected if each.partition("[")[0] == function]
            yield bool(alike) and not self._collects(function)
        if self._names("lf") and self._reruns_failures:  # what passed is not even collected
            yield is_there(self._config.rootpath / item.partition("::")[0])
        if self._names(*_CAPS):
            yield bool(self._caps) and one.cap not in self._caps
        if self._names("gpuenergy_cache"):
            yield one.cache != either(self._config, "gpuenergy_cache")
        yield any(
            self._config.hook.pytest_gpuenergy_deselected(config=self._config, measurement=one)
        )

    def _collects(self, prefix: str) -> bool:
        return any(item.startswith(prefix) for item in self._selected)

    @cached_property
    def _given(self) -> Any:
        """The options of the command line itself, without those that ``addopts`` adds."""
        return command_line(self._config)

    @cached_property
    def _reruns_failures(self) -> bool:
        """Whether ``--lf`` has found any of the items that have failed before."""
        cache = getattr(self._config, "cache", None)
        failed = {} if cache is None else cache.get("cache/lastfailed", {})
        return any(map(self._collects, failed))

    def _names(self, *options: str) -> bool:
        """Whether the command line has one of ``options``, also as ``-o`` of the ini option."""
        given = self._given
        overridden = {each.partition("=")[0] for each in given.override_ini or ()}
        return any(getattr(given, name, None) or name in overridden for name in options)

    def _is_elsewhere(self, item: str) -> bool:
        """Whether an item lies outside the arguments, or where ``--ignore`` does not look."""
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
        """Whether ids in the baseline are relative to the root folder of this project."""
        collected = self._selected | self._deselected.keys()
        files = {item.partition("::")[0] for item in self._baseline}
        return (
            not collected
            or bool(collected & self._baseline)
            or any(is_there(self._config.rootpath / file) for file in files)
        )


def _holds(argument: str, here: Path, path: Path, names: Sequence[str]) -> bool:
    """Whether an argument of pytest's names a file, or what is in it."""
    place, *chosen = argument.split("::")
    if not path.is_relative_to((here / place).resolve()):
        return False
    if not chosen:
        return True
    name, asked = "::".join(names), "::".join(chosen)
    return name == asked or name.startswith((f"{asked}[", f"{asked}::"))


def _caps_of(items: Iterable[pytest.Item]) -> Iterator[str]:
    for item in items:
        parameters: dict[str, Any] = getattr(getattr(item, "callspec", None), "params", {})
        if (setpoint := parameters.get(POWERCAP_FIXTURE)) is not None:
            yield setpoint.label
