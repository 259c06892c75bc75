"""Every use of pytest-benchmark's private API; tested against its newest release.

Its public hooks report and change records but cannot add any, which takes its session's list and
its own record class. Its table and histogram label every figure as a time in seconds, so the label
is corrected in the table, and our units are added to those the histogram knows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

UNIT = "unit"
"""Key in a record's ``extra_info`` for a unit other than seconds."""


@dataclass(frozen=True)
class Record:
    """The content of a pytest-benchmark record, with one value per trial."""

    name: str
    fullname: str
    group: str
    values: Sequence[float]
    extra_info: Mapping[str, Any]
    params: Mapping[str, Any] | None = None


@dataclass
class _Fixture:
    """The part of pytest-benchmark's fixture that its records read."""

    name: str
    fullname: str
    group: str
    params: dict[str, Any] | None
    extra_info: dict[str, Any]
    param: str | None = None
    cprofile_stats: None = None
    has_error: bool = False
    options: dict[str, Any] = field(default_factory=dict)


def benchmark_session(config: pytest.Config) -> Any:
    """pytest-benchmark's session, which it creates at the end of ``pytest_configure``.

    None without the plugin, and when none of its outputs was requested.
    """
    session = getattr(config, "_benchmarksession", None)
    if session is None:
        return None
    asked = (session.json, session.save, session.autosave, session.compare, session.histogram)
    return session if any(asked) else None


def add_records(session: Any, records: Sequence[Record]) -> None:
    """Add ``records`` to pytest-benchmark's own."""
    from pytest_benchmark import stats

    kind: Any = stats.Metadata
    for record in records:
        params = None if record.params is None else dict(record.params)
        fixture = _Fixture(
            record.name, record.fullname, record.group, params, dict(record.extra_info)
        )
        made = kind(fixture, iterations=1, options={})
        for value in record.values:
            made.update(value)
        session.benchmarks.append(made)


def label_units(units: Sequence[str]) -> Callable[[], None]:
    """Make pytest-benchmark's table and histogram show ``units``.

    Returns:
        A function that undoes this.
    """
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


def unit_of(benchmarks: Sequence[Any]) -> str | None:
    """The unit shared by all of ``benchmarks``, the records of one table; None for seconds."""
    units = {one["extra_info"].get(UNIT) for one in benchmarks}
    return units.pop() if len(units) == 1 else None
