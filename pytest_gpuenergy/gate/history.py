"""One metric over the runs of a project: its values, its spread and its changes of level."""

from __future__ import annotations

import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean, median

from pytest_gpuenergy.gate.changepoints import ChangePoint, change_points
from pytest_gpuenergy.gate.views import label
from pytest_gpuenergy.record import Identity, Interval, Metric, RunInfo
from pytest_gpuenergy.report import Report, ordered


@dataclass(frozen=True)
class Point:
    """The metric in one run, in ms, mJ or mJ ms."""

    run: RunInfo
    value: float
    ci95: Interval | None
    flags: tuple[str, ...]


@dataclass(frozen=True)
class Change:
    """A change of level between two runs.

    Attributes:
        last: the last point at the old level.
        first: the first point at the new level.
        before: median of the old level.
        after: median of the new level.
        p: p-value of the permutation test.
    """

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
        identity: see `Measurement.identity`.
        metric: the metric of the points.
        points: at least one, in the order in which the runs started.
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

    @property
    def clean(self) -> tuple[Point, ...]:
        """The points without flags and above zero; only these are searched for changes."""
        return tuple(point for point in self.points if not point.flags and point.value > 0)

    @cached_property
    def changes(self) -> tuple[Change, ...]:
        """The changes of level that `change_points` finds in the logarithms."""
        return tuple(
            Change(
                earlier[-1],
                later[0],
                median(point.value for point in earlier),
                median(point.value for point in later),
                cut.p,
            )
            for cut, (earlier, later) in zip(
                self._cuts, itertools.pairwise(self.levels), strict=True
            )
        )

    @property
    def levels(self) -> list[tuple[Point, ...]]:
        """The clean points, split where their level changed."""
        cuts = [0, *(cut.index for cut in self._cuts), len(self.clean)]
        return [self.clean[begin:end] for begin, end in itertools.pairwise(cuts)]

    @property
    def spread(self) -> float | None:
        """Standard deviation between runs around their level, as a fraction.

        The square root of the pooled variance of the logarithms. None with fewer than two degrees
        of freedom (runs minus levels).
        """
        logs = [[math.log(point.value) for point in level] for level in self.levels]
        degrees = sum(map(len, logs)) - len(logs)
        if degrees < 2:
            return None
        squares = [(x - fmean(level)) ** 2 for level in logs for x in level]
        return math.sqrt(math.fsum(squares) / degrees)

    @cached_property
    def _cuts(self) -> list[ChangePoint]:
        return change_points([math.log(point.value) for point in self.clean])


def history(reports: Iterable[Report], metric: Metric, words: Sequence[str] = ()) -> list[Series]:
    """The series of all kernels whose label, such as ``case1-k01-300W``, contains all ``words``.

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
            name = label(measurement.identity).casefold()
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
