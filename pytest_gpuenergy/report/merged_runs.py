"""One report from several: the latest measurement of each item, or the mean of several runs.

Runs differ in what all kernels have in common, a board or a day, and kernel by kernel. The mean has
the average of the former; the latter becomes smaller with the number of runs.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import NamedTuple

from msgspec.structs import replace

from pytest_gpuenergy.record import METRICS, Interval, Measurement, Metric, Window, clipped
from pytest_gpuenergy.report.analysis.gpu_models import Models
from pytest_gpuenergy.report.store import UNKNOWN_GPU, Report, joined, latest_only
from pytest_gpuenergy.support import NORMAL, ReportInputError


def merge(reports: Sequence[Report]) -> Report:
    """Merge runs on the same GPU model, or what one run left on several hosts, into one report.

    Of an item measured more than once, the measurement of the latest run is kept; within a run, the
    latest measurement, with the flags it has got on any host.

    Raises:
        ReportInputError: the runs differ in GPU model, cache state, or in being emulated or
            legacy, or a board's own limit was changed in between, or their GPUs are unknown.
    """
    ordered = sorted(reports, key=lambda report: report.run.started)
    last = ordered[-1]
    for report in ordered:
        same_run = report.run.run_id == last.run.run_id  # which may have been on several models
        for name in ("emulated", "legacy") if same_run else ("gpu_name", "emulated", "legacy"):
            ours, theirs = getattr(last.run, name), getattr(report.run, name)
            if ours != theirs:
                raise ReportInputError(
                    f"Runs {last.run.run_id} and {report.run.run_id} cannot be merged: "
                    f"{name} is {ours!r} in one and {theirs!r} in the other."
                )
    if len(ordered) > 1 and last.run.gpu_name == UNKNOWN_GPU:
        raise ReportInputError(
            f"Runs {ordered[0].run.run_id} and {last.run.run_id} cannot be merged, because their "
            "GPUs are unknown: name the GPU with --gpu."
        )
    measurements: list[Measurement] = []
    for parts in by_run(ordered):
        of_run = [m for part in parts for m in part.measurements]
        if len(parts) > 1:  # by time; of one that two hosts have, the one with more flags is last
            of_run.sort(key=lambda m: (m.started, len(m.validity)))
        measurements += of_run
    if len({m.cache for m in measurements}) > 1:
        raise ReportInputError(
            f"Runs {ordered[0].run.run_id} and {last.run.run_id} cannot be merged: some kernels "
            "were measured with a hot cache and others with a cold one."
        )
    kept = latest_only(measurements)
    if len(ordered) > 1:
        _refuse_mixed_limits(kept)
    anchors = tuple(dict.fromkeys(check for report in ordered for check in report.anchors))
    tables = [report.run.cap_table_w for report in ordered if report.run.cap_table_w]
    run = replace(last.run, cap_table_w=tables[-1]) if tables else last.run
    stations = joined(station for report in ordered for station in report.stations)
    # The controller and the host of a worker have the same ones.
    board_checks = {
        (check.node_id, check.started, check.wall_s): check
        for report in ordered
        for check in report.board_checks
    }
    return Report(run, kept, anchors, stations, tuple(board_checks.values()))


def _refuse_mixed_limits(measurements: Iterable[Measurement]) -> None:
    """Refuse ``current`` as the name of two power limits of one board, which no table tells apart.

    Raises:
        ReportInputError: a board's own limit was changed between the runs.
    """
    limits: dict[str, set[float]] = defaultdict(set)
    for m in measurements:
        if m.measured and m.power_limit_w is None and m.enforced_power_limit_w and m.gpu_uuid:
            limits[m.gpu_uuid].add(m.enforced_power_limit_w)
    for several in limits.values():
        if len(several) > 1:
            low, high = min(several), max(several)
            raise ReportInputError(
                f"These runs cannot be merged: 'current' was {low:g} W in some of them and "
                f"{high:g} W in others on the same board. Report each alone, or measure with "
                f"--powercap {low:g}W,{high:g}W."
            )


def by_run(reports: Iterable[Report]) -> list[list[Report]]:
    """Return the reports of each run: what it has left on each of its hosts."""
    found: dict[str, list[Report]] = {}
    for report in reports:
        found.setdefault(report.run.run_id, []).append(report)
    return list(found.values())


_MIN_KERNELS = 5
"""The least number of kernels from which the level of a run is estimated."""

_ROUNDS = 30
"""Rounds of the fit of levels; each shrinks the error by about the share that runs lack."""

_FAR = 9.0
"""The squared ratio of scatter to intervals above which an item's interval follows its own scatter.

Its scatter is then no part of that of all items.
"""


class RunPlace(NamedTuple):
    """The place whose measurements share a level: one run on one board under one cap."""

    run: int
    board: str | None
    cap: str


@dataclass(frozen=True)
class PlacedMeasurement:
    """A measurement without doubt, and where it was made."""

    place: RunPlace
    measurement: Measurement


def run_levels(
    items: Iterable[Sequence[PlacedMeasurement]], metric: Metric
) -> Mapping[RunPlace, float]:
    """Return how far the logarithms of a metric in a run lie above the mean of all runs.

    Items and levels are fitted in turn, levels by medians, so that single kernels do not matter.
    """
    tables: dict[str, list[dict[RunPlace, float]]] = defaultdict(list)
    for several in items:
        if len(several) > 1:
            row = {
                part.place: math.log(measured_figure(part.measurement, metric)) for part in several
            }
            tables[several[0].place.cap].append(row)
    found: dict[RunPlace, float] = {}
    for rows in tables.values():
        places = sorted({place for row in rows for place in row}, key=str)
        usable = [p for p in places if sum(p in row for row in rows) >= _MIN_KERNELS]
        levels = dict.fromkeys(places, 0.0)
        for _ in range(_ROUNDS):
            middles = [fmean(value - levels[place] for place, value in row.items()) for row in rows]
            for place in usable:
                levels[place] = median(
                    row[place] - middle
                    for row, middle in zip(rows, middles, strict=True)
                    if place in row
                )
        average = fmean(levels.values())
        found |= {
            place: level - average if place in usable else 0.0 for place, level in levels.items()
        }
    return found


@dataclass(frozen=True)
class Mean:
    """A metric of one item: the mean of its logarithms without the levels of the runs.

    Attributes:
        cap: the cap under which the item was measured.
        log: the mean of the logarithms.
        half: half of its 95 % interval; None where a run has no interval.
        ratio: the squared ratio of the scatter of the runs to what their intervals explain; None
            if unknown.
        degrees: degrees of freedom of that ratio.
    """

    cap: str
    log: float
    half: float | None
    ratio: float | None
    degrees: int

    @classmethod
    def of(
        cls, several: Sequence[PlacedMeasurement], metric: Metric, levels: Mapping[RunPlace, float]
    ) -> Mean:
        """Return the mean over one item's measurements, less the levels of their runs."""
        logs = [
            math.log(measured_figure(part.measurement, metric)) - levels.get(part.place, 0.0)
            for part in several
        ]
        estimates = [part.measurement.estimate(metric) for part in several]
        halves = [estimate.relative_half_width for estimate in estimates if estimate is not None]
        cap, middle, degrees = several[0].place.cap, fmean(logs), len(logs) - 1
        if len(halves) < len(logs):
            return cls(cap, middle, None, None, degrees)
        half = math.hypot(*halves) / len(halves)
        if not degrees or not all(halves):
            return cls(cap, middle, half, None, degrees)
        squares = math.fsum(
            ((one - middle) * NORMAL / own) ** 2 for one, own in zip(logs, halves, strict=True)
        )
        return cls(cap, middle, half, squares / degrees, degrees)

    def interval(self, common: float) -> Interval | None:
        """Return the 95 % interval; ``common`` is the ratio of all items under this cap."""
        if self.half is None:
            return None
        own = self.ratio or 0.0
        half = clipped(self.half * math.sqrt(max(1.0, common, own if own > _FAR else 0.0)))
        return Interval(math.exp(self.log - half), math.exp(self.log + half))


def common_ratios(means: Iterable[Mean]) -> Mapping[str, float]:
    """Return the mean ratio of the items under each cap, by which the intervals are too narrow."""
    found: dict[str, list[tuple[float, int]]] = defaultdict(list)
    for mean in means:
        if mean.ratio is not None and mean.ratio <= _FAR:
            found[mean.cap].append((mean.ratio, mean.degrees))
    return {
        cap: math.fsum(ratio * degrees for ratio, degrees in several)
        / sum(degrees for _, degrees in several)
        for cap, several in found.items()
    }


def measured_figure(m: Measurement, metric: Metric) -> float:
    """Return a figure of a measured kernel."""
    found = m.figure(metric)
    assert found is not None  # all are present
    return found


_AVERAGED = (
    "raw_energy_mj",
    "temperature_c",
    "settled_temperature_c",
    "energy_change_per_k",
    "effective_sm_clock_mhz",
)


def mean_of_runs(reports: Sequence[Report]) -> Report:
    """Return one report with the geometric mean of each kernel's figures in several runs.

    The level of a run, which all its kernels have in common on a board and under a cap, is removed
    from each and its average added again, so that it does not matter which run lacks which kernels.
    Flagged measurements are left out where there are others. A kernel that failed in any run has
    failed. The boards of all runs count as one, named after all of them.

    The interval is that of a mean of independent figures. It is made wider where the figures
    scatter more than their intervals explain, by the ratio of the two: for all kernels under a cap,
    or for one kernel alone if it scatters far more (R. T. Birge, "The calculation of errors by the
    method of least squares", Physical Review 40, 1932).

    Args:
        reports: reports of one GPU model, in any order; parts of one run count as one run.

    Raises:
        ReportInputError: they cannot be merged, are of fewer than two runs or of several GPU
            models, or a kernel's text or workload differs between them.
    """
    latest = merge(reports)
    ordered = sorted(reports, key=lambda one: one.run.started)
    runs = [merge(parts) for parts in by_run(ordered)]
    if len(runs) < 2:
        raise ReportInputError("A mean needs at least two runs: name more of them.")
    if len(names := Models(latest).names) > 1:
        raise ReportInputError(
            f"These runs are on several GPU models ({', '.join(sorted(names))}), of which there is "
            "no mean: name runs on one."
        )
    found: dict[str, list[PlacedMeasurement]] = defaultdict(list)
    failed: dict[str, Measurement] = {}
    for number, run in enumerate(runs):
        for m in run.measurements:
            if m.measured and not m.validity:
                found[m.node_id].append(PlacedMeasurement(RunPlace(number, m.gpu_uuid, m.cap), m))
            elif m.outcome != "correct":
                failed[m.node_id] = m
    for several in found.values():
        _check_same(several)
    levels = {metric: run_levels(found.values(), metric) for metric in (Metric.TIME, Metric.ENERGY)}
    # Not fitted by itself, so that the means of a kernel's figures follow from each other, too.
    levels[Metric.EDP] = {
        place: level + levels[Metric.ENERGY][place] for place, level in levels[Metric.TIME].items()
    }
    means = {
        metric: {item: Mean.of(several, metric, levels[metric]) for item, several in found.items()}
        for metric in METRICS
    }
    ratios = {metric: common_ratios(several.values()) for metric, several in means.items()}
    boards = ", ".join(
        sorted({m.gpu_uuid or run.run.gpu_uuid for run in runs for m in run.measurements})
    )
    measurements = []
    for m in latest.measurements:
        kept = failed.get(m.node_id, m)
        if m.node_id not in failed and m.node_id in found:
            kept = _mean_measurement(
                [one.measurement for one in found[m.node_id]],
                {metric: several[m.node_id] for metric, several in means.items()},
                {metric: several.get(m.cap, 1.0) for metric, several in ratios.items()},
            )
        measurements.append(replace(kept, gpu_uuid=boards))
    ids = ", ".join(run.run.run_id for run in runs)
    info = replace(
        latest.run,
        run_id=f"mean of {len(runs)} runs until {latest.run.run_id}",
        gpu_uuid=boards,
        options={**latest.run.options, "mean_of": ids},
    )
    return Report(info, tuple(measurements))


def _check_same(several: Sequence[PlacedMeasurement]) -> None:
    one = several[0].measurement
    for other in (found.measurement for found in several[1:]):
        for name, then, now in (
            ("kernel", one.kernel.digest, other.kernel.digest),
            ("workload", one.workload, other.workload),
            ("source of energy", one.energy_source, other.energy_source),
            (
                "setpoint",
                *((m.enforced_power_limit_w, m.locked_sm_clock_max_mhz) for m in (one, other)),
            ),
        ):
            if then != now:
                raise ReportInputError(
                    f"{one.node_id} has another {name} in one of these runs than in the others, so "
                    "there is no mean: name runs of the same kernels."
                )


def _mean_measurement(
    parts: Sequence[Measurement], means: Mapping[Metric, Mean], ratios: Mapping[Metric, float]
) -> Measurement:
    last = parts[-1]
    figures: dict[str, float] = {one.field: math.exp(mean.log) for one, mean in means.items()}
    time_ms, energy_mj = (figures[metric.field] for metric in (Metric.TIME, Metric.ENERGY))
    # The power of a launch differs from energy by time where the host launches too slowly.
    shares = [(m.power_w or 0.0) * (m.time_ms or 0.0) / (m.energy_mj or 1.0) for m in parts]
    power_w = energy_mj / time_ms * fmean(shares)
    gflops = last.workload.flops / time_ms / 1e6
    errors = [m.settling_error for m in parts]
    known = [error for error in errors if error is not None]
    averages: dict[str, float | None] = {}
    for name in _AVERAGED:
        values = [getattr(m, name) for m in parts]
        averages[name] = None if None in values else fmean(values)
    phases_s: dict[str, float] = defaultdict(float)
    for m in parts:
        for phase, seconds in m.phases_s.items():
            phases_s[phase] += seconds
    return replace(
        last,
        **figures,
        **{f"{one.field}_ci95": mean.interval(ratios[one]) for one, mean in means.items()},
        **averages,
        power_w=power_w,
        gflops=gflops,
        gflops_per_w=gflops / power_w,
        trials=tuple(
            window for m in parts for window in _scaled_windows(m.trials, m, time_ms, energy_mj)
        ),
        warm_trials=tuple(
            window
            for m in parts
            for window in _scaled_windows(m.warm_trials, m, time_ms, energy_mj)
        ),
        settling_error=math.hypot(*known) / len(known) if len(known) == len(errors) else None,
        cap_binding=any(m.cap_binding for m in parts),
        wall_s=math.fsum(m.wall_s for m in parts),
        phases_s=dict(phases_s),
    )


def _scaled_windows(
    windows: Iterable[Window], m: Measurement, time_ms: float, energy_mj: float
) -> Iterator[Window]:
    """Yield the windows of one run, scaled as if its figures were the means."""
    longer = time_ms / measured_figure(m, Metric.TIME)
    more = energy_mj / measured_figure(m, Metric.ENERGY)
    for window in windows:
        yield replace(
            window,
            seconds=window.seconds * longer,
            busy_seconds=window.busy_seconds * longer,
            joules=window.joules * more,
        )
