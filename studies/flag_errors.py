"""How far flagged figures deviate from unflagged ones of the same kernel on the same board.

    python studies/flag_errors.py bench/results/*/*.json aa-*.json

Takes reports, in which a flagged measurement is compared with the mean of the unflagged ones of
other runs, and files of `bench/validation`, in which each item is compared with 12 s of
its kernel around it. Other files are left out. For each flag it prints the root mean square of the
deviations beside the one that intervals and the deviation between sessions explain, and the upper
end of the 95 % interval (one-sided, by chi-squared) of what a flag adds to that as a standard
deviation.
"""

from __future__ import annotations

import json
import math
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from study_command import in_one_sentence, study_parser

from pytest_gpuenergy.record import (
    METRICS,
    SAME_BOARD_SD,
    Measurement,
    Metric,
    SessionMean,
    session_mean,
)
from pytest_gpuenergy.report import load_report, markdown_table
from pytest_gpuenergy.support import NORMAL, GpuEnergyError

GROUPS = (
    ("none",),
    ("interval_wide", "not_settled"),
    ("clock_step", "not_steady"),
    ("temperature_drift",),
    ("sources_disagree",),
    ("drift",),
)
"""Flags that are looked at together."""
_MOST = 1.0


class Deviation(NamedTuple):
    """A figure's deviation from others of its kernel, with the variance expected of it."""

    flags: tuple[str, ...]
    metric: Metric
    value: float
    variance: float


def from_references(document: Mapping[str, Any]) -> Iterator[Deviation]:
    """Yield the deviations of validated items from the 12 s of their kernels around them."""
    for kernel in document["kernels"]:
        for item in (*kernel["attempts"], *kernel["repeats"]):
            if item["protocol"] != "gpuenergy" or not item["intervals"]:
                continue
            figures, truth = (
                {
                    Metric.TIME: one["time_ms"],
                    Metric.ENERGY: one["energy_mj"],
                    Metric.EDP: one["time_ms"] * one["energy_mj"],
                }
                for one in (item, kernel["reference"])
            )
            for metric in METRICS:
                ends = item["intervals"][metric]
                error = (ends["high"] - ends["low"]) / 2 / figures[metric] / NORMAL
                value = math.log(figures[metric] / truth[metric])
                yield Deviation(tuple(item["validity"]), metric, value, error**2)


def from_repeats(reports: Sequence[Sequence[tuple[str, Measurement]]]) -> Iterator[Deviation]:
    """Yield the deviations of measurements from unflagged ones of other runs on their board.

    Args:
        reports: for each run its measurements, each with the board it was made on.
    """
    kernels: dict[tuple[object, ...], list[tuple[int, Measurement]]] = defaultdict(list)
    for run, measurements in enumerate(reports):
        for board, m in measurements:
            what = (m.kernel.digest, json.dumps(m.workload.parameters, sort_keys=True))
            kernels[(board, *what, m.enforced_power_limit_w, m.cache)].append((run, m))
    for found in kernels.values():
        for run, m in found:
            others = [other for at, other in found if at != run and not other.validity]
            for metric in METRICS:
                mine = session_mean(m, metric)
                theirs = [one for o in others if (one := session_mean(o, metric)) is not None]
                if mine is None or not theirs:
                    continue
                value = math.log(mine.mean) - fmean(math.log(one.mean) for one in theirs)
                variance = _variance(mine, metric)
                variance += sum(_variance(one, metric) for one in theirs) / len(theirs) ** 2
                yield Deviation(m.validity, metric, value, variance)


def _variance(found: SessionMean, metric: Metric) -> float:
    return found.relative_error**2 + found.session_variance(SAME_BOARD_SD[metric])


def excess(deviations: Sequence[Deviation], probability: float) -> float:
    """Return the standard deviation beyond the expected one that a probability leaves possible."""
    from scipy.optimize import brentq  # takes a second
    from scipy.stats import chi2

    squares = float(chi2.ppf(probability, len(deviations)))

    def surplus(variance: float) -> float:
        return math.fsum(d.value**2 / (d.variance + variance) for d in deviations) - squares

    return math.sqrt(brentq(surplus, 0.0, _MOST)) if surplus(0.0) > 0 else 0.0


def rows(deviations: Sequence[Deviation]) -> Iterator[list[str]]:
    """Yield a row for each group of flags and metric."""
    for group in GROUPS:
        for metric in METRICS:
            those = [
                one
                for one in deviations
                if one.metric is metric
                and (set(group) & set(one.flags) or (group == ("none",) and not one.flags))
            ]
            if those:
                yield [
                    ", ".join(group),
                    metric.label,
                    str(len(those)),
                    f"{math.sqrt(fmean(one.value**2 for one in those)):.2%}",
                    f"{math.sqrt(fmean(one.variance for one in those)):.2%}",
                    f"{max(abs(one.value) for one in those):.2%}",
                    f"{excess(those, 0.05):.2%}",
                ]


@in_one_sentence
def main(words: Sequence[str] | None = None) -> None:
    """Print a table."""
    parser = study_parser(__doc__)
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE")
    arguments = parser.parse_args(words)
    found: list[Deviation] = []
    reports: list[list[tuple[str, Measurement]]] = []
    for path in arguments.files:
        document = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(document, dict) and "kernels" in document and "run" in document:
            found += from_references(document)
            continue
        try:
            report = load_report(path)
        except GpuEnergyError:
            continue
        if not report.run.emulated:
            reports.append(
                [
                    (m.gpu_uuid or report.run.gpu_uuid, m)
                    for m in report.measurements
                    if m.measured and m.kernel.digest
                ]
            )
    found += from_repeats(reports)
    heads = ["flag", "metric", "figures", "rms", "expected", "largest", "added, at most"]
    print(markdown_table(heads, list(rows(found))))


if __name__ == "__main__":
    sys.exit(main())
