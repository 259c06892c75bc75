"""How long must a kernel be measured whose card is held back by its power limit?

    python studies/limit_swings.py bench/results/nvidia-h100-2026-11-26/gemm-*.json ...

Takes reports, and of these the measurements at the power limit that lasted for about 5 s, which is
as long as possible. The energy of a launch by a shorter window is compared with that by all trials:
windows of several lengths from the first trial on, and from earlier moments of the heat-up, whose
last second reports contain. Then the trials are ended after the whole swings after which the
interval of the power is narrow enough, as the meter does.
"""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean, median
from typing import NamedTuple

import numpy as np
from study_command import in_one_sentence, study_parser

from pytest_gpuenergy.energy import (
    ONE_SWING,
    ONE_SWING_POWER,
    POWER_SWINGS,
    SW_POWER_CAP,
    MeterSettings,
    estimate,
)
from pytest_gpuenergy.record import Measurement, Metric
from pytest_gpuenergy.report import load_report, markdown_table
from pytest_gpuenergy.support import NORMAL

SWING = 10
"""The trials of a swing; each lasts for 0.1 s."""
_LEAST = 47
"""The trials that a measurement must have; a few are missing from the 50 where reads were slow."""
_STARTS = (-6, -4, 0)
_LENGTHS = (4, 6, 10, 15, 20, 25, 30)


class Series(NamedTuple):
    """The energies of a launch in mJ by trial, before and since the first trial, and the powers."""

    before_mj: list[float]
    own_mj: list[float]
    powers_w: list[float]


def series_of(measurement: Measurement) -> Series | None:
    """Return the energies of a measurement at the power limit; None of any other."""
    moments = (measurement.begin, measurement.end)
    limited = any((one.event_reasons or 0) & SW_POWER_CAP for one in moments if one is not None)
    if not limited or len(measurement.trials) < _LEAST:
        return None
    before, own = (
        [trial.energy_mj for trial in trials]
        for trials in (measurement.warm_trials, measurement.trials)
    )
    powers_w = [trial.joules / trial.seconds for trial in measurement.trials]
    return Series(before, own[:_LEAST], powers_w[:_LEAST])


def window_rows(found: Sequence[Series]) -> Iterator[tuple[str, ...]]:
    """Yield how far windows are off the mean of all trials."""
    for start in _STARTS:
        for length in _LENGTHS:
            off = []
            for before_mj, own_mj, _ in found:
                if start + len(before_mj) >= 0:
                    every = [*before_mj[len(before_mj) + start :], *own_mj]
                    off.append(fmean(every[:length]) / fmean(own_mj) - 1)
            rms = math.sqrt(fmean(one * one for one in off))
            cells = (f"{rms:.2%}", f"{fmean(off):+.2%}")
            yield f"{start / 10:+.1f}", f"{length / 10:.1f}", str(len(off)), *cells


def ended(series: Series) -> tuple[int, float, float]:
    """Return after how many trials a measurement ends, how far it is off, and its half width."""
    own_mj = series.own_mj
    most = POWER_SWINGS * MeterSettings().relative_half_width
    rule = partial(estimate, successive=True, swing=SWING)
    for count in range(SWING, _LEAST, SWING):
        found = rule(own_mj[:count], one_swing=ONE_SWING[Metric.ENERGY])
        power = rule(series.powers_w[:count], one_swing=ONE_SWING_POWER)
        if power.relative_half_width <= most:
            return count, found.value / fmean(own_mj) - 1, found.relative_half_width
    found = rule(own_mj)
    return _LEAST, 0.0, found.relative_half_width


@in_one_sentence
def main(words: Sequence[str] | None = None) -> None:
    """Print a table in Markdown, and sentences."""
    parser = study_parser(__doc__)
    parser.add_argument("reports", type=Path, nargs="+")
    arguments = parser.parse_args(words)
    reports = [load_report(path) for path in arguments.reports]
    every = [one for report in reports for one in report.measurements if not report.run.emulated]
    found = [series for one in every if (series := series_of(one)) is not None]
    names = ("from, s", "length, s", "measurements", "off, root mean square", "mean")
    print(markdown_table(names, window_rows(found), text=()))
    counts, off, halves = zip(*map(ended, found), strict=True)
    wander = NORMAL * MeterSettings().wander[Metric.ENERGY]
    shares = Counter(counts)
    cells = [f"{count / 10:.1f} s: {shares[count] / len(found):.0%}" for count in sorted(shares)]
    held = np.abs(off) <= np.array(halves)
    print(f"\n{len(found)} measurements end after {fmean(counts) / 10:.1f} s ({', '.join(cells)}),")
    print(f"off by {math.sqrt(fmean(one * one for one in off)):.2%} (root mean square); ", end="")
    print(f"{held.mean():.1%} of the intervals by scatter alone hold all trials' mean.")
    print(f"Median half width: {median(math.hypot(half, wander) for half in halves):.2%}.")


if __name__ == "__main__":
    sys.exit(main())
