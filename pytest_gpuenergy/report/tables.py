"""Figures with units, tables per workload and cap, and the Pareto front, for people to read."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf

from pytest_gpuenergy.record import (
    METRICS,
    VERIFIED,
    Measurement,
    Metric,
    Order,
    clocks,
    limit_label,
    setpoint_order,
)
from pytest_gpuenergy.report.clock_saving import ClockSaving, clock_saving
from pytest_gpuenergy.report.figure_table import Column, Row, arranged, figure_table
from pytest_gpuenergy.report.roofline import Roofline, roofline
from pytest_gpuenergy.report.subjects import Subjects
from pytest_gpuenergy.report.text import figures, spread
from pytest_gpuenergy.report.ties import Tie, cap_words, kernel_words, near_front, tie
from pytest_gpuenergy.support import wrapped

ROWS_SHOWN = 30


def words(m: Measurement) -> str:
    """One line of figures: ``19.3 µs 7.62 mJ 0.147 mJ·ms``."""
    if m.time_ms is None or m.energy_mj is None or m.edp_mj_ms is None:
        return VERIFIED if m.verified_only else m.outcome
    return f"{time(m.time_ms)} {energy(m.energy_mj)} {figures(m.edp_mj_ms)} mJ·ms"


def time(time_ms: float) -> str:
    """A time with three significant digits, in µs or ms."""
    return f"{figures(time_ms)} ms" if time_ms >= 1 else f"{figures(time_ms * 1e3)} µs"


def energy(energy_mj: float) -> str:
    """An energy with three significant digits, in µJ, mJ or J."""
    if energy_mj >= 1e3:
        return f"{figures(energy_mj / 1e3)} J"
    return f"{figures(energy_mj)} mJ" if energy_mj >= 0.1 else f"{figures(energy_mj * 1e3)} µJ"


def figure(m: Measurement, metric: Metric) -> str:
    """The figure of a measurement with figures, with three significant digits and its unit."""
    value = m.figure(metric) or 0.0
    if metric is Metric.EDP:
        return f"{figures(value)} mJ·ms"
    return time(value) if metric is Metric.TIME else energy(value)


def group(measurements: Iterable[Measurement]) -> dict[tuple[str, str], list[Measurement]]:
    """Measurements by workload and setpoint, in the order of `ordered`."""
    listed = ordered(measurements)
    subjects = Subjects(listed)
    groups: dict[tuple[str, str], list[Measurement]] = {}
    for m in listed:
        groups.setdefault((subjects.name(m), m.cap), []).append(m)
    return groups


def ordered(measurements: Iterable[Measurement]) -> list[Measurement]:
    """By workload in order of appearance, then by setpoint (`setpoint_order`) and rank.

    A run's own order is not useful to a reader, because it interleaves caps and kernels.
    """
    listed = list(measurements)
    subjects = Subjects(listed)
    places: dict[str, int] = {}
    for m in listed:
        places.setdefault(subjects.name(m), len(places))

    def place(m: Measurement) -> tuple[int, Order, float]:
        rank = m.kernel.rank
        return (places[subjects.name(m)], setpoint_order(m), inf if rank is None else rank)

    return sorted(listed, key=place)


def pareto(rows: Sequence[Measurement]) -> list[Measurement]:
    """The rows on the Pareto front of time and energy, from fast to frugal.

    A row is on the front when no other is at least as good in both and better in one.
    """
    front: list[Measurement] = []
    least_mj = float("inf")
    for row in sorted(
        (row for row in rows if row.measured), key=lambda row: (row.time_ms, row.energy_mj)
    ):
        assert row.energy_mj is not None
        equal = bool(front) and (row.time_ms, row.energy_mj) == (front[-1].time_ms, least_mj)
        if row.energy_mj < least_mj or equal:
            front.append(row)
            least_mj = row.energy_mj
    return front


@dataclass(frozen=True)
class Best:
    """The best of one workload in one cache state, over all kernels and setpoints.

    Attributes:
        workload: its name, see `Subjects.of`.
        name: the same without the cache state.
        rows: all its measurements with figures.
        ties: by metric, the least figure with all that are within noise of it.
        front: the `pareto` front of the rows.
        near: all rows that may be on the front, within noise.
        savings: by metric, what the best locked clock saves over the best cap without one; empty
            unless both were measured.
    """

    workload: str
    name: str
    rows: list[Measurement]
    ties: Mapping[Metric, Tie]
    front: list[Measurement]
    near: list[Measurement]
    savings: Mapping[Metric, ClockSaving]

    @property
    def time(self) -> Measurement:
        """The measurement with the least time."""
        return self.ties[Metric.TIME].best

    @property
    def energy(self) -> Measurement:
        """The measurement with the least energy."""
        return self.ties[Metric.ENERGY].best

    @property
    def edp(self) -> Measurement:
        """The measurement with the least EDP."""
        return self.ties[Metric.EDP].best

    @property
    def caps(self) -> str:
        """The setpoints at which the EDP is least, within noise, in words."""
        return cap_words(self.ties[Metric.EDP], self.rows)

    @property
    def size_of_front(self) -> str:
        """``2``, or ``2 to 5`` when more may be on the front, within noise."""
        sizes = dict.fromkeys((len(self.front), len(self.near)))
        return " to ".join(map(str, sizes))

    def where(self, metric: Metric) -> str:
        """The kernels and setpoints that have the least figure within noise, in words."""
        found = self.ties[metric]
        return f"{kernel_words(found)} at {cap_words(found, self.rows)}"

    def cell(self, metric: Metric) -> str:
        """``76.4 µs ±0.3 % k01, k03 within noise at 700W``; ``!`` when the figure is flagged."""
        found = self.ties[metric].best
        least = f"{figure(found, metric)}{spread(found.estimate(metric))}"
        return f"{least} {self.where(metric)}{' !' if found.validity else ''}"


def best_of_each(
    measurements: Iterable[Measurement], subjects: Subjects | None = None
) -> list[Best]:
    """The best of each workload and cache state that has figures, in order of appearance.

    Args:
        measurements: on one GPU model.
        subjects: of all that is shown beside them; None: of these alone.
    """
    listed = list(measurements)
    subjects = Subjects(listed) if subjects is None else subjects
    groups: dict[str, list[Measurement]] = {}
    for measurement in listed:
        if measurement.measured:
            groups.setdefault(subjects.of(measurement), []).append(measurement)
    return [
        Best(
            name,
            subjects.name(rows[0]),
            rows,
            {metric: found for metric in METRICS if (found := tie(rows, metric)) is not None},
            pareto(rows),
            near_front(rows),
            {
                metric: saving
                for metric in METRICS
                if (saving := clock_saving(rows, metric)) is not None
            },
        )
        for name, rows in groups.items()
    ]


_COLUMNS = (
    Column("time", 9, 1),
    Column("energy", 9, 0),
    Column("EDP mJ·ms", 10, 2),
    Column("power W", 8, 4),
    Column("GFLOP/s", 9, 3),
    Column("% peak", 6, 6),
    Column("GB/s", 7, 7),
    Column("GFLOP/s/W", 9, 5),
)


def summary(
    measurements: Sequence[Measurement],
    *,
    emulated: bool,
    width: int | None = None,
    sort: str = "rank",
    gpu_name: str = "",
    calibrated: bool = False,
) -> Iterator[str]:
    """The terminal summary's tables, one per workload and setpoint.

    ``*`` marks the Pareto front of time and energy, ``~`` what may be on the front too, within
    noise. With more than `ROWS_SHOWN` measurements, only these are listed, and of several clocks
    only the setpoints that may be the best by a metric.

    Args:
        measurements: of one run.
        emulated: whether its GPU is, which each title then says.
        width: of the terminal; None where lines may have any length.
        sort: a key of `SORTS`.
        gpu_name: of the card whose peaks the figures are compared with.
        calibrated: whether the figures are, which each title then says.
    """
    label = title_label(emulated=emulated, calibrated=calibrated)
    groups = group(measurements)
    many = len(measurements) > ROWS_SHOWN
    listed = _among_best(measurements) if many and len(clocks(measurements)) > 1 else groups
    for (workload, cap), rows in groups.items():
        if (workload, cap) not in listed:
            continue
        near = near_front(rows)
        # By id, because measurements may be equal.
        marks = {**dict.fromkeys(map(id, near), "~"), **dict.fromkeys(map(id, pareto(rows)), "*")}
        shown = near if many else rows
        table = []
        for m in arranged(shown, sort):
            if m.time_ms is None or m.energy_mj is None or m.edp_mj_ms is None:
                table.append(Row(" ", m.kernel.label, note=m.why_no_figures))
                continue
            roof = roofline(m, gpu_name)
            cells = (
                *(time(m.time_ms), energy(m.energy_mj), figures(m.edp_mj_ms)),
                *(f"{m.power_w:.1f}", f"{m.gflops:.0f}"),
                *(_short(roof.percent_of_peak), _short(roof.gb_s), f"{m.gflops_per_w:.2f}"),
            )
            table.append(Row(marks.get(id(m), " "), m.kernel.label, cells, ", ".join(m.validity)))
        intensity = _intensity(roofline(shown[0], gpu_name)) if shown else ""
        yield from wrapped(f"{workload} at {cap}{label}{intensity}", width)
        yield from figure_table(_COLUMNS, table, width)
        left_out = len(rows) - len(shown)
        if left_out:
            words = f"  {left_out} kernels off the Pareto front are only in the report"
            yield from wrapped(words, width)
        unbound = [m for m in rows if m.cap_binding is False and m.power_limit_w is not None]
        if unbound:
            words = f"  the cap had no effect on {len(unbound)} of these {len(rows)} kernels"
            yield from wrapped(words, width)
    if hidden := len(groups) - len(listed):
        words = f"{hidden} tables of setpoints that are not among the best are only in the report"
        yield from wrapped(words, width)


def _among_best(measurements: Iterable[Measurement]) -> set[tuple[str, str]]:
    """The workloads and setpoints that may be the best by a metric."""
    return {
        (best.name, row.cap)
        for best in best_of_each(measurements)
        for tied in best.ties.values()
        for row in tied.rows
    }


def title_label(*, emulated: bool, calibrated: bool = False) -> str:
    """What a title says of the figures below it, such as `` (emulated, calibrated)``."""
    said = {"emulated": emulated, "calibrated": calibrated}
    words = ", ".join(word for word, holds in said.items() if holds)
    return f" ({words})" if words else ""


def _intensity(roof: Roofline) -> str:
    return "" if roof.flop_per_byte is None else f", {figures(roof.flop_per_byte)} FLOP/byte"


def _short(value: float | None) -> str:
    return "" if value is None else figures(value)


def idle_caps(measurements: Iterable[Measurement]) -> list[str]:
    """Labels of the power caps that held back no measured kernel, lowest cap first.

    A cap that holds kernels back at any clock, or without a lock, has an effect.
    """
    held: dict[tuple[float, str], bool] = {}
    for m in measurements:
        if m.power_limit_w is not None and m.cap_binding is not None:
            cap = (m.power_limit_w, limit_label(m))
            held[cap] = held.get(cap, False) or m.cap_binding
    return [label for (_, label), binding in sorted(held.items()) if not binding]


def markdown_table(
    header: Sequence[str], rows: Iterable[Sequence[str]], *, text: Container[int] = (0,)
) -> str:
    """A Markdown table; ``text`` has the indices of left-aligned columns, others are figures."""
    rules = ["---" if column in text else "---:" for column in range(len(header))]
    cells = [[" ".join(cell.replace("|", "/").split()) for cell in row] for row in rows]
    lines = [header, rules, *cells]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
