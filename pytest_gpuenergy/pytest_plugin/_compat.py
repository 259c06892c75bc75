"""Every use of the private API of pytest and pytest-benchmark; tested against the newest releases.

pytest looks for its ini file before it knows the options of plugins, so it takes the value after an
option, as in ``--option value``, for a path of tests. It reads each ini option as one type,
although TOML has several. It adds an item's properties to JUnit XML before the gate has judged all
items.

pytest-benchmark's public hooks report and change records but cannot add any. Adding them needs the
list of its session and its own class of records. Its table and histogram label every figure as a
time in seconds, so the table's label is corrected, and our units are added to the histogram's.
"""

from __future__ import annotations

import argparse
import copy
import os
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
from _pytest.config.findpaths import determine_setup
from _pytest.junitxml import bin_xml_escape, xml_key
from _pytest.mark import KeywordMatcher, MarkMatcher
from _pytest.mark.expression import Expression
from _pytest.pathlib import safe_exists

MENDED = (
    *("_rootpath", "_inipath", "_inicache", "_ignored_config_files", "known_args_namespace"),
    *("_validate_args", "_checkversion", "_consider_importhook", "_validate_plugins"),
    *("_configure_python_path", "_unconfigure_python_path"),
)
"""Attributes of pytest's config that `keep_rootdir` needs to mend it."""
_BEFORE_PLUGINS = ("-o", "-c", "--override-ini", "--config-file", "--rootdir")
"""Options, apart from ``-p``, that act before plugins are loaded."""

UNIT = "unit"
"""Key in a record's ``extra_info`` for a unit other than seconds."""


class BenchmarkRecord(NamedTuple):
    """The content of a pytest-benchmark record, with one value per trial."""

    name: str
    fullname: str
    group: str
    values: Sequence[float]
    extra_info: Mapping[str, Any]
    param: str | None = None
    params: Mapping[str, Any] | None = None


def ini_value(config: pytest.Config, key: str) -> Any:
    """Return an ini option's value, of the type that the file or ``-o`` gives it, or None."""
    found = getattr(config, _name_of_ini(config)).get(key)
    return getattr(found, "value", found)


def _name_of_ini(config: pytest.Config) -> str:
    return "_inicfg" if hasattr(config, "_inicfg") else "inicfg"  # the latter in pytest 9.0


def command_line(config: pytest.Config) -> argparse.Namespace:
    """Return the options of the command line and its ``@file`` files, without ``addopts``."""
    given = [str(argument) for argument in config.invocation_params.args]
    found: argparse.Namespace = config._parser.parse_known_args(given, argparse.Namespace())
    return found


def selects(expression: str, matches: Callable[[str], bool]) -> bool:
    """Return whether an expression of ``-k`` selects a thing whose names ``matches`` accepts."""

    def is_named(name: str, /, **_: object) -> bool:
        return matches(name)

    return Expression.compile(expression).evaluate(is_named)


def unmatched(config: pytest.Config, item: pytest.Item) -> list[str]:
    """Return which of ``keyword`` and ``markexpr``, that is ``-k`` and ``-m``, deselect an item."""
    matchers: dict[str, Any] = {
        "keyword": lambda: KeywordMatcher.from_item(item),
        "markexpr": lambda: MarkMatcher.from_markers(item.iter_markers()),
    }
    return [
        name
        for name, matcher in matchers.items()
        if (expression := str(config.getoption(name) or "").strip())
        and not Expression.compile(expression).evaluate(matcher())
    ]


def options_of_group(parser: pytest.Parser, name: str) -> set[str]:
    """Return the options of a group that take a value, as they are written."""
    return {
        written
        for group in parser._groups
        if group.name == name
        for option in group.options
        if option.attrs().get("nargs") != 0
        for written in option.names()
    }


def keep_rootdir(
    config: pytest.Config,
    parser: pytest.Parser,
    args: list[str],
    options: set[str],
    *,
    mend: bool,
) -> None:
    """Have pytest use the ini file and rootdir that it finds without the values of ``options``.

    Call it with ``mend`` before the initial conftest files are loaded, and once more without it
    for options that those files have added: then a run with the wrong rootdir is refused.

    Args:
        config: pytest's configuration, which is changed.
        parser: pytest's parser.
        args: the arguments that pytest will parse, which are changed.
        options: the options as they are written.
        mend: whether the configuration can still be changed.

    Raises:
        pytest.UsageError: pytest took a value for a path, and the configuration cannot be changed.
    """
    addopts = config.getini("addopts")
    given = args[len(addopts) :] if args[: len(addopts)] == addopts else args
    every: list[str] = parser.optparser._read_args_from_files(given)  # also those in @files
    values = [
        (name, value)
        for name, value in pairwise(every)
        if name in options and safe_exists(Path(value.partition("::")[0]))
    ]
    if not values:
        return
    parsed = parser.parse_known_args(given, namespace=copy.copy(config.option))

    def setup(paths: Sequence[str]) -> Any:
        return determine_setup(
            inifile=parsed.inifilename,
            override_ini=parsed.override_ini,
            args=paths,
            rootdir_cmd_arg=parsed.rootdir or None,
            invocation_dir=config.invocation_params.dir,
        )

    right = setup(parsed.file_or_dir)
    used = config.rootpath, config.inipath
    misled = setup([*parsed.file_or_dir, *(value for _, value in values)])[:2] != right[:2]
    if not misled or right[:2] == used:
        return
    mendable = mend and not addopts and all(hasattr(config, name) for name in MENDED)
    if not (mendable and _mended(config, parser, args, right)):
        raise pytest.UsageError(
            f"pytest took {' and '.join(value for _, value in values)} for a path of tests, and so "
            f"used {used[1] or 'no ini file'} instead of {right[1] or 'none'}: write "
            f"{' '.join(f'{name}={value}' for name, value in values)}"
        )


def _mended(config: Any, parser: pytest.Parser, args: list[str], setup: Any) -> bool:
    """Repeat, with the right ini file, what pytest does between reading it and loading plugins.

    Returns False if its ``addopts`` load or block plugins, or change options of the ini file,
    because plugins were already loaded with others.
    """
    config._unconfigure_python_path()
    config._rootpath, config._inipath, ini, config._ignored_config_files = setup
    setattr(config, _name_of_ini(config), ini)
    config._inicache.clear()
    addopts = config.getini("addopts")
    wanted = parser.parse_known_args(addopts, namespace=copy.copy(config.option)).plugins
    for name in map(str.strip, wanted):
        if config.pluginmanager.has_plugin(name.removeprefix("no:")) == name.startswith("no:"):
            return False
    if any(option.startswith(_BEFORE_PLUGINS) for option in addopts):
        return False
    parser.extra_info.update(rootdir=str(config.rootpath), inifile=str(config.inipath))
    if not config.option.plugins:  # a worker of pytest-xdist gets the options that they led to
        args[:0] = config._validate_args(addopts, "via addopts config")
    config.known_args_namespace = parser.parse_known_args(args, namespace=copy.copy(config.option))
    config.pluginmanager.consider_preparse(args, exclude_only=True)  # plugins of later on
    config._checkversion()
    config._consider_importhook()
    config._configure_python_path()
    config._validate_plugins()
    if config.known_args_namespace.confcutdir is None:
        folder = config.inipath.parent if config.inipath else config.rootpath
        config.known_args_namespace.confcutdir = os.fspath(folder)
    return True


def replace_in_failure(report: pytest.TestReport, before: str, after: str) -> None:
    """Replace a text in what the terminal will show of a failure."""
    shown: Any = report.longrepr
    if isinstance(shown, str):
        report.longrepr = shown.replace(before, after)
        return
    for traceback, place, _ in getattr(shown, "chain", ()):
        if place is not None:
            place.message = place.message.replace(before, after)
        for entry in traceback.reprentries:
            entry.lines = [line.replace(before, after) for line in entry.lines]


class JunitCase:
    """An item's element in JUnit XML, which pytest builds with the item's last report.

    Figures that are known only at the end of the run can be put into it until pytest writes it.
    """

    def __init__(self, reporter: Any) -> None:
        self._reporter = reporter

    @classmethod
    def of(cls, config: pytest.Config, report: pytest.TestReport) -> JunitCase | None:
        """Return the element to which ``report`` will be added; None without ``--junitxml``."""
        xml = config.stash.get(xml_key, None)
        return None if xml is None else cls(xml.node_reporter(report))

    @staticmethod
    def add_failure(config: pytest.Config, name: str, problem: str) -> None:
        """Add what failed the run as a whole, as an element of its own."""
        xml = config.stash.get(xml_key, None)
        if xml is not None:
            reporter = xml.node_reporter(name)
            reporter.attrs.update(classname=name, name="run")
            reporter._add_simple("failure", problem, problem)

    def set_property(self, name: str, value: str) -> None:
        """Change the value of the element's property ``name``, if it has one."""
        for element in self._reporter.to_xml().iter("property"):
            if element.get("name") == name:
                element.set("value", bin_xml_escape(value))

    def drop_properties(self) -> None:
        """Remove the properties of a run of the item that is not its last."""
        for element in self._reporter.to_xml().findall("properties"):
            element.clear()

    def replace(self, before: str, after: str) -> None:
        """Replace a text in the description of a failure."""
        old, new = bin_xml_escape(before), bin_xml_escape(after)
        for element in self._reporter.to_xml().iter("failure"):
            element.text = (element.text or "").replace(old, new)
            element.set("message", element.get("message", "").replace(old, new))


def benchmark_session(config: pytest.Config) -> Any:
    """Return pytest-benchmark's session, which exists from the end of ``pytest_configure``.

    It is None without the plugin, and when none of its outputs was requested.
    """
    session = getattr(config, "_benchmarksession", None)
    if session is None:
        return None
    asked = (session.json, session.save, session.autosave, session.compare, session.histogram)
    return session if any(asked) else None


def own_records(config: pytest.Config) -> Sequence[Any]:
    """Return the records of pytest-benchmark's own tests."""
    found: Sequence[Any] = getattr(getattr(config, "_benchmarksession", None), "benchmarks", ())
    return found


def add_records(session: Any, records: Sequence[BenchmarkRecord]) -> None:
    """Add ``records`` to pytest-benchmark's own."""
    from pytest_benchmark import stats

    kind: Any = stats.Metadata
    for record in records:
        params = None if record.params is None else dict(record.params)
        info = dict(record.extra_info)
        fixture = SimpleNamespace(  # what a record reads of pytest-benchmark's own fixture
            name=record.name,
            fullname=record.fullname,
            group=record.group,
            params=params,
            extra_info=info,
            param=record.param,
            cprofile_stats=None,
            has_error=False,
            options={},
        )
        made = kind(fixture, iterations=1, options={})
        for value in record.values:
            made.update(value)
        session.benchmarks.append(made)


def label_units(units: Sequence[str]) -> Callable[[], None]:
    """Make pytest-benchmark's table and histogram show ``units``; return what undoes this."""
    from pytest_benchmark import table, utils

    # Any, because the declared types do not allow patching.
    results: Any = table.TableResults
    known: Any = utils.TIME_UNITS
    original = results.compute_scale

    def compute_scale(self: Any, benchmarks: Any, best: Any, worst: Any) -> Any:
        unit, scale, ops_scale, labels = original(self, benchmarks, best, worst)
        if unit in units:
            labels = {**labels, "name": f"Name (in {unit})", "ops": f"1/({unit})"}
        return unit, scale, ops_scale, labels

    def undo() -> None:
        results.compute_scale = original
        for unit in units:
            known.pop(unit, None)

    results.compute_scale = compute_scale
    known.update({unit: unit for unit in units})
    return undo


def table_unit(benchmarks: Sequence[Any]) -> str | None:
    """Return the unit of ``benchmarks``, the records of one table; None for seconds."""
    units = {benchmark["extra_info"].get(UNIT) for benchmark in benchmarks}
    return units.pop() if len(units) == 1 else None
