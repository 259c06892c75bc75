"""How long must a turn of a comparison be?

    python studies/turn_windows.py bench/results/nvidia-h200-2026-11-30/comparison-turns.json.gz

Takes turns of 2.3 s in which two kernels ran alternately, each turn a loading of its own. Figures
of shorter windows are compared with those of the same turn from 0.6 s on, and turns of a kernel
with one another.
"""

from __future__ import annotations

import gzip
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from study_command import in_one_sentence, study_parser

from pytest_gpuenergy.report import markdown_table

WINDOWS = ((0.1, 0.4), (0.2, 0.5), (0.3, 0.6), (0.3, 0.9), (0.6, 1.2), (0.8, 1.4))
WHOLE = (0.6, 2.4)
_LATE_S = 0.03
"""How much later than asked for a window may end: it ends at an update of the energy counter."""


class Figures(NamedTuple):
    """The logarithms of the figures of a launch."""

    time: float
    energy: float
    edp: float


def figures_of(turn: dict[str, Any], begin_s: float, end_s: float) -> Figures:
    """Return the figures between the updates of the counter in a window of a turn."""
    moments_s, energies_mj = np.array(turn["edges"]).T
    first = int(np.searchsorted(moments_s, begin_s))
    last = int(np.searchsorted(moments_s, end_s + _LATE_S)) - 1
    ends = [first, last]
    launches = np.diff(np.interp(moments_s[ends], turn["times_s"], turn["launches"]))[0]
    time = float(np.log(np.diff(moments_s[ends])[0] / launches))
    energy = float(np.log(np.diff(energies_mj[ends])[0] / launches))
    return Figures(time, energy, time + energy)


@in_one_sentence
def main(words: Sequence[str] | None = None) -> None:
    """Print two tables."""
    parser = study_parser(__doc__)
    parser.add_argument("turns", type=Path, help="The turns")
    with gzip.open(parser.parse_args(words).turns) as file:
        turns = json.load(file)["turns"]
    whole = np.array([figures_of(turn, *WHOLE) for turn in turns])
    rows = []
    for begin_s, end_s in WINDOWS:
        apart = 100 * (np.array([figures_of(turn, begin_s, end_s) for turn in turns]) - whole)
        moments = apart.mean(0), apart.std(0, ddof=1)
        cells = (f"{mean:+.2f} ± {sd:.2f} %" for mean, sd in zip(*moments, strict=True))
        rows.append([f"{begin_s} to {end_s} s", *cells])
    print(markdown_table(["window", *Figures._fields], rows), "\n")
    slower = whole[:, 0] > whole[:, 0].mean()
    rows = [
        [name, *(f"{sd:.2f} %" for sd in 100 * whole[side].std(0, ddof=1))]
        for name, side in (("baseline", slower), ("variant", ~slower))
    ]
    print(markdown_table(["from turn to turn", *Figures._fields], rows))


if __name__ == "__main__":
    sys.exit(main())
