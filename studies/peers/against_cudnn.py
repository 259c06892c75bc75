"""Compares our kernels with TVM's own tuner and cuDNN: time, energy and EDP of each workload.

    pytest bench --powercap current --gpuenergy-json ours.json
    pytest studies/peers --powercap current --tf32 --gpuenergy-json cudnn.json
    python studies/peers/against_cudnn.py ours.json cudnn.json --stock stock.json

Nothing is measured here. All reports or run folders must be from one model of GPU; ``stock.json``
is written by `studies/tuning/against_stock.py`. Each figure is the smallest among a side's kernels,
or cuDNN's memory formats, so those of one workload may come from different kernels. ``*`` marks
flagged figures.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import geometric_mean
from typing import Any

from pytest_gpuenergy.record import Measurement
from pytest_gpuenergy.report import load_report, markdown_table, merge
from pytest_gpuenergy.support import FormError, GpuEnergyError, InputError, convert

OURS, STOCK, CUDNN, TF32 = "ours", "TVM's tuner", "cuDNN", "cuDNN TF32"
SIDES = (OURS, STOCK, CUDNN, TF32)
STOCK_BENCH = "tuning/against_stock"
METRICS = {
    "time_ms": ("Time (µs)", 1e3, ".2f"),
    "energy_mj": ("Energy (mJ)", 1.0, ".3f"),
    "edp_mj_ms": ("Energy-delay product (mJ·ms)", 1.0, ".4g"),
}
AIM_MEAN, AIM_LEAST = 1.2, 0.9


@dataclass(frozen=True)
class Figure:
    """The smallest figure of a side, and its validity flags."""

    value: float
    flags: tuple[str, ...]


@dataclass(frozen=True)
class Row:
    """One workload and metric: the figure of each side that has one."""

    workload: str
    figures: dict[str, Figure]

    @property
    def advantage(self) -> float | None:
        """The figure of cuDNN divided by ours."""
        if OURS in self.figures and CUDNN in self.figures:
            return self.figures[CUDNN].value / self.figures[OURS].value
        return None


def side_of(measurement: Measurement) -> str | None:
    """The side whose kernel it is; None if it is neither ours nor cuDNN's."""
    kernel = measurement.kernel
    if kernel.origin != "callable":
        return OURS
    if not kernel.label.startswith("cudnn-"):
        return None
    return TF32 if kernel.label.endswith("-tf32") else CUDNN


def rows_of(sides: dict[str, Sequence[Measurement]], metric: str) -> list[Row]:
    """One row per workload, in order of first appearance."""
    best: dict[str, dict[str, Figure]] = {}
    for side in SIDES:
        for m in sides.get(side, ()):
            value = getattr(m, metric)
            if value is None:
                continue
            figures = best.setdefault(m.workload.name, {})
            if side not in figures or value < figures[side].value:
                figures[side] = Figure(value, m.validity)
    return [Row(name, figures) for name, figures in best.items()]


def table(rows: Sequence[Row], metric: str) -> str:
    """The rows as Markdown, with the geometric mean of our advantage."""
    heading, scale, form = METRICS[metric]
    shown = [side for side in SIDES if any(side in row.figures for row in rows)]
    lines = []
    for row in rows:
        cells = []
        for side in shown:
            figure = row.figures.get(side)
            doubt = "*" if figure and figure.flags else ""
            cells.append("" if figure is None else f"{figure.value * scale:{form}}{doubt}")
        lines.append([row.workload, *cells, _times(row.advantage)])
    advantages = advantages_of(rows)
    if advantages:
        mean = geometric_mean(advantages.values())
        lines.append(["geometric mean", *[""] * len(shown), _times(mean)])
    flags = sorted({flag for row in rows for f in row.figures.values() for flag in f.flags})
    notes = f"\n\n\\* flagged: {', '.join(flags)}." if flags else ""
    header = ["case", *shown, f"{CUDNN} / {OURS}"]
    return f"{heading}\n\n{markdown_table(header, lines)}{notes}"


def advantages_of(rows: Sequence[Row]) -> dict[str, float]:
    """Our advantage by workload, where both sides have a figure."""
    return {row.workload: row.advantage for row in rows if row.advantage is not None}


def verdict(advantages: dict[str, float], workloads: int) -> str:
    """One line that says whether the target is reached."""
    aim = f"a geometric mean of {AIM_MEAN}x cuDNN's speed and no workload under {AIM_LEAST}x"
    if not advantages:
        return f"The target, {aim}, cannot be judged: no workload has figures for both sides."
    mean = geometric_mean(advantages.values())
    least = min(advantages, key=lambda name: advantages[name])
    reached = mean >= AIM_MEAN and advantages[least] >= AIM_LEAST
    missing = workloads - len(advantages)
    left_out = f" ({missing} left out for lack of figures)" if missing else ""
    return (
        f"The target, {aim}, is {'reached' if reached else 'not reached'}: {mean:.3f}x over "
        f"{len(advantages)} workloads{left_out}, lowest {advantages[least]:.3f}x ({least})."
    )


def _times(ratio: float | None) -> str:
    return "" if ratio is None else f"{ratio:.3f}x"


def load_stock(path: Path, gpu: str) -> list[Measurement]:
    """The correct kernels of TVM's own tuner in a result file of `against_stock.py`.

    Raises:
        InputError: it is not such a file, or from a GPU other than ``gpu``.
    """
    try:
        content: Any = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read ({error}): name another file.") from None
    if not isinstance(content, dict) or content.get("bench") != STOCK_BENCH:
        raise InputError(f"{path} is not a result of {STOCK_BENCH}: name another file.")
    if content["about"]["gpu"] != gpu:
        raise InputError(f"{path} is from {content['about']['gpu']}, but the reports from {gpu}.")
    found = [
        one
        for result in content["results"].values()
        for one in result.get("kernels", {}).get("stock", ())
        if one.get("energy_mj") is not None
    ]
    try:
        return convert(found, list[Measurement])
    except FormError as error:
        raise InputError(f"{path} cannot be read ({error}): name another file.") from None


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; exit code 2 if a file cannot be used."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("report", nargs="+", type=Path, help="Reports or run folders of pytest")
    parser.add_argument("--stock", type=Path, metavar="PATH", help="Results of against_stock.py")
    parser.add_argument(
        "--cap", default="current", metavar="CAP", help="As in item ids (default: current)"
    )
    arguments = parser.parse_args(argv)
    try:
        report = merge([load_report(path) for path in arguments.report])
        sides: dict[str, list[Measurement]] = {side: [] for side in SIDES}
        for m in report.measurements:
            side = side_of(m)
            if side is not None and m.cap == arguments.cap:
                sides[side].append(m)
        if arguments.stock:
            sides[STOCK] = load_stock(arguments.stock, report.run.gpu_name)
        if not any(sides.values()):
            raise InputError(f"Nothing was measured at the cap {arguments.cap!r}: see --cap.")
    except GpuEnergyError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    run = report.run
    print(f"{run.gpu_name}{' (emulated)' if run.emulated else ''}, {arguments.cap}, ", end="")
    print(", ".join(f"{name} {run.software[name]}" for name in sorted(run.software)) + ".\n")
    for metric in METRICS:
        print(table(rows_of(sides, metric), metric) + "\n")
    rows = rows_of(sides, "time_ms")
    print(verdict(advantages_of(rows), len(rows)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
