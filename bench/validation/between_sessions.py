"""How much figures vary from session to session, from reports of the same kernels.

    python bench/validation/between_sessions.py MONDAY.json TUESDAY.json WEDNESDAY.json

Each report must be from a different session: another run, hour or board. At least three are needed.
For each metric, the relative standard deviation between sessions is pooled over the kernels that
all reports have in common, under the same power cap and without flags. The last line is an option
for the gate.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pytest_gpuenergy.record import METRICS, Measurement, Metric, SessionMean
from pytest_gpuenergy.report import Report, load_report
from pytest_gpuenergy.support import GpuEnergyError, InputError

LEAST_SESSIONS = 3
_RESAMPLES = 2000
_Key = tuple[str, str, str, str, str]


@dataclass(frozen=True)
class Deviation:
    """Standard deviations of one metric between sessions, as fractions.

    Attributes:
        total: of a session's figure about the kernel's mean.
        own: the part explained by the sessions' own intervals.
        low: lower end of the 95 % interval of ``total``.
        high: its upper end.
    """

    total: float
    own: float
    low: float
    high: float

    @property
    def between(self) -> float:
        """The part not explained by the sessions' own intervals."""
        return math.sqrt(max(0.0, self.total**2 - self.own**2))


def common_kernels(reports: Sequence[Report]) -> list[list[Measurement]]:
    """The measurements of each kernel that every report has, under one cap and without flags.

    Raises:
        InputError: there are too few reports, they mix real with emulated GPUs or different models,
            or they have no kernel in common.
    """
    if len(reports) < LEAST_SESSIONS:
        raise InputError(
            f"At least {LEAST_SESSIONS} reports are needed, but {len(reports)} were given."
        )
    runs = [report.run for report in reports]
    if len({run.run_id for run in runs}) < len(runs):
        raise InputError("Two of these reports are from the same run: give those of separate runs.")
    if len({(run.gpu_name, run.emulated) for run in runs}) > 1:
        names = sorted({run.gpu_name + " (emulated)" * run.emulated for run in runs})
        raise InputError(f"These reports are from different GPUs: {', '.join(names)}.")
    tables = [
        {_key(m): m for m in report.measurements if m.measured and not m.validity}
        for report in reports
    ]
    shared = [key for key in tables[0] if all(key in table for table in tables)]
    if not shared:
        raise InputError("These reports have no kernel in common that all measured without a flag.")
    return [[table[key] for table in tables] for key in shared]


def deviation(kernels: Sequence[Sequence[Measurement]], metric: Metric) -> Deviation:
    """Pooled over kernels; the interval is a bootstrap over kernels, for the same sessions.

    The shift of a board or an hour is common to all kernels, so the interval covers what other
    kernels would have given in these sessions, not what other sessions would have given.
    """
    logs = np.array([[math.log(_sample(m, metric).mean) for m in row] for row in kernels])
    variances = logs.var(axis=1, ddof=1)
    own = [_sample(m, metric).relative_error ** 2 for row in kernels for m in row]
    rng = np.random.default_rng(0)
    picks = rng.integers(0, len(variances), (_RESAMPLES, len(variances)))
    low, high = np.quantile(np.sqrt(variances[picks].mean(axis=1)), [0.025, 0.975])
    total = math.sqrt(variances.mean())
    return Deviation(total, math.sqrt(sum(own) / len(own)), float(low), float(high))


def _key(m: Measurement) -> _Key:
    return m.workload.name, m.kernel.label, m.kernel.digest, m.cap, m.cache


def _sample(m: Measurement, metric: Metric) -> SessionMean:
    found = m.estimate(metric)
    if found is None:
        raise InputError(f"{m.node_id} has no {metric} with an interval.")
    return SessionMean.of(found, m.scatter_count)


def main(words: Sequence[str] | None = None) -> int:
    """Run the command; exit code 2 if the reports cannot be compared."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("report", nargs="+", type=Path)
    arguments = parser.parse_args(words)
    try:
        reports = [load_report(path) for path in arguments.report]
        kernels = common_kernels(reports)
        found = {metric: deviation(kernels, metric) for metric in METRICS}
    except GpuEnergyError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    boards = len({report.run.gpu_uuid for report in reports})
    emulated = " (emulated)" if reports[0].run.emulated else ""
    print(
        f"{reports[0].run.gpu_name}{emulated}: {len(reports)} sessions, {boards} boards, "
        f"{len(kernels)} kernels in common"
    )
    print()
    print(
        "| metric | between sessions | 95 % interval | explained by the sessions' own intervals |"
    )
    print("|---|---:|---:|---:|")
    for metric, one in found.items():
        print(f"| {metric} | {one.total:.3%} | {one.low:.3%} to {one.high:.3%} | {one.own:.3%} |")
    print()
    listed = ",".join(f"{metric}:{100 * one.total:.2g}%" for metric, one in found.items())
    print(f"--gpuenergy-session-sd {listed}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
