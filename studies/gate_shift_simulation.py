"""What the gate finds when most kernels have not changed, by simulation and in committed reports.

``python studies/gate_shift_simulation.py`` draws pairs of sessions that differ in common, as two
boards do, and kernel by kernel. With ``--reports``, the sessions are reports of the same kernels
from other boards: each of their kernels in turn is taken for one that has changed, once as it is,
and once with its EDP multiplied. With ``--means 2``, either side is the mean of two reports, by
``gpuenergy report --mean``. With ``--caps 5``, each kernel is measured at five caps.
"""

from __future__ import annotations

import argparse
import itertools
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median

import numpy as np
from gate_simulation import Session, drawn_measurement
from msgspec.structs import replace

from pytest_gpuenergy.gate import GateSettings, Judgement, Verdict, compare
from pytest_gpuenergy.record import METRICS, OTHER_BOARD_SD, Interval, Measurement, Metric, RunInfo
from pytest_gpuenergy.report import Report, load_report, mean_of_runs, pairs

RESULTS = Path(__file__).parents[1] / "bench" / "results"
REPORTS = tuple(
    f"nvidia-h200-2026-11-{name}.json"
    for name in (
        *("22/items", "22/other-board", "22/report", "22/same-board"),
        *("23/items", "23/items-settled", "23/report"),
        *("26/board-0", "26/board-1"),
    )
)
"""Reports of the bundled kernels, each from another H200."""

MOST_PAIRS = 72
"""Of sides that are compared: all of the nine reports, or as many drawn from those of means."""

ENOUGH = 15
"""Sides with fewer kernels in common are left out: of a few, the scatter is not known well."""


@dataclass(frozen=True)
class Outcome:
    """What the gate said of one run.

    Attributes:
        alarm: a kernel is WORSE whose figures have not been changed.
        found: the fraction of caps at which the kernel whose figures have been changed is WORSE.
        found_by_any: likewise, with time and energy judged too.
        same: the fraction of the other kernels, by EDP, that are SAME.
        reach: how far the lower end of an interval of EDP lies below the change (median).
    """

    alarm: bool
    found: float
    found_by_any: float
    same: float
    reach: float


def outcome(base: Report, new: Report, changed: str, *, real: bool, limit: float = 0.0) -> Outcome:
    """Compare, by EDP and by all metrics; ``changed`` is the label of the changed kernel.

    ``real``: whether its figures have been changed too, so that its alarm is not a false one.
    """

    def judged(*metrics: Metric) -> Sequence[Judgement]:
        limits = dict.fromkeys(metrics, limit)
        return compare(base, new, GateSettings(limits, enforced=True)).judgements

    def found(judgements: Sequence[Judgement]) -> float:
        caps = {one.identity.cap for one in judgements}
        worse = {
            one.identity.cap
            for one in judgements
            if one.node_id.startswith(changed) and one.verdict is Verdict.WORSE
        }
        return len(worse) / len(caps)

    by_edp = judged(Metric.EDP)
    others = [one for one in by_edp if not (real and one.node_id.startswith(changed))]
    return Outcome(
        any(one.verdict is Verdict.WORSE for one in others),
        found(by_edp),
        found(judged(*METRICS)),
        sum(one.verdict is Verdict.SAME for one in others) / max(1, len(others)),
        median(one.change.value - one.change.low for one in by_edp if one.change is not None),
    )


def drawn(
    rng: np.random.Generator,
    *,
    runs: int,
    kernels: int,
    scatters: Sequence[float],
    edp: float,
    boards: int,
    limit: float = 0.0,
) -> Iterator[Outcome]:
    """Pairs of sessions in which the first kernel has another text, and its EDP a factor ``edp``.

    ``scatters`` are, for each cap, the standard deviation of the change of a kernel's EDP, without
    that from its windows, around what all have in common; a fifth of it is that of the time.
    """
    measure = drawn_measurement(rng)
    labels = [f"k{number:03d}" for number in range(1, kernels + 1)]

    def at_cap(cap: int, scatter: float, factor: float, text: str) -> Iterator[Measurement]:
        one_side = scatter / math.sqrt(2)
        time, energy = (
            rng.normal(0, OTHER_BOARD_SD[metric] * (boards > 1) + 0.002 * (boards == 1))
            for metric in (Metric.TIME, Metric.ENERGY)
        )
        for place, label in enumerate(labels):
            own_time = rng.normal(0, 0.2 * one_side)
            own = Session(time + own_time, energy + rng.normal(0, 0.98 * one_side))
            one = measure(label, own, factor if place == 0 else 1.0)
            digest = text if place == 0 else label
            node_id = f"{one.node_id}-{cap}W"
            kernel = replace(one.kernel, digest=digest)
            yield replace(one, node_id=node_id, cap=f"{cap}W", kernel=kernel)

    def report(board: str, factor: float, text: str) -> Report:
        made = (
            one
            for cap, scatter in enumerate(scatters)
            for one in at_cap(cap, scatter, factor, text)
        )
        return Report(_run(board), tuple(made))

    for _ in range(runs):
        base, new = report("GPU-0", 1.0, "before"), report(f"GPU-{boards - 1}", edp, "after")
        yield outcome(base, new, f"test[{labels[0]}]", real=edp != 1.0, limit=limit)


def recorded(base: Report, new: Report, edp: float) -> Iterator[Outcome]:
    """Each kernel of ``new`` in turn as the one that has changed; its EDP multiplied by ``edp``."""
    unchanged = [one for one in pairs(new, base) if one.unchanged]
    if len(unchanged) < ENOUGH:
        return
    base = replace(base, measurements=tuple(one.before for one in unchanged))
    for place, one in enumerate(unchanged):
        now = [other.now for other in unchanged]
        changed = replace(one.now, kernel=replace(one.now.kernel, digest="another"))
        now[place] = multiplied(changed, edp)
        yield outcome(base, replace(new, measurements=tuple(now)), one.now.node_id, real=edp != 1.0)


def sides(
    reports: Sequence[Report], count: int, most: int = MOST_PAIRS
) -> list[tuple[Report, Report]]:
    """Pairs of means of ``count`` reports, of other boards each, of the kernels that all have."""
    every = range(len(reports))
    chosen = [
        (one, other)
        for one in itertools.combinations(every, count)
        for other in itertools.combinations([place for place in every if place not in one], count)
    ]
    random.Random(1).shuffle(chosen)
    found: list[tuple[Report, Report]] = []
    for one, other in chosen:
        common = set.intersection(*(_kernels(reports[place]) for place in (*one, *other)))
        if len(common) >= ENOUGH and len(found) < most:
            base, new = ([_only(reports[place], common) for place in side] for side in (one, other))
            found.append((_mean(base), _mean(new)))
    return found


def _kernels(report: Report) -> set[tuple[str, str]]:
    return {
        (m.node_id, m.kernel.digest) for m in report.measurements if m.measured and not m.validity
    }


def _only(report: Report, kernels: set[tuple[str, str]]) -> Report:
    found = (m for m in report.measurements if (m.node_id, m.kernel.digest) in kernels)
    return replace(report, measurements=tuple(found))


def _mean(reports: Sequence[Report]) -> Report:
    return reports[0] if len(reports) == 1 else mean_of_runs(reports)


def multiplied(m: Measurement, edp: float) -> Measurement:
    """The measurement with its EDP multiplied, half of it by the time, half by the energy."""
    return scaled(m, {Metric.TIME: math.sqrt(edp), Metric.ENERGY: math.sqrt(edp), Metric.EDP: edp})


def scaled(m: Measurement, factors: Mapping[Metric, float]) -> Measurement:
    """The measurement with its figures and their intervals multiplied by ``factors``."""
    changes: dict[str, float | Interval] = {}
    for metric, factor in factors.items():
        found = m.estimate(metric)
        assert found is not None
        changes[metric.field] = found.value * factor
        changes[f"{metric.field}_ci95"] = Interval(found.low * factor, found.high * factor)
    return replace(m, **changes)


def row(outcomes: Sequence[Outcome]) -> str:
    """The cells of a table: runs, and the means of what `Outcome` has."""
    count = len(outcomes)
    means = (
        fmean(one.alarm for one in outcomes),
        fmean(one.found for one in outcomes),
        fmean(one.found_by_any for one in outcomes),
        fmean(one.same for one in outcomes),
    )
    reach = fmean(one.reach for one in outcomes)
    cells = [str(count), *(f"{100 * value:.1f} %" for value in means), f"-{100 * reach:.2f} %"]
    return " | ".join(cells)


def _run(board: str) -> RunInfo:
    return RunInfo(board, "", "", "simulated", board, "sm_90", True, {}, {}, {})


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--kernels", default="6,25")
    parser.add_argument("--scatters", default="0.3,0.4,0.6", help="Percent")
    parser.add_argument("--caps", type=int, default=1, help="Number of caps of each kernel")
    parser.add_argument("--boards", default="1,2", help="1: the same, 2: another")
    parser.add_argument("--limit", type=float, default=0.0, help="Percent")
    parser.add_argument(
        "--uneven", action="store_true", help="Twice the scatter at the last cap, half at the first"
    )
    parser.add_argument("--changes", default="0,2,3", help="Of the changed kernel's EDP, percent")
    parser.add_argument("--reports", action="store_true", help="Use committed reports")
    parser.add_argument(
        "--means", type=int, default=1, choices=range(1, 5), help="Number of reports on each side"
    )
    arguments = parser.parse_args()
    if not arguments.reports and arguments.means > 1:
        parser.error("--means needs --reports")
    changes = [float(word) / 100 for word in arguments.changes.split(",")]
    columns = "runs | false alarms | WORSE by EDP | WORSE by any metric | others SAME | lower end"
    if arguments.reports:
        reports = [load_report(RESULTS / name) for name in REPORTS]
        print(f"| change | {columns} |\n{'|---:' * 7}|")
        compared = sides(reports, arguments.means)
        for change in changes:
            found = [one for base, new in compared for one in recorded(base, new, 1 + change)]
            print(f"| {change:+.0%} | {row(found)} |")
        return
    rng = np.random.default_rng(1)
    print(f"| kernels | boards | scatter | change | {columns} |")
    print(f"{'|---:' * 10}|")
    for kernels, boards, scatter, change in itertools.product(
        map(int, arguments.kernels.split(",")),
        map(int, arguments.boards.split(",")),
        map(float, arguments.scatters.split(",")),
        changes,
    ):
        scatters = [scatter / 100] * arguments.caps
        if arguments.uneven:
            scatters[0], scatters[-1] = scatters[0] / 2, scatters[-1] * 2
        found = list(
            drawn(
                rng,
                runs=arguments.runs,
                kernels=kernels,
                scatters=scatters,
                edp=1 + change,
                boards=boards,
                limit=arguments.limit / 100,
            )
        )
        print(f"| {kernels} | {boards} | {scatter:g} % | {change:+.0%} | {row(found)} |")


if __name__ == "__main__":
    main()
