"""Whether runs of unchanged kernels agree better at the same temperature than when settled.

    python studies/aa_temperature.py aa-*.json ...

Takes reports of repeated runs (`studies/aa_runs.sh`) and compares each pair of runs on one board,
kernel by kernel, in three ways: the settled energies, as the gate does; the energies as they were
measured; and these, brought to the same temperature by the records' own change per kelvin. It
prints the root mean squares of the relative differences, beside the standard deviation that the
records declare for what settling leaves open.
"""

from __future__ import annotations

import itertools
import math
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from study_command import in_one_sentence, study_parser

from pytest_gpuenergy.record import Measurement
from pytest_gpuenergy.report import load_report, markdown_table

_APART_K = (0.0, 1.0, 3.0, math.inf)
"""The bounds of the groups of pairs, by the difference of their temperatures."""


class Difference(NamedTuple):
    """The differences of one kernel's energy between two runs, as fractions."""

    apart_k: float
    settled: float
    measured: float
    at_same_temperature: float
    declared_sd: float


def difference(base: Measurement, new: Measurement) -> Difference | None:
    """Compare two measurements of a kernel; None if one lacks a temperature or an energy."""
    figures = [
        (one.energy_mj, one.raw_energy_mj, one.temperature_c, one.settling_error)
        for one in (base, new)
    ]
    if any(None in one for one in figures):
        return None
    (settled_0, raw_0, first_c, error_0), (settled_1, raw_1, second_c, error_1) = figures
    per_k = [one.energy_change_per_k for one in (base, new)]  # None at the power limit
    change = 0.0 if None in per_k else sum(per_k) / 2
    measured, apart_k = math.log(raw_1 / raw_0), second_c - first_c
    return Difference(
        abs(apart_k),
        math.log(settled_1 / settled_0),
        measured,
        measured - change * apart_k,
        math.hypot(error_0, error_1),
    )


def differences(paths: Sequence[Path]) -> Iterator[Difference]:
    """Yield the differences of all pairs of runs of one board."""
    boards: dict[str, list[dict[str, Measurement]]] = defaultdict(list)
    for path in paths:
        found = {
            f"{one.workload.name} {one.kernel.digest}": one
            for one in load_report(path).measurements
            if one.measured
        }
        for uuid in {one.gpu_uuid for one in found.values()}:
            boards[uuid].append(found)
    for runs in boards.values():
        for base, new in itertools.combinations(runs, 2):
            for name in base.keys() & new.keys():
                if (one := difference(base[name], new[name])) is not None:
                    yield one


@in_one_sentence
def main(words: Sequence[str] | None = None) -> None:
    """Run the command."""
    parser = study_parser(__doc__)
    parser.add_argument("reports", nargs="+", type=Path)
    arguments = parser.parse_args(words)
    found = np.array([*differences(arguments.reports)])
    rows = []
    for low, high in itertools.pairwise(_APART_K):
        group = found[(found[:, 0] >= low) & (found[:, 0] < high), 1:]
        if len(group):
            squares = np.sqrt((group**2).mean(axis=0))
            rows.append(
                [f"{low:g} to {high:g} K", str(len(group)), *(f"{one:.2%}" for one in squares)]
            )
    heads = ["apart", "pairs", "settled", "measured", "same temperature", "declared"]
    print(markdown_table(heads, rows))


if __name__ == "__main__":
    sys.exit(main())
