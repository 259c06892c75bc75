"""How much of what differs between runs of unchanged kernels goes with the SM clock or temperature.

    python studies/aa_covariates.py aa-*.json
    python studies/aa_covariates.py --kernels bench/results/*/gemm-float32-small.json

Takes reports of repeated runs (`studies/aa_runs.sh`). Prints, for each GPU model, the standard
deviation of a kernel's figures between runs on one board, as it is and with a covariate removed by
least squares, whose exponent (per kelvin for temperatures) is common to all kernels. Kernels at a
power limit are left out, because the limit moves their clock. With ``--kernels`` it prints, for
each report, how much the clocks differ between kernels of the same workload.
"""

from __future__ import annotations

import math
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from study_command import in_one_sentence, study_parser

from pytest_gpuenergy.record import METRICS, Measurement
from pytest_gpuenergy.report import load_report, markdown_table

COVARIATES = ("SM clock", "temperature", "settled temperature")


def row_of(m: Measurement) -> list[float] | None:
    """Return the logarithms of the figures, and the covariates; None if one is unknown."""
    clock, kelvins = m.effective_sm_clock_mhz, (m.temperature_c, m.settled_temperature_c)
    figures = [m.figure(metric) for metric in METRICS]
    if clock is None or None in kelvins or None in figures or m.cap_binding:
        return None
    return [*(math.log(one) for one in figures if one), math.log(clock), *(k for k in kelvins if k)]


def remaining(
    kernels: Sequence[npt.NDArray[np.float64]], figure: int, covariate: int | None
) -> tuple[float, float]:
    """Return the standard deviation between runs, and the covariate's exponent.

    Args:
        kernels: for each kernel on each board, the rows of its runs.
        figure: the column of the figure.
        covariate: the column to remove; None to remove nothing.
    """
    centred = np.concatenate([rows - rows.mean(axis=0) for rows in kernels])
    degrees = sum(len(rows) - 1 for rows in kernels)
    values, slope = centred[:, figure], 0.0
    if covariate is not None:
        by = centred[:, covariate]
        slope = float(by @ values / (by @ by))
        values, degrees = values - slope * by, degrees - 1
    return math.sqrt(float(values @ values) / degrees), slope


def table(
    models: Mapping[str, Mapping[object, Sequence[Sequence[float]]]],
) -> list[list[str]]:
    """Return a row for each GPU model and metric."""
    rows = []
    for model, found in models.items():
        kernels = [np.array(runs) for runs in found.values() if len(runs) > 1]
        for place, metric in enumerate(METRICS):
            cells = [f"{remaining(kernels, place, None)[0]:.2%}"]
            for number in range(len(COVARIATES)):
                sd, slope = remaining(kernels, place, len(METRICS) + number)
                cells.append(f"{sd:.2%} ({slope:+.3g})")
            rows.append([model, metric.label, str(sum(map(len, kernels))), *cells])
    return rows


def clock_spread(measurements: Sequence[Measurement]) -> tuple[int, float, float]:
    """Return kernels that share a workload, the deviation of their clocks in it, and the range."""
    workloads: dict[str, list[float]] = defaultdict(list)
    for m in measurements:
        if m.measured and m.effective_sm_clock_mhz and not m.cap_binding and not m.validity:
            workloads[m.workload.name].append(math.log(m.effective_sm_clock_mhz))
    found = [np.array(clocks) for clocks in workloads.values() if len(clocks) > 1]
    if not found:
        return 0, 0.0, 0.0
    squares = sum(float(((one - one.mean()) ** 2).sum()) for one in found)
    degrees = sum(len(one) - 1 for one in found)
    return sum(map(len, found)), math.sqrt(squares / degrees), max(float(np.ptp(o)) for o in found)


@in_one_sentence
def main(words: Sequence[str] | None = None) -> None:
    """Print a table."""
    parser = study_parser(__doc__)
    parser.add_argument("reports", nargs="+", type=Path, metavar="REPORT")
    parser.add_argument("--kernels", action="store_true", help="Compare kernels of one report")
    parser.add_argument("--without", default="", help="A workload to leave out")
    arguments = parser.parse_args(words)
    reports = {path: load_report(path) for path in arguments.reports}
    if arguments.kernels:
        spreads = [(path.name, *clock_spread(one.measurements)) for path, one in reports.items()]
        cells = [
            [name, str(count), f"{sd:.2%}", f"{most:.2%}"] for name, count, sd, most in spreads
        ]
        print(markdown_table(["report", "kernels", "clock", "largest range"], cells))
        return
    models: dict[str, dict[object, list[list[float]]]] = defaultdict(lambda: defaultdict(list))
    for report in reports.values():
        for m in report.measurements:
            if m.workload.name != arguments.without and (row := row_of(m)) is not None:
                board = m.gpu_uuid or report.run.gpu_uuid
                models[report.run.gpu_name][board, m.workload.name, m.kernel.digest].append(row)
    heads = ["GPU", "metric", "figures", "between runs", *(f"without {c}" for c in COVARIATES)]
    print(markdown_table(heads, table(models)))


if __name__ == "__main__":
    sys.exit(main())
