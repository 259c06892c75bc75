"""How often the intervals of boards' gains, and of energies calibrated by them, hold: a simulation.

Board 0 draws 4 % more than the others. Prints the figures of docs/notes/board-gains.md.
"""

from __future__ import annotations

import argparse
import math
import random
import sys
from pathlib import Path
from statistics import fmean

from pytest_gpuenergy.report import Boards

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from board_reports import simulated

GAIN = 1.04


def main() -> None:
    """Simulate runs for several numbers of boards and scatters of kernels."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=2000, help="Boards of each line, about")
    runs = parser.parse_args().runs
    for count in (2, 4, 8, 64):
        gains = {f"GPU-{number}": 1.0 if number else GAIN for number in range(count)}
        truth = GAIN ** (1 - 1 / count)
        mean_mj = 10 * math.exp(fmean(map(math.log, gains.values())))
        for kernel_sd in (0.002, 0.0066, 0.0093, 0.013):
            draw = random.Random(20)
            held, widths, calibrated = [], [], []
            for _ in range(min(runs, 8 * runs // count)):
                report = simulated(gains, draw, kernel_sd=kernel_sd, items=1)
                boards = Boards(report)
                found = boards.gains[0].energy
                assert found is not None
                held.append(found.low <= truth <= found.high)
                widths.append(found.relative_half_width)
                for m in report.measurements:
                    ends = boards.calibrated(m).energy_calibrated_mj_ci95
                    assert ends is not None
                    calibrated.append(ends.low <= mean_mj <= ends.high)
            print(
                f"{count} boards, kernels {kernel_sd:.2%}: gain held {fmean(held):.1%}, "
                f"half width {fmean(widths):.2%}, calibrated held {fmean(calibrated):.1%}",
                flush=True,
            )


if __name__ == "__main__":
    main()
