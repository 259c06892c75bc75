"""The summary in the terminal: tables per workload and setpoint, the best, boards and anchors."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf, log1p

from pytest_gpuenergy.record import (
    DRIFT,
    METRICS,
    PHASES,
    AnchorCheck,
    BoardGain,
    Measurement,
    Metric,
    clocks,
    distance,
    limit_label,
)
from pytest_gpuenergy.report.analysis.best_kernels import (
    Best,
    ClockSaving,
    best_of_each,
    near_front,
    pareto,
)
from pytest_gpuenergy.report.analysis.board_calibration import UNCALIBRATED, Boards, board_spread
from pytest_gpuenergy.report.analysis.rooflines import Roofline, roofline
from pytest_gpuenergy.report.analysis.subjects import group
from pytest_gpuenergy.report.store import Report
from pytest_gpuenergy.report.views.figures import (
    FIGURE_TABLE,
    figure_words,
    figures,
    percent_range,
    signed_percent,
    spread,
    title_label,
)
from pytest_gpuenergy.support import (
    InputError,
    counted,
    emulated_mark,
    fitted,
    shortened,
    span,
    wrapped,
)

_USUAL_LABEL, _SHORT_LABEL, _MIN_LABEL = 10, 16, 4
"""Widths of kernels' labels: where there is room, where columns would leave, and at the least."""
_NOTE_INDENT = 4


@dataclass(frozen=True)
class Column:
    """A column of figures, with its width where there is room; the highest ``leaves`` first."""

    title: str
    width: int
    leaves: int


@dataclass(frozen=True)
class KernelRow:
    """A kernel in a table, with one character before its label and a note, such as flags, after it.

    ``cells`` has a figure for each column, or none if the kernel has no figures.
    """

    mark: str
    label: str
    cells: tuple[str, ...] = ()
    note: str = ""


def figure_table(
    columns: Sequence[Column], rows: Sequence[KernelRow], width: int | None
) -> Iterator[str]:
    """Yield lines of at most ``width`` characters: a heading and the rows.

    Where there is too little room, columns are as narrow as their cells, then those that leave
    first are left out, and at last labels lose their middles. A line names what is left out.
    """

    def line_width(label: int) -> int:
        return 2 + label + sum(1 + space for space in shown.values())

    label = max(_USUAL_LABEL, *(len(row.label) for row in rows))
    shown = {column.title: column.width for column in columns}
    if width is not None and line_width(label) > width:
        cells = [row.cells for row in rows if row.cells]
        shown = {
            column.title: max(len(column.title), 0, *(len(row[place]) for row in cells))
            for place, column in enumerate(columns)
        }
        longest = max(len("kernel"), *(len(row.label) for row in rows))
        for column in sorted(columns, key=lambda column: -column.leaves)[:-1]:
            if line_width(min(longest, _SHORT_LABEL)) > width:
                del shown[column.title]
        label = max(_MIN_LABEL, min(longest, width - line_width(0)))
    titles = [title.rjust(space) for title, space in shown.items()]
    yield f"  {'kernel':<{label}} {' '.join(titles)}"
    for row in rows:
        line = f"{row.mark} {shortened(row.label, label):<{label}}"
        for column, cell in zip(columns, row.cells, strict=False):
            if column.title in shown:
                line += f" {cell:>{shown[column.title]}}"
        whole = f"{line}{'  ' if row.cells else ' '}{row.note}" if row.note else line
        if not row.note or width is None or len(whole) <= width:
            yield whole
        else:
            yield line.rstrip()
            yield from wrapped(f"{' ' * _NOTE_INDENT}{row.note}", width, 0)
    if absent := [column.title for column in columns if column.title not in shown]:
        yield from wrapped(f"  no room for {', '.join(absent)}", width)


def _sort_key(name: str) -> Callable[[Measurement], float]:
    figure, no_roof = FIGURE_TABLE[name], Roofline()

    def key(m: Measurement) -> float:
        value = figure.value(m, no_roof)
        return inf if value is None else value if figure.better == "less" else -value

    return key


SORTS: Mapping[str, Callable[[Measurement], float | str]] = {
    "rank": lambda m: inf if m.kernel.rank is None else m.kernel.rank,
    "name": lambda m: m.kernel.label,
    "time": _sort_key("time_us"),
    "energy": _sort_key("energy_mj"),
    "edp": _sort_key("edp_mj_ms"),
    "power": _sort_key("power_w"),
    "gflops": _sort_key("gflops"),
    "gflops_per_w": _sort_key("gflops_per_w"),
}
"""The keys for sorting the rows of a table, the best first; kernels without figures come last."""


def sort_rows(rows: Iterable[Measurement], by: str) -> list[Measurement]:
    """Return the rows sorted by a key of `SORTS`; those that are equal keep their order."""
    return sorted(rows, key=SORTS[by])


def check_sort(text: str, option: str) -> str:
    """Return the key of `SORTS` that a user means.

    Raises:
        InputError: there is none of that name.
    """
    name = text.strip().lower().replace("-", "_").replace("/", "_per_")
    name = {"gflop_per_s": "gflops", "gflops_per_s": "gflops"}.get(name, name)
    if name not in SORTS:
        raise InputError(f"{option} {text[:40]!r} is not understood: give {', '.join(SORTS)}.")
    return name


_SHOWN: Mapping[str, Column] = {
    "time_us": Column("time", 9, 1),
    "energy_mj": Column("energy", 9, 0),
    "edp_mj_ms": Column("EDP mJ·ms", 10, 2),
    "power_w": Column("power W", 8, 4),
    "gflops": Column("GFLOP/s", 9, 3),
    "percent_of_peak": Column("% peak", 6, 6),
    "gb_s": Column("GB/s", 7, 7),
    "gflops_per_w": Column("GFLOP/s/W", 9, 5),
}
"""The columns of the terminal's tables, by the name of their figure in `FIGURE_TABLE`."""

ROWS_SHOWN = 30
"""The most measurements that are all listed; of more, only those near the Pareto front are."""


def summary(
    measurements: Sequence[Measurement],
    *,
    emulated: bool,
    width: int | None = None,
    sort: str = "rank",
    gpu_name: str = "",
    calibrated: bool = False,
) -> Iterator[str]:
    """Yield the terminal summary's tables, one per workload and setpoint.

    ``*`` marks the Pareto front of time and energy, ``~`` what may be on the front too, within
    noise. With more than `ROWS_SHOWN` measurements, only these are listed, and of several clocks
    only the setpoints that may be the best by a metric.

    Args:
        measurements: the measurements of one run.
        emulated: whether the GPU is emulated, which each title then says.
        width: the width of the terminal; None where lines may have any length.
        sort: a key of `SORTS`.
        gpu_name: the name of the card whose peaks the figures are compared with.
        calibrated: whether the figures are calibrated, which each title then says.
    """
    label = title_label(emulated=emulated, calibrated=calibrated)
    groups = group(measurements)
    many = len(measurements) > ROWS_SHOWN
    listed = set(groups)
    if many and len(clocks(measurements)) > 1:
        listed = {
            (best.name, row.cap)
            for best in best_of_each(measurements)
            for tied in best.ties.values()
            for row in tied.rows
        }
    for (workload, cap), rows in groups.items():
        if (workload, cap) not in listed:
            continue
        near = near_front(rows)
        # By id, because measurements may be equal.
        marks = {**dict.fromkeys(map(id, near), "~"), **dict.fromkeys(map(id, pareto(rows)), "*")}
        shown = near if many else rows
        table = []
        for m in sort_rows(shown, sort):
            if not m.measured:
                table.append(KernelRow(" ", m.kernel.label, note=m.why_no_figures))
                continue
            roof = roofline(m, gpu_name)
            values = {name: FIGURE_TABLE[name].value(m, roof) for name in _SHOWN}
            cells = tuple(
                "" if value is None else FIGURE_TABLE[name].words(value)
                for name, value in values.items()
            )
            mark = marks.get(id(m), " ")
            table.append(KernelRow(mark, m.kernel.label, cells, ", ".join(m.validity)))
        intensity = roofline(shown[0], gpu_name).flop_per_byte if shown else None
        per_byte = "" if intensity is None else f", {figures(intensity)} FLOP/byte"
        yield from wrapped(f"{workload} at {cap}{label}{per_byte}", width)
        yield from figure_table([*_SHOWN.values()], table, width)
        if left_out := len(rows) - len(shown):
            words = f"  {left_out} kernels off the Pareto front are only in the report"
            yield from wrapped(words, width)
        unbound = [m for m in rows if m.cap_binding is False and m.power_limit_w is not None]
        if unbound:
            words = f"  the cap had no effect on {len(unbound)} of these {len(rows)} kernels"
            yield from wrapped(words, width)
    if hidden := len(groups) - len(listed):
        words = f"{hidden} tables of setpoints that are not among the best are only in the report"
        yield from wrapped(words, width)


CLOCK_OVER_CAP = "best locked clock over best cap without one"


def best_lines(
    measurements: Iterable[Measurement],
    *,
    emulated: bool,
    width: int | None = None,
    calibrated: bool = False,
) -> Iterator[str]:
    """Yield a table of each workload's best figures, with kernels and caps within noise.

    Where clocks were locked, another one has what they save.
    """
    best = best_of_each(measurements)
    if not best:
        return
    label = title_label(emulated=emulated, calibrated=calibrated)
    savings = savings_rows(best)
    locked = savings or any(m.sm_clock_mhz is not None for entry in best for m in entry.rows)
    setpoint = "best setpoint" if locked else "best cap"
    rows: list[tuple[str, ...]] = [
        ("workload", "least time", "least energy", "least EDP", setpoint, "Pareto")
    ]
    for entry in best:
        cells = []
        for metric in METRICS:
            flagged = " !" if entry.ties[metric].best.validity else ""
            cells.append(f"{least_words(entry, metric)} {entry.where(metric)}{flagged}")
        rows.append(
            (
                entry.workload,
                *cells,
                entry.caps,
                f"{entry.size_of_front} of {len(entry.rows)}",
            )
        )
    room = None if width is None else width - 2
    yield from wrapped(f"best of each workload{label}", width)
    yield from (f"  {line}" for line in fitted(rows, room))
    if savings:
        yield from wrapped(f"{CLOCK_OVER_CAP}{label}", width)
        rows = [("workload", *(metric.label for metric in METRICS)), *savings]
        yield from (f"  {line}" for line in fitted(rows, room))
    if any(tied.best.validity for entry in best for tied in entry.ties.values()):
        yield "  ! flagged (see validity)"


def least_words(best: Best, metric: Metric) -> str:
    """``76.4 µs ±0.3 %``: the least figure of a workload."""
    found = best.ties[metric].best
    return f"{figure_words(found, metric)}{spread(found.estimate(metric))}"


def savings_rows(best: Iterable[Best]) -> list[tuple[str, ...]]:
    """Return what the best locked clocks save, by metric, of each workload that has savings."""
    return [
        (
            entry.workload,
            *(saving_words(entry.savings.get(metric)) for metric in METRICS),
        )
        for entry in best
        if entry.savings
    ]


def saving_words(saving: ClockSaving | None) -> str:
    """``-12.3 % (-13.1 % to -11.4 %): k01 at 450W-1500MHz, not k02 at 575W``; ``!``: flagged."""
    if saving is None:
        return ""
    words = signed_percent(log1p(saving.change))
    if saving.low is not None and saving.high is not None:
        ends = (signed_percent(log1p(end)) for end in (saving.low, saving.high))
        words += f" ({' to '.join(ends)})"
    words += f": {saving.clock_kernel} at {saving.clock_cap}, "
    words += f"not {saving.cap_kernel} at {saving.cap_cap}"
    return f"{words}{' !' if saving.flagged else ''}"


def idle_caps(measurements: Iterable[Measurement]) -> list[str]:
    """Return labels of the power caps that held back no measured kernel, lowest cap first.

    A cap that holds kernels back at any clock, or without a lock, has an effect.
    """
    held: dict[tuple[float, str], bool] = {}
    for m in measurements:
        if m.power_limit_w is not None and m.cap_binding is not None:
            cap = (m.power_limit_w, limit_label(m))
            held[cap] = held.get(cap, False) or m.cap_binding
    return [label for (_, label), binding in sorted(held.items()) if not binding]


def anchor_lines(
    measurements: Sequence[Measurement], checks: Sequence[AnchorCheck], *, emulated: bool
) -> Iterator[str]:
    """Yield the summary's lines about the anchor checks of a run; none without checks."""
    if not checks:
        return
    drifted = [check for check in checks if check.verdict == "drift"]
    unsure = [check for check in checks if check.verdict == "unsure"]
    times = "once" if len(checks) == 1 else f"{len(checks)} times"
    widest = max(
        ((ratio, metric, check) for check in checks for metric, ratio in check.ratios.items()),
        key=lambda found: distance(found[0]),
        default=None,
    )
    most = ""
    if widest is not None:
        ratio, metric, check = widest
        where = f"{check.kernel} of {check.workload} at {check.cap}"
        most = f", largest change: {metric.label} {percent_range(ratio, ' %')} ({where})"
    label = emulated_mark(emulated)
    yield f"anchor kernels{label} were measured again {times}{most}"
    if drifted:
        flagged = sum(DRIFT in m.validity for m in measurements)
        yield f"drift in {len(drifted)} of these checks: {flagged} measurements are flagged {DRIFT}"
    if unsure:
        why = unsure[0].error or ", ".join(unsure[0].validity)
        yield f"{len(unsure)} of these checks could not be judged: {why}"


SLOWEST = 5


def duration_lines(measurements: Sequence[Measurement]) -> Iterator[str]:
    """Yield each phase's share of the items' wall time, then the slowest; nothing without items.

    Kernels are compiled ahead in the background: ``compile`` is the time an item waited for it.
    """
    total_s = sum(m.wall_s for m in measurements)
    if total_s <= 0:
        return
    count = len(measurements)
    yield f"wall time of {counted(count, 'item')}: {span(total_s)}"
    for name in PHASES:
        spent_s = sum(m.phases_s.get(name, 0.0) for m in measurements)
        yield f"  {name:<8} {span(spent_s):>9} {spent_s / total_s:6.1%}"
    rest_s = total_s - sum(sum(m.phases_s.values()) for m in measurements)
    yield f"  {'rest':<8} {span(rest_s):>9} {rest_s / total_s:6.1%}"
    yield "slowest items"
    for m in sorted(measurements, key=lambda m: m.wall_s, reverse=True)[:SLOWEST]:
        parts = ", ".join(f"{name} {span(seconds)}" for name, seconds in m.phases_s.items())
        yield f"  {span(m.wall_s):>9} {m.node_id}{f' ({parts})' if parts else ''}"


_NAMED = 4
"""The most boards that the summary names; of more, those that take most and least energy."""

_UUID_SHOWN = 12
"""The number of characters of a UUID that a view shows."""


def board_lines(report: Report) -> Iterator[str]:
    """Yield the summary's sentences about the boards of a run; none without several of a model."""
    boards = Boards(report)
    label = emulated_mark(report.run.emulated)
    models: dict[str, dict[str, list[BoardGain]]] = defaultdict(lambda: defaultdict(list))
    for gain in boards.compared:
        models[gain.gpu_name][gain.setpoint].append(gain)
    for model, caps in models.items():
        cap, widest = max(caps.items(), key=lambda entry: board_spread(entry[1], Metric.ENERGY))
        others = "" if len(caps) == 1 else f", the widest of {len(caps)} caps"
        energy, time = (
            f"{100 * board_spread(widest, metric):.1f} %" for metric in (Metric.ENERGY, Metric.TIME)
        )
        yield (
            f"boards{label}: {len(widest)} of {model}, spread {energy} in energy, {time} in time "
            f"at {cap}{others}"
        )
        ordered = sorted(widest, key=lambda gain: gain.energy.value if gain.energy else 0.0)
        if len(ordered) > _NAMED:
            ordered = [ordered[0], ordered[-1]]
        named = (f"{short_uuid(one.gpu_uuid)} {percent_range(one.energy)} %" for one in ordered)
        yield f"energy of each board, to their mean: {', '.join(named)}"
    if left_out := [gain for gain in boards.gains if gain.left_out is not None]:
        one = left_out[0]
        words = f"{len({gain.gpu_uuid for gain in left_out})} boards were not compared"
        yield f"{words}, such as {short_uuid(one.gpu_uuid)} at {one.cap}: {one.left_out}"


def calibration_lines(report: Report) -> Iterator[str]:
    """Yield what a view of calibrated figures says of them, from the calibrated report."""
    measured = [m for m in report.measurements if m.measured]
    without = sum(UNCALIBRATED in m.validity for m in measured)
    yield (
        "time, energy and what follows from them are calibrated: divided by the gain of the board, "
        "as the mean board of the model would take; the raw figures are in the report"
    )
    if without:
        yield (
            f"{without} of {len(measured)} figures are raw and marked {UNCALIBRATED}: their board "
            "has no gain at their cap"
        )


def short_uuid(uuid: str) -> str:
    """Return the beginning of a UUID, by which ``--gpu-device`` finds the GPU."""
    return uuid[:_UUID_SHOWN]
