"""How the gate judges kernels that have not changed, and planted changes, in reports of real runs.

    python studies/aa_rate.py aa-*.json ...                 # reports of repeated runs
    python studies/aa_rate.py --marked "one changed" --limits 1,5 --changes 2,3 REPORT...

Every ordered pair of reports of one GPU model with kernels in common is a comparison, made as by
``gpuenergy compare``. Reports of one board form one session if each begins at most ten minutes
after the one before has ended. A comparison is made several times:

- *unchanged*: as it is, all kernels having the same text;
- *one changed*: each kernel in turn has another hash, so that it is judged relative to the common
  shift of the others, if these are enough;
- *all changed*: every kernel has another hash, so that the declared deviation between sessions and
  boards is used.

With ``--means N``, the means of N runs of a session each are compared instead.

Each is judged once with its figures as measured and once for each planted change of the EDP, half
of it in time and half in energy. Comparisons that share a report are not independent: intervals
are 95 % intervals of a bootstrap by run, session or board, whichever tells the class's pairs apart.
If nothing varies, they are Clopper-Pearson's for as many trials as there are disjoint pairs.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
from gate_shift_simulation import multiplied
from msgspec.structs import replace

from pytest_gpuenergy.gate import GateSettings, Verdict, compare
from pytest_gpuenergy.record import METRICS, Measurement, Metric
from pytest_gpuenergy.report import Counterparts, Report, load_report, mean_of_runs
from pytest_gpuenergy.support import GpuEnergyError

LIMITS = "0,1,2,3,5"
CLASSES = ("same session", "other session", "other board")
KINDS = ("unchanged", "one changed", "all changed")
FEWEST = 5
"""Kernels that two reports must have in common."""
MOST_MARKED = 8
"""Kernels of one comparison that are marked in turn; of more, as many are drawn."""
BREAK = timedelta(minutes=10)
_RESAMPLES = 1000


@dataclass(frozen=True)
class Run:
    """A report with the place where it was made.

    Attributes:
        report: what was measured, one measurement of each identity.
        name: the name of its file.
        board: UUID of the GPU.
        session: number of the board's session.
        parts: the reports of which it is the mean.
    """

    report: Report
    name: str
    board: str
    session: int
    parts: frozenset[str] = frozenset()

    def unit(self, kind: str) -> object:
        """What is drawn by the bootstrap of a class of pairs."""
        return {CLASSES[0]: self.name, CLASSES[1]: (self.board, self.session)}.get(kind, self.board)


@dataclass(frozen=True)
class Judged:
    """The verdicts of one comparison on the kernels that it is about.

    Attributes:
        model: the GPU model.
        pair: the class of the pair, one of `CLASSES`.
        units: what the bootstrap draws, for the earlier and the later run.
        kind: one of `KINDS`.
        limit: the limit of all metrics, as a fraction.
        change: what was planted, as a fraction of the EDP.
        verdicts: by metric, the verdicts on the kernels that are marked or, if none is, on all.
        alarm: whether the gate fails although nothing was planted there.
        found: the kernels whose planted change is WORSE in any metric.
        flagged: how many of these kernels carry a flag on either side.
    """

    model: str
    pair: str
    units: tuple[object, object]
    kind: str
    limit: float
    change: float
    verdicts: Mapping[Metric, tuple[Verdict, ...]]
    alarm: bool
    found: int
    flagged: int


def runs_of(reports: Mapping[str, Report]) -> list[Run]:
    """The reports with figures, by board and session, in the order in which they began."""
    found: list[Run] = []
    last: dict[str, tuple[datetime, int]] = {}
    for name, report in sorted(reports.items(), key=lambda item: item[1].run.started):
        measured = {m.identity: m for m in report.measurements if m.measured}
        boards = {m.gpu_uuid or report.run.gpu_uuid for m in measured.values()}
        if len(boards) != 1:
            continue
        board = boards.pop()
        began = datetime.fromisoformat(report.run.started)
        ended = began + timedelta(seconds=sum(m.wall_s for m in measured.values()))
        before, number = last.get(board, (began, 0))
        number += began - before > BREAK
        last[board] = (max(before, ended), number)
        found.append(Run(with_only(report, measured.values()), name, board, number))
    return found


def means_of(runs: Sequence[Run], number: int) -> list[Run]:
    """The means of each ``number`` runs of a session."""
    sessions: dict[tuple[str, int], list[Run]] = defaultdict(list)
    for run in runs:
        sessions[run.board, run.session].append(run)
    return [
        Run(
            mean_of_runs([one.report for one in several]),
            " + ".join(one.name for one in several),
            *place,
            frozenset(one.name for one in several),
        )
        for place, those in sessions.items()
        for several in itertools.combinations(those, number)
    ]


def with_only(report: Report, measurements: Iterable[Measurement]) -> Report:
    """The report with other measurements."""
    return Report(report.run, tuple(measurements), stations=report.stations)


def class_of(one: Run, other: Run) -> str:
    """Which of `CLASSES` a pair of runs belongs to."""
    if one.board != other.board:
        return CLASSES[2]
    return CLASSES[one.session != other.session]


def common(one: Run, other: Run) -> tuple[Report, Report]:
    """Both reports with only the kernels that have the same hash and workload in both.

    Flagged measurements stay, because a gate has to judge them, too.
    """
    earlier = Counterparts(one.report.measurements)
    sides: tuple[list[Measurement], list[Measurement]] = ([], [])
    for now in other.report.measurements:
        before = earlier.of(now)
        if (
            before is not None
            and now.kernel.digest
            and (before.kernel.digest, before.workload) == (now.kernel.digest, now.workload)
            and before.enforced_power_limit_w == now.enforced_power_limit_w
        ):
            sides[0].append(before)
            sides[1].append(now)
    return (
        with_only(one.report, sides[0]),
        with_only(other.report, sides[1]),
    )


def pairs_of(runs: Sequence[Run], fewest: int = FEWEST) -> Iterator[tuple[Run, Run]]:
    """The ordered pairs of one GPU model that have enough kernels and no report in common."""
    for one, other in itertools.permutations(runs, 2):
        if one.parts & other.parts:
            continue
        alike = (one.report.run.gpu_name, one.report.run.emulated) == (
            other.report.run.gpu_name,
            other.report.run.emulated,
        )
        if alike and len(common(one, other)[0].measurements) >= fewest:
            yield one, other


def judged(
    one: Run, other: Run, limits: Sequence[float], changes: Sequence[float]
) -> Iterator[Judged]:
    """The comparison of two runs, in all its kinds, with and without planted changes."""
    base, new = common(one, other)
    count = len(new.measurements)
    place = random.Random(f"{one.report.run.run_id} {other.report.run.run_id}")
    chosen = sorted(place.sample(range(count), min(count, MOST_MARKED)))
    everywhere = list(range(count))
    marks: dict[str, list[tuple[list[int], list[int]]]] = {
        KINDS[0]: [([], everywhere)],
        KINDS[1]: [([index], [index]) for index in chosen],
        KINDS[2]: [(everywhere, everywhere)],
    }
    for change, kind in itertools.product((0.0, *changes), KINDS):
        todo = marks[kind]
        if change and kind == KINDS[0]:  # only one of the kernels that all look unchanged
            todo = [([], [index]) for index in chosen]
        for marked, asked in todo:
            now = list(new.measurements)
            for index in marked:
                kernel = replace(now[index].kernel, digest="another")
                now[index] = replace(now[index], kernel=kernel)
            if change:
                for index in asked:
                    now[index] = multiplied(now[index], 1 + change)
            for limit in limits:
                yield _judge(one, other, base, with_only(new, now), asked, kind, limit, change)


def _judge(
    one: Run,
    other: Run,
    base: Report,
    new: Report,
    asked: Sequence[int],
    kind: str,
    limit: float,
    change: float,
) -> Judged:
    settings = GateSettings(dict.fromkeys(METRICS, limit), enforced=True)
    result = compare(base, new, settings)
    about = {new.measurements[index].identity for index in asked}
    verdicts: dict[Metric, list[Verdict]] = defaultdict(list)
    worse = set()
    for judgement in result.judgements:
        if judgement.identity in about:
            verdicts[judgement.metric].append(judgement.verdict)
        if judgement.verdict is Verdict.WORSE:
            worse.add(judgement.identity)
    earlier = Counterparts(base.measurements)
    flagged = sum(
        bool(now.validity) or bool((before := earlier.of(now)) and before.validity)
        for now in (new.measurements[index] for index in asked)
    )
    return Judged(
        model=new.run.gpu_name + (" (emulated)" if new.run.emulated else ""),
        pair=(pair := class_of(one, other)),
        units=(one.unit(pair), other.unit(pair)),
        kind=kind,
        limit=limit,
        change=change,
        verdicts={metric: tuple(found) for metric, found in verdicts.items()},
        alarm=bool(result.failing_shifts) or bool(worse - about if change else worse),
        found=len(worse & about),
        flagged=flagged,
    )


@dataclass(frozen=True)
class Rate:
    """A share with its 95 % interval."""

    hits: int
    total: int
    low: float
    high: float

    def __str__(self) -> str:
        def percent(share: float) -> str:
            return f"{100 * share:.1f}"

        if not self.total:
            return ""
        return f"{100 * self.hits / self.total:.1f} % ({percent(self.low)}-{percent(self.high)})"


def rate(parts: Sequence[tuple[tuple[object, object], int, int]], seed: int = 1) -> Rate:
    """The share of hits, from (units of the pair, hits, total) of each comparison.

    The units are drawn with replacement; a pair counts as often as both of its units together.
    """
    hits, total = (np.array([part[k] for part in parts], dtype=float) for k in (1, 2))
    if not total.sum():
        return Rate(0, 0, 0.0, 1.0)
    units = sorted({repr(unit) for pair, _, _ in parts for unit in pair})
    place = {unit: index for index, unit in enumerate(units)}
    ends = np.array([[place[repr(unit)] for unit in pair] for pair, _, _ in parts])
    share = hits.sum() / total.sum()
    if share in (0.0, 1.0) or len(units) < 3:
        # Clopper-Pearson's bounds where all trials agree; conservative for anything between.
        disjoint = max(1, len(units) // 2)
        room = 1 - 0.025 ** (1 / disjoint)
        low, high = max(0.0, share - room), min(1.0, share + room)
    else:
        rng = np.random.default_rng(seed)
        drawn = rng.multinomial(len(units), [1 / len(units)] * len(units), size=_RESAMPLES)
        weights = drawn[:, ends[:, 0]] * drawn[:, ends[:, 1]]
        weighed = weights @ total
        shares = (weights @ hits)[weighed > 0] / weighed[weighed > 0]
        low, high = np.quantile(shares, (0.025, 0.975))
    return Rate(int(hits.sum()), int(total.sum()), float(low), float(high))


Share = Callable[[Judged], tuple[int, int]]
"""Hits and total of one comparison."""


def verdict(metric: Metric, name: Verdict) -> Share:
    """How many kernels have this verdict by a metric."""
    return lambda one: (one.verdicts[metric].count(name), len(one.verdicts[metric]))


def alarm(one: Judged) -> tuple[int, int]:
    """Whether the gate fails although nothing has changed, or by what has not."""
    return int(one.alarm), 1


def found(one: Judged) -> tuple[int, int]:
    """How many kernels are WORSE in any metric."""
    return one.found, len(one.verdicts[Metric.TIME])


UNPLANTED: Mapping[str, Share] = {
    "runs with a false alarm": alarm,
    **{f"{metric.label} SAME": verdict(metric, Verdict.SAME) for metric in METRICS},
    **{f"{metric.label} AMBIGUOUS": verdict(metric, Verdict.AMBIGUOUS) for metric in METRICS},
}
PLANTED: Mapping[str, Share] = {
    **{f"{metric.label} WORSE": verdict(metric, Verdict.WORSE) for metric in METRICS},
    "WORSE in any": found,
    "EDP SAME": verdict(Metric.EDP, Verdict.SAME),
    "runs with a false alarm": alarm,
}


def rows_of(judgements: Sequence[Judged], shares: Mapping[str, Share]) -> Iterator[list[str]]:
    """A row for each model, class of pairs, kind and share, with a column for each limit."""
    limits = sorted({one.limit for one in judgements})
    columns = ("GPU", "pairs", "marked", "planted", "comparisons", "kernels", "share of")
    yield [*columns, *(f"limit {100 * limit:g} %" for limit in limits)]
    groups: dict[tuple[str, int, int, float], list[Judged]] = defaultdict(list)
    for one in judgements:
        place = (one.model, CLASSES.index(one.pair), KINDS.index(one.kind), one.change)
        groups[place].append(one)
    for (model, pair, kind, change), group in sorted(groups.items()):
        at_first = [one for one in group if one.limit == limits[0]]
        flagged = sum(one.flagged for one in at_first)
        kernels = sum(found(one)[1] for one in at_first)
        titles = [model, CLASSES[pair], KINDS[kind], f"{change:+.0%}" if change else "nothing"]
        titles += [str(len(at_first)), f"{kernels} ({flagged} flagged)"]
        for name, share in shares.items():
            cells = (
                rate([(one.units, *share(one)) for one in group if one.limit == limit])
                for limit in limits
            )
            yield [*titles, name, *map(str, cells)]


def markdown(rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table; the first row has the titles."""
    titles, *others = rows
    lines = [f"| {' | '.join(titles)} |", f"|{'---|' * len(titles)}"]
    return "\n".join(lines + [f"| {' | '.join(row)} |" for row in others])


def _judged_list(
    arguments: tuple[Run, Run, Sequence[float], Sequence[float]],
) -> list[Judged]:
    return list(judged(*arguments))


def main() -> None:
    """Print the runs and two tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("reports", nargs="+", type=Path, metavar="REPORT")
    parser.add_argument("--limits", default=LIMITS, help=f"Percent (default: {LIMITS})")
    parser.add_argument("--changes", default="2", help="Planted in the EDP, percent (default: 2)")
    parser.add_argument(
        "--marked", default=",".join(KINDS), help="What to print, of: " + ", ".join(KINDS)
    )
    parser.add_argument(
        "--means", type=int, default=1, metavar="N", help="Compare means of N runs of a session"
    )
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--json", type=Path, help="Write the cells of the tables here, too")
    arguments = parser.parse_args()
    reports: dict[str, Report] = {}
    for path in arguments.reports:
        try:
            reports[str(path)] = load_report(path)
        except GpuEnergyError as error:
            print(f"left out: {error}")
    runs = runs_of(reports)
    for run in runs:
        print(
            f"{run.name}: {run.report.run.started}, {run.report.run.gpu_name}, board "
            f"{run.board}, session {run.session}, {len(run.report.measurements)} kernels"
        )
    if arguments.means > 1:
        runs = means_of(runs, arguments.means)
    limits = [float(word) / 100 for word in arguments.limits.split(",")]
    changes = [float(word) / 100 for word in filter(None, arguments.changes.split(","))]
    work = [(one, other, limits, changes) for one, other in pairs_of(runs)]
    if not work:
        raise SystemExit(f"No two reports of one GPU model share {FEWEST} kernels of equal hash.")
    with ProcessPoolExecutor(arguments.processes) as pool:
        parts = list(pool.map(_judged_list, work, chunksize=4))
    kinds = [word.strip() for word in arguments.marked.split(",")]
    wanted = [one for part in parts for one in part if one.kind in kinds]
    tables = {
        name: list(rows_of([one for one in wanted if bool(one.change) == planted], shares))
        for name, planted, shares in (("as_measured", False, UNPLANTED), ("planted", True, PLANTED))
    }
    for rows in tables.values():
        print()
        print(markdown(rows))
    if arguments.json:
        arguments.json.write_text(json.dumps(tables, indent=1) + "\n")


if __name__ == "__main__":
    main()
