"""What the command line selects: of what a baseline has, what did it leave out on purpose?

A kernel of the baseline that a run lacks counts as lost unless an option or an argument on the
command line itself deselected it. A kernel that is gone from the code, a case that is no longer
collected, a cap that was skipped and items that ``-x`` did not get to are lost.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatch
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest
from _pytest.mark.expression import Expression

from pytest_gpuenergy.pytest_plugin.names import POWERCAP_FIXTURE
from pytest_gpuenergy.record.measurement import Measurement
from pytest_gpuenergy.report.ids import ids_of
from pytest_gpuenergy.support.files import is_there

COLLECTED = "gpuenergy_collected"
"""Key of a worker's ``workeroutput``: what it has collected; see `Selection.sent`."""

_REPORTED = (
    *("-k", "-m", "--deselect", "--lf", "--last-failed", "--sw", "--stepwise", "--sw-skip"),
    *("--stepwise-skip", "--splits", "--shard-id", "--num-shards"),
)
"""Options, some of other plugins, that report to pytest what they deselect."""

_BUNDLED = re.compile(r"-[vqxslh]*([km])")
"""A short option with a value, which others without one may precede: ``-xk``."""


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
        self._arguments = [str(argument) for argument in config.invocation_params.args]
        self._selected: set[str] = set()
        self._deselected: set[str] = set()
        self._caps: set[str] = set()

    def select(self, items: Iterable[pytest.Item]) -> None:
        """Note items that will run."""
        self._selected.update(item.nodeid for item in items)
        self._caps.update(_caps_of(items))

    def deselect(self, items: Iterable[pytest.Item]) -> None:
        """Note items that an option deselected."""
        self._deselected.update(item.nodeid for item in items)
        self._caps.update(_caps_of(items))

    def sent(self) -> dict[str, list[str]]:
        """What was collected, as a worker sends it."""
        return {
            "selected": sorted(self._selected),
            "deselected": sorted(self._deselected),
            "caps": sorted(self._caps),
        }

    def receive(self, sent: dict[str, list[str]]) -> None:
        """Add what a worker has collected."""
        self._selected.update(sent["selected"])
        self._deselected.update(sent["deselected"])
        self._caps.update(sent["caps"])

    def deselects(self, one: Measurement) -> bool:
        """Whether the command line left an item of the baseline out of the run."""
        return one.node_id not in self._selected and any(self._reasons(one))

    def _reasons(self, one: Measurement) -> Iterator[bool]:
        option, item = self._config.option, one.node_id
        yield item in self._deselected and self._names(*_REPORTED)
        yield self._is_elsewhere(item)
        if item in self._deselected:
            return
        # It was not collected: would it have been selected?
        if self._names("-k"):
            ids = [each.casefold() for each in ids_of(one)]

            def is_named(name: str, /, **_: object) -> bool:
                return any(name.casefold() in each for each in ids)

            yield not Expression.compile(option.keyword or "").evaluate(is_named)
        if self._names("-m"):  # as all other items of its function, whose marks it shares
            function = item.partition("[")[0]
            alike = {each for each in self._deselected if each.partition("[")[0] == function}
            yield bool(alike) and not self._collects(function)
        if self._names("--lf", "--last-failed"):  # leaves whole files out
            yield not self._collects(item.partition("::")[0])
        if self._names("--powercap", "--smclock", "-k") or "::" in " ".join(self._config.args):
            yield bool(self._caps) and one.cap not in self._caps
        if self._names("--gpuenergy-cache"):
            yield one.cache != option.gpuenergy_cache
        yield any(
            self._config.hook.pytest_gpuenergy_deselected(config=self._config, measurement=one)
        )

    def _collects(self, prefix: str) -> bool:
        return any(item.startswith(prefix) for item in self._selected)

    def _names(self, *options: str) -> bool:
        """Whether the command line, rather than an ini file, has one of ``options``."""
        for argument in self._arguments:
            short = _BUNDLED.match(argument)
            if argument.partition("=")[0] in options or (short and f"-{short[1]}" in options):
                return True
        return False

    def _is_elsewhere(self, item: str) -> bool:
        """Whether an item lies outside the arguments, or where ``--ignore`` does not look."""
        config, (file, *names) = self._config, item.split("::")
        path, here = config.rootpath / file, config.invocation_params.dir
        ignored = [here / name for name in config.getoption("ignore") or ()]
        if any(path.is_relative_to(folder) for folder in ignored) or any(
            fnmatch(str(path), str(here / name)) for name in config.getoption("ignore_glob") or ()
        ):
            return True
        stated = config.args_source is pytest.Config.ArgsSource.TESTPATHS
        if stated or config.getoption("pyargs") or not self._has_our_ids:
            return False
        return not any(_holds(argument, here, path, names) for argument in config.args)

    @cached_property
    def _has_our_ids(self) -> bool:
        """Whether ids in the baseline are relative to the root folder of this project."""
        collected = self._selected | self._deselected
        files = {item.partition("::")[0] for item in self._baseline}
        return (
            not collected
            or bool(collected & self._baseline)
            or any(is_there(self._config.rootpath / file) for file in files)
        )


def _holds(argument: str, here: Path, path: Path, names: Sequence[str]) -> bool:
    """Whether an argument of pytest's names a file, or what is in it."""
    place, *chosen = argument.split("::")
    if not path.is_relative_to(here / place):
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
