"""How much of a session's error do its items have in common?

    python studies/aa_joint.py aa-*.json ...

Takes reports of repeated runs of unchanged kernels (`studies/aa_runs.sh`), and splits the scatter
of their energies on each board: a part that all items of a run share, and each item's own part (a
two-way analysis of variance without interaction). The first cancels where items of one run are
compared. The last column is what the records declare for settling.
"""

from __future__ import annotations

import math
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from study_command import in_one_sentence, study_parser

from pytest_gpuenergy.record import Measurement
from pytest_gpuenergy.report import load_report, markdown_table

HEADER = ("card", "runs", "items", "in common", "each item's own", "declared")


def rows(paths: Sequence[Path]) -> Iterator[list[str]]:
    """Yield a row of the table for each board with at least three runs."""
    boards: dict[tuple[str, str | None], list[dict[str, Measurement]]] = defaultdict(list)
    for path in paths:
        report = load_report(path)
        found = {
            f"{item.workload.name} {item.kernel.digest}": item
            for item in report.measurements
            if item.energy_mj
        }
        for uuid in {item.gpu_uuid for item in found.values()}:
            boards[report.run.gpu_name, uuid].append(found)
    for (name, _), runs in boards.items():
        shared = sorted(set(runs[0]).intersection(*runs[1:]))
        if len(runs) < 3 or len(shared) < 3:
            continue
        energies = np.log([[run[key].energy_mj or math.nan for key in shared] for run in runs])
        declared = [run[key].settling_error or 0.0 for run in runs for key in shared]
        count, items = energies.shape
        off = energies - energies.mean(axis=0)
        of_run = off.mean(axis=1, keepdims=True)
        own = float(((off - of_run) ** 2).sum()) / ((count - 1) * (items - 1))
        common = float((of_run**2).sum()) / (count - 1) - own / items
        figures = (
            math.sqrt(max(0.0, common)),
            math.sqrt(own),
            math.sqrt(np.square(declared).mean()),
        )
        yield [name, str(count), str(items), *(f"{100 * value:.2f} %" for value in figures)]


@in_one_sentence
def main(words: Sequence[str] | None = None) -> None:
    """Print a table in Markdown."""
    parser = study_parser(__doc__)
    parser.add_argument("reports", type=Path, nargs="+", help="reports of runs of the same kernels")
    print(markdown_table(HEADER, list(rows(parser.parse_args(words).reports))))


if __name__ == "__main__":
    sys.exit(main())
