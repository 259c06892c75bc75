"""One metric over the runs of a project: values, spread, changes of level, and how to show them."""

from __future__ import annotations

import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean, median
from typing import Any

import numpy as np
import numpy.typing as npt

from pytest_gpuenergy.record import METRICS, Identity, Interval, Metric, RunInfo
from pytest_gpuenergy.report import Report, markdown_lines, markdown_text, ordered
from pytest_gpuenergy.support import counted, dump, emulated_mark, wrapped

MIN_LEVEL_RUNS = 3
"""The least number of values on either side of a change."""

SIGNIFICANCE = 0.01
"""The largest p-value of a change."""

_PERMUTATIONS = 1999
_SEED = 20261121

_Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class ChangePoint:
    """The first value of a new level, and the p-value of the permutation test."""

    index: int
    p: float


def change_points(values: Sequence[float]) -> list[ChangePoint]:
    """Find changes of level by binary segmentation with a rank test.

    Each place of a segment with at least `MIN_LEVEL_RUNS` values on either side gets the
    standardized statistic of the rank sum test. The largest is compared with the largest of each of
    1999 permutations of the segment. If it is among their top 1 %, the segment is split there, and
    both parts are examined likewise. Ranks, unlike means, make the result independent of how far
    out an outlier is. Fewer than nine or ten values cannot be significant at this level.

    Sources: A. N. Pettitt, "A Non-Parametric Approach to the Change-Point Problem", Applied
    Statistics 28(2), 1979 (rank statistic); A. J. Scott and M. Knott, "A Cluster Analysis Method
    for Grouping Means in the Analysis of Variance", Biometrics 30(3), 1974 (binary segmentation).

    Args:
        values: the figures in chronological order, independent except for their level.

    Returns:
        The changes in chronological order; deterministic.
    """
    generator = np.random.default_rng(_SEED)
    found: list[ChangePoint] = []
    segments = [(0, len(values))]
    while segments:
        begin, end = segments.pop()
        if end - begin < 2 * MIN_LEVEL_RUNS:
            continue
        # Ranks from 1; equal values share their mean rank.
        _, place, counts = np.unique(values[begin:end], return_inverse=True, return_counts=True)
        ranks = (counts.cumsum() - (counts - 1) / 2)[place]
        statistics = _statistics(ranks[np.newaxis, :])[0]
        cut = int(statistics.argmax())
        shuffled = generator.permuted(np.tile(ranks, (_PERMUTATIONS, 1)), axis=1)
        # Values that differ only by rounding count as equal.
        as_large = _statistics(shuffled).max(axis=1) >= statistics[cut] * (1 - 1e-12)
        p = (1 + int(as_large.sum())) / (1 + _PERMUTATIONS)
        if p <= SIGNIFICANCE and statistics[cut] > 0:
            at = begin + MIN_LEVEL_RUNS + cut
            found.append(ChangePoint(at, p))
            segments += [(begin, at), (at, end)]
    return sorted(found, key=lambda change: change.index)


def _statistics(ranks: _Floats) -> _Floats:
    """Return the standardized |rank sum - expected| of each cut in each row of ranks."""
    count = ranks.shape[1]
    before = np.arange(MIN_LEVEL_RUNS, count - MIN_LEVEL_RUNS + 1)
    sums = ranks.cumsum(axis=1)[:, before - 1]
    deviation = np.sqrt(before * (count - before) * (count + 1) / 12)
    standardized: _Floats = np.abs(sums - before * (count + 1) / 2) / deviation
    return standardized


@dataclass(frozen=True)
class Point:
    """The metric in one run, in ms, mJ or mJ ms."""

    run: RunInfo
    value: float
    ci95: Interval | None
    flags: tuple[str, ...]


@dataclass(frozen=True)
class LevelChange:
    """A change of level: the last point of the old one, the first of the new one, both medians."""

    last: Point
    first: Point
    before: float
    after: float
    p: float

    @property
    def relative(self) -> float:
        """The change as a fraction: 0.05 is +5 %."""
        return self.after / self.before - 1


@dataclass(frozen=True)
class Series:
    """One kernel under one cap on one board over several runs.

    Attributes:
        identity: the identity of the measurements, see `Measurement.identity`.
        metric: the metric of the points.
        points: the points, at least one, in the order in which the runs started.
        item: the node id if a run has several items with that identity, otherwise empty.
    """

    identity: Identity
    metric: Metric
    points: tuple[Point, ...]
    item: str = ""

    @property
    def run(self) -> RunInfo:
        """The latest run."""
        return self.points[-1].run

    @cached_property
    def _levels(self) -> tuple[list[tuple[Point, ...]], list[ChangePoint]]:
        """The points without flags and above zero, split where their level changes, and where."""
        clean = tuple(point for point in self.points if not point.flags and point.value > 0)
        cuts = change_points([math.log(point.value) for point in clean])
        ends = [0, *(cut.index for cut in cuts), len(clean)]
        return [clean[begin:end] for begin, end in itertools.pairwise(ends)], cuts

    @property
    def changes(self) -> tuple[LevelChange, ...]:
        """The changes of level that `change_points` finds in the logarithms of clean points."""
        levels, cuts = self._levels
        return tuple(
            LevelChange(
                earlier[-1],
                later[0],
                median(point.value for point in earlier),
                median(point.value for point in later),
                cut.p,
            )
            for cut, (earlier, later) in zip(cuts, itertools.pairwise(levels), strict=True)
        )

    @property
    def spread(self) -> float | None:
        """Standard deviation between runs around their level, as a fraction.

        The square root of the pooled variance of the logarithms. None with fewer than two degrees
        of freedom (runs minus levels).
        """
        logs = [[math.log(point.value) for point in level] for level in self._levels[0]]
        degrees = sum(map(len, logs)) - len(logs)
        if degrees < 2:
            return None
        squares = [(x - fmean(level)) ** 2 for level in logs for x in level]
        return math.sqrt(math.fsum(squares) / degrees)


def history(reports: Iterable[Report], metric: Metric, words: Sequence[str] = ()) -> list[Series]:
    """Return the series of kernels whose label, such as ``case1-k01-300W``, contains all ``words``.

    Boards, real and emulated GPUs, and items of a run that share an identity have separate series.
    Legacy runs are ignored.
    """
    by_time = sorted(
        (report for report in reports if not report.run.legacy),
        key=lambda report: (report.run.started, report.run.run_id),
    )
    wanted = [word.casefold() for word in words]
    points: dict[tuple[object, Identity, str], list[Point]] = defaultdict(list)
    for report in by_time:
        board = (report.run.gpu_name, report.run.gpu_uuid, report.run.emulated)
        count = Counter(measurement.identity for measurement in report.measurements)
        for measurement in ordered(report.measurements):
            value = measurement.figure(metric)
            name = measurement.identity.label.casefold()
            if value is None or not all(word in name for word in wanted):
                continue
            interval = measurement.interval(metric)
            point = Point(report.run, value, interval, measurement.validity)
            item = measurement.node_id if count[measurement.identity] > 1 else ""
            points[(board, measurement.identity, item)].append(point)
    return [
        Series(identity, metric, tuple(found), item)
        for (_, identity, item), found in points.items()
    ]


SERIES_SHOWN = 8
"""With more series, the terminal shows no values."""


def history_text(found: Sequence[Series], width: int | None = None) -> Iterator[str]:
    """Yield each series with its values and changes, in lines of at most ``width`` characters."""
    lines = []
    for series in found:
        lines.append(series_heading(series))
        for point in series.points if len(found) <= SERIES_SHOWN else ():
            figure = f"{point.value:.4g} {series.metric.unit}"
            words = f"  {point.run.run_id}  {_revision(point.run):<12}  {figure}"
            if point.ci95 is not None and point.value > 0:
                words += f"  ±{_percent((point.ci95.high - point.ci95.low) / 2 / point.value)}"
            lines.append(f"{words}  {', '.join(point.flags)}".rstrip())
        lines += [f"  changed by {_describe_change(change)}" for change in series.changes]
    if len(found) > SERIES_SHOWN:
        lines.append(f"values are shown for at most {SERIES_SHOWN} kernels: select them with -k")
    for line in lines:
        yield from wrapped(line, width)


def series_heading(series: Series) -> str:
    """``case1-k01-300W EDP, NVIDIA H200 GPU-1, 12 runs, spread 0.2 %``."""
    run, count = series.run, len(series.points)
    words = (
        f"{_name(series)} {series.metric.label}, {run.gpu_name} "
        f"{run.gpu_uuid[:12]}{emulated_mark(run.emulated)}, "
        f"{counted(count, 'run')}"
    )
    return words if series.spread is None else f"{words}, spread {_percent(series.spread)}"


def history_markdown(found: Sequence[Series]) -> str:
    """Return a Markdown table with a row per series, followed by a list of changes."""
    titles = ("kernel", "metric", "GPU", "runs", "first", "latest", "spread", "changes")
    rows = (
        (
            _name(series),
            series.metric.label,
            f"{series.run.gpu_name}{emulated_mark(series.run.emulated)}",
            str(len(series.points)),
            *(f"{series.points[at].value:.4g} {series.metric.unit}" for at in (0, -1)),
            "" if series.spread is None else _percent(series.spread),
            str(len(series.changes)),
        )
        for series in found
    )
    lines = markdown_lines(titles, rows, figures=range(3, 8))
    changes = [
        markdown_text(f"- {_name(series)} changed by {_describe_change(change)}")
        for series in found
        for change in series.changes
    ]
    return "\n".join([*lines, *([""] if changes else []), *changes]) + "\n"


def history_json(found: Sequence[Series]) -> str:
    """Return the series as JSON, ``schema_version`` 1; changes and spreads are fractions."""
    document = []
    for series in found:
        run = series.run
        points = [
            {
                "run_id": point.run.run_id,
                "started": point.run.started,
                "git_revision": point.run.git_revision,
                "value": point.value,
                "ci95": point.ci95 and [point.ci95.low, point.ci95.high],
                "validity": list(point.flags),
            }
            for point in series.points
        ]
        changes = [
            {
                "run_id": change.first.run.run_id,
                "before": change.before,
                "after": change.after,
                "relative": change.relative,
                "p": change.p,
            }
            for change in series.changes
        ]
        document.append(
            {
                **series.identity._asdict(),
                "item": series.item,
                "metric": series.metric,
                "unit": series.metric.unit,
                "gpu_name": run.gpu_name,
                "gpu_uuid": run.gpu_uuid,
                "emulated": run.emulated,
                "spread": series.spread,
                "points": points,
                "changes": changes,
            }
        )
    return dump({"schema_version": 1, "series": document})


def _name(series: Series) -> str:
    words = series.identity.label
    return f"{words} ({series.item})" if series.item else words


def _describe_change(change: LevelChange) -> str:
    last, first = change.last.run, change.first.run
    words = (
        f"{100 * change.relative:+.1f} % from run {first.run_id} on, revision "
        f"{_revision(last)} to {_revision(first)}"
    )
    drivers = [run.software.get("driver", "unknown") for run in (last, first)]
    if drivers[0] != drivers[1]:
        words += f", driver {drivers[0]} to {drivers[1]}"
    return f"{words} (p = {change.p:.4f})"


def _revision(run: RunInfo) -> str:
    return run.short_revision or "unknown"


def _percent(fraction: float) -> str:
    return f"{100 * fraction:.2g} %"


def trend_values(reports: Iterable[Report]) -> list[dict[str, Any]]:
    """Return the figures of each kernel over runs on its board, and where their level changed.

    A kernel that was measured once has no trend.
    """
    by_time = list(reports)
    kernels: dict[tuple[object, ...], dict[str, Series]] = defaultdict(dict)
    for metric in METRICS:
        for series in history(by_time, metric):
            if len(series.points) > 1:
                key = (series.identity, series.item, series.run.gpu_uuid, series.run.emulated)
                kernels[key][metric] = series
    trends = []
    for by_metric in kernels.values():
        first = next(iter(by_metric.values()))
        metrics = {
            metric: {
                "values": [point.value for point in one.points],
                "low": [point.ci95.low if point.ci95 else None for point in one.points],
                "high": [point.ci95.high if point.ci95 else None for point in one.points],
                "changes": [
                    {"run": change.first.run.run_id, "relative": change.relative, "p": change.p}
                    for change in one.changes
                ],
            }
            for metric, one in by_metric.items()
        }
        trends.append(
            {
                **first.identity._asdict(),
                "gpu_uuid": first.run.gpu_uuid,
                "item": first.item,
                "runs": [[point.run.run_id, point.run.started] for point in first.points],
                "flags": [list(point.flags) for point in first.points],
                "metrics": metrics,
            }
        )
    return trends
