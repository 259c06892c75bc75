"""How many trials an item needs by the meter's rule, and how good the figures are then.

    python bench/validation/trials_needed.py bench/results/nvidia-h200-2026-11-22/heat.json

The file has some seconds of trials of each of several kernels (a list of objects with ``name`` and
``trials``, as in a report, the first of which begins 0.25 s after the load). From every other trial
on, once 1.05 s are over, the meter's rule is followed with what comes next, on powers that have
been freed of their trend: what is left about 1 is error.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pytest_gpuenergy.energy.meter import MeterSettings
from pytest_gpuenergy.energy.statistics import Estimate, estimate, student_t

HEATED = 8
BEFORE = 7
"""Trials of the heat-up that tell of the scatter, as in an item."""
AHEAD = 30
"""Stretches begin where as many trials are left."""

Powers = npt.NDArray[np.float64]


def powers(trials: Sequence[dict[str, float]]) -> Powers:
    """Of each trial, relative to a straight line through those after the heat-up."""
    found = np.array([trial["joules"] / trial["seconds"] for trial in trials])
    number = np.arange(len(found))
    trend = np.polynomial.Polynomial.fit(number[HEATED:], found[HEATED:], 1)
    relative: Powers = found / trend(number)
    return relative


def stretch(values: Powers, begin: int, settings: MeterSettings) -> tuple[int, Estimate]:
    """The number of trials from ``begin`` on after which the meter ends, and what it then has."""
    before = values[max(0, begin - BEFORE) : begin].tolist()
    count = max(settings.min_trials, round(settings.min_measure_s / settings.trial_s))
    while True:
        own = values[begin : begin + count].tolist()
        found = estimate(own, successive=True, before=before)
        if found.relative_half_width <= settings.relative_half_width or len(own) < count:
            return len(own), found
        count += 1


def correlation(values: Powers) -> float:
    """Of neighbours, after the heat-up."""
    off = values[HEATED:] - values[HEATED:].mean()
    return float(off[1:] @ off[:-1] / (off @ off))


def summary(rows: Sequence[dict[str, Any]]) -> str:
    """What the command prints."""
    kernels = [powers(row["trials"]) for row in rows]
    found = [
        stretch(values, begin, MeterSettings())
        for values in kernels
        for begin in range(HEATED, len(values) - AHEAD, 2)
    ]
    counts, estimates = zip(*found, strict=True)
    off = np.array([one.mean - 1 for one in estimates])
    errors = [
        one.relative_half_width / student_t(count - 1 + BEFORE)
        for count, one in zip(counts, estimates, strict=True)
    ]
    held = sum(one.low <= 1 <= one.high for one in estimates)
    neighbours = [correlation(values) for values in kernels]
    return (
        f"{len(kernels)} kernels, {len(found)} stretches: {np.mean(counts):.1f} trials on average, "
        f"standard error {np.mean(errors):.2%}\n"
        f"off by {np.sqrt(np.mean(off**2)):.2%}, root mean square; {held} of {len(found)} "
        f"intervals hold the truth\n"
        f"neighbours are correlated by {np.mean(neighbours):.2f} ({min(neighbours):.2f} to "
        f"{max(neighbours):.2f})"
    )


def main(words: Sequence[str] | None = None) -> int:
    """Exit code 2 when the file cannot be read."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("trials", type=Path, help="The file")
    path = parser.parse_args(words).trials
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))
        print(summary(rows))
    except (OSError, ValueError, TypeError, KeyError) as error:
        print(f"error: {path} holds no trials that can be read ({error}).", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
