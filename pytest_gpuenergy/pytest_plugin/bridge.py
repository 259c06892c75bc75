"""The bridge to pytest-benchmark: passes our items on when one of its outputs is requested.

Time is passed on in seconds. Energy and EDP are separate records, in mJ and mJ·ms, because
pytest-benchmark compares only one figure per record.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping
from itertools import groupby
from typing import Any

import pytest

from pytest_gpuenergy.control import Setpoint
from pytest_gpuenergy.pytest_plugin._compat import (
    UNIT,
    BenchmarkRecord,
    add_records,
    benchmark_session,
    label_units,
    own_records,
    table_unit,
)
from pytest_gpuenergy.pytest_plugin.declared_options import POWERCAP_FIXTURE
from pytest_gpuenergy.record import Measurement, Metric
from pytest_gpuenergy.report import Models, Report
from pytest_gpuenergy.support import emulated_mark, plain

UNITS = {"mJ": "µJ", "mJ·ms": "µJ·ms"}
"""The units of records, each with its thousandth."""
_SMALL = 0.1
"""Figures below this are shown in thousandths, because the table has four decimals."""
_Group = tuple[str | None, list[dict[str, Any]]]


class BenchmarkBridge:
    """A plugin that is registered when pytest-benchmark is installed, and implements its hooks."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._report: Report | None = None
        self._undo: Callable[[], None] | None = None

    def add(self, report: Report | None) -> None:
        """Pass the measurements on before pytest-benchmark writes anything."""
        for record in own_records(self._config):
            if record.params is not None:  # as tests know it: the name, and the value as text
                record.params = {
                    "powercap" if name == POWERCAP_FIXTURE else name: (
                        value.label if isinstance(value, Setpoint) else value
                    )
                    for name, value in record.params.items()
                }
        session = benchmark_session(self._config)
        if session is not None and report is not None and self._undo is None:
            self._report = report
            self._undo = label_units([*UNITS, *UNITS.values()])
            add_records(session, list(records(report)))

    @pytest.hookimpl(tryfirst=True, optionalhook=True)
    def pytest_benchmark_scale_unit(self, unit: str, benchmarks: Any) -> tuple[str, float] | None:
        """Show our records in their own units, or in thousandths if a figure is small."""
        ours = table_unit(benchmarks)
        if ours is None:
            return None
        small = min(benchmark["min"] for benchmark in benchmarks) < _SMALL
        shown, scale = (UNITS[ours], 1e3) if small else (ours, 1.0)
        return (shown, scale) if unit == "seconds" else ("", 1 / scale)

    @pytest.hookimpl(wrapper=True, optionalhook=True)
    def pytest_benchmark_group_stats(
        self, benchmarks: list[dict[str, Any]], group_by: str
    ) -> Generator[None, list[_Group], list[_Group]]:
        """Allow grouping by a parameter that some tests lack, and keep units in separate tables."""
        for grouping in group_by.split(","):
            if name := grouping.partition("param:")[2]:
                for benchmark in benchmarks:
                    benchmark["params"] = {name: None, **(benchmark["params"] or {})}
        groups = yield
        apart: list[_Group] = []
        for title, members in groups:
            units = [
                (unit, [*same]) for unit, same in groupby(sorted(members, key=_unit), key=_unit)
            ]
            for unit, same in units:
                mixed = unit and len(units) > 1
                apart.append(
                    (f"{title or ''} {same[0]['group']}".strip() if mixed else title, same)
                )
        return apart

    @pytest.hookimpl(optionalhook=True)
    def pytest_benchmark_update_json(self, output_json: dict[str, Any]) -> None:
        """Add the identity of our run to the JSON output."""
        if self._report is not None:
            output_json["gpuenergy"] = plain(self._report.run)

    def pytest_unconfigure(self) -> None:
        """Undo the changes to pytest-benchmark."""
        if self._undo is not None:
            self._undo()


def records(report: Report) -> Iterator[BenchmarkRecord]:
    """Return three records for each measurement with figures: time, energy, EDP.

    pytest-benchmark compares records with the same full name, so those of emulated figures contain
    a mark.
    """
    label, models = emulated_mark(report.run.emulated), Models(report)
    for m in report.measurements:
        if not m.measured:
            continue
        info = {
            "workload": m.workload.name,
            "kernel": m.kernel.label,
            "cap": m.cap,
            "enforced_power_limit_w": m.enforced_power_limit_w,
            "cache": m.cache,
            "validity": list(m.validity),
            "gpu": models.of(m),
            "emulated": report.run.emulated,
        }
        params = {
            "workload": m.workload.name,
            "kernel": m.kernel.label,
            "cap": m.cap,
            "powercap": m.cap,
            **m.parameters,
        }
        ids = m.node_id.partition("[")[2].removesuffix("]") or None
        name, path = m.node_id.rpartition("::")[2] + label, m.node_id + label
        times_s = [time_ms / 1e3 for time_ms in _values(m, Metric.TIME)]
        yield BenchmarkRecord(name, path, f"time{label}", times_s, info, ids, params)
        for metric in (Metric.ENERGY, Metric.EDP):
            words = f"{metric.label} ({metric.unit})"
            yield BenchmarkRecord(
                f"{name} {words}",
                f"{path} {words}",
                f"{words}{label}",
                _values(m, metric),
                {**info, UNIT: metric.unit},
                ids,
                params,
            )


def _unit(benchmark: Mapping[str, Any]) -> str:
    return str(benchmark["extra_info"].get(UNIT, ""))


def _values(m: Measurement, metric: Metric) -> list[float]:
    """Return the metric of each trial on a settled card, or the figure itself without trials."""
    if m.trials:
        settled = 1.0
        if metric is not Metric.TIME and m.energy_mj is not None and m.raw_energy_mj:
            settled = m.energy_mj / m.raw_energy_mj
        return [settled * getattr(trial, metric.field) for trial in m.trials]
    figure = m.figure(metric)
    assert figure is not None
    return [figure]
