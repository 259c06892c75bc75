"""How much the time of a launch differs from one loading of a kernel to the next, and by what.

    python bench/validation/loadings.py --json loadings.json [--kernels axpy,case5-fastest]
    python bench/validation/loadings.py --json side-by-side.json --side-by-side

Needs a GPU and CuPy. The kernels take turns, a process each. In a process a kernel is loaded as in
a bench, then its graphs are made once more for the same buffers, on another stream, then it is
loaded once more; the mean time of a launch is taken each time. Every second process has proved its
kernel right before. With ``--side-by-side`` the sets of buffers follow one another in memory, where
the driver puts them.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import fmean, stdev, variance
from typing import Any

import kernels
import numpy as np

from pytest_gpuenergy.devices.cuda_runner import CudaRunner
from pytest_gpuenergy.devices.device import Arena
from pytest_gpuenergy.devices.nvrtc import Binary, CompilerPool
from pytest_gpuenergy.devices.replay import GraphRepeater
from pytest_gpuenergy.devices.select import open_device
from pytest_gpuenergy.errors import GpuEnergyError, InputError
from pytest_gpuenergy.files import write_atomically
from pytest_gpuenergy.kernels.kernel import Kernel
from pytest_gpuenergy.paths import cache_dir
from pytest_gpuenergy.report.tables import markdown_table
from pytest_gpuenergy.tuning.lowering import KernelStore
from pytest_gpuenergy.verification import arenas_for
from pytest_gpuenergy.worker import Worker
from pytest_gpuenergy.workloads.workload import Scalar

RECORDS = Path(__file__).parents[1] / "records" / "nvidia-h200"
KERNELS = "axpy,case5-fastest,case7-fastest,case4-slowest"
HEAT_S, RUN_S = 0.35, 0.5
TIMEOUT_S = 60.0
FACTORY = "loadings:Runner"
FIRST, OTHER_GRAPHS, ELSEWHERE = "first", "other graphs", "elsewhere"
HEADER = (
    "kernel",
    "processes",
    "mean (µs)",
    "between processes",
    "by the sets",
    "other graphs",
    "loaded once more",
    "proved right before",
)

Row = dict[str, Any]


class Runner(CudaRunner):
    """Runs in the process that is studied."""

    _side_by_side = False

    def load_as_in_a_bench(
        self,
        kernel: Kernel,
        binary: Binary,
        arenas: Mapping[str, Arena],
        scalars: Mapping[str, Scalar],
        side_by_side: bool,
    ) -> None:
        """`load`, with or without gaps between the sets of buffers."""
        self._side_by_side = side_by_side
        self.load(kernel, binary, arenas, scalars, "hot", True)

    def make_graphs(self) -> None:
        """Once more, of the same buffers, on another stream."""
        turns = self._loaded()._turns
        self._repeater = None
        self._repeater = GraphRepeater(turns)

    def times_us(self) -> tuple[float, list[float]]:
        """Mean time of a launch, in all and by sets of buffers, after some heating up."""
        self.start()
        time.sleep(HEAT_S + RUN_S)
        timeline = self.stop()
        begun = timeline.time_s[1:] > timeline.time_s[0] + HEAT_S
        launches, busy_s = np.diff(timeline.launches), np.diff(timeline.busy_s)
        turn = np.arange(len(begun)) % timeline.placements
        sets = [begun & (turn == number) for number in range(timeline.placements)]
        return (
            1e6 * float(busy_s[begun].sum() / launches[begun].sum()),
            [1e6 * float(busy_s[own].sum() / launches[own].sum()) for own in sets if own.any()],
        )

    def _distances(self, sets: int) -> list[int]:
        return [0] * sets if self._side_by_side else super()._distances(sets)


def study(arguments: argparse.Namespace) -> list[Row]:
    """A row for each process; the file is written anew after every one."""
    until_s = time.monotonic() + (arguments.budget_s or math.inf)
    rows: list[Row] = []
    with ExitStack() as stack:
        with open_device("auto") as device:
            if device.emulated:
                raise InputError("Memory has no places on the emulated GPU: take a real one.")
            uuid, architecture = device.uuid, device.architecture
            about = {"gpu": device.name, "uuid": uuid, **device.describe()}
        pool = CompilerPool(architecture, cache_dir("cubin"))
        stack.callback(pool.close)
        subjects = {}
        store = stack.enter_context(KernelStore())
        for name in arguments.kernels.split(","):
            kernel, workload = kernels.named(name, RECORDS, store)
            arenas = dict(stack.enter_context(arenas_for(workload, seed=0)))
            scalars = {scalar.name: scalar for scalar in workload.scalars}
            subjects[name] = (kernel, pool.submit(kernel).result(), arenas, scalars)
        following = _process(uuid)
        for number in range(arguments.processes):
            for name, subject in subjects.items():
                if time.monotonic() > until_s:
                    break
                process, following = following, _process(uuid)
                row = _row(process, subject, number % 2 == 1, arguments.side_by_side)
                process.kill()
                rows.append({"kernel": name, **row})
                settings = {"side_by_side": arguments.side_by_side}
                content = {"about": about, "settings": settings, "rows": rows}
                write_atomically(arguments.json, json.dumps(content, indent=1) + "\n")
        following.kill()
    return rows


def _process(uuid: str) -> Worker:
    process = Worker(FACTORY, environment={"CUDA_VISIBLE_DEVICES": uuid})
    process.start()  # imports CuPy meanwhile
    return process


def _row(process: Worker, subject: tuple[Any, ...], proved: bool, side_by_side: bool) -> Row:
    for _ in range(2 if proved else 0):
        process.call("run_once", *subject, timeout_s=TIMEOUT_S)
    times = {}
    for what in (FIRST, OTHER_GRAPHS, ELSEWHERE):
        if what == OTHER_GRAPHS:
            process.call("make_graphs", timeout_s=TIMEOUT_S)
        else:
            process.call("load_as_in_a_bench", *subject, side_by_side, timeout_s=TIMEOUT_S)
        mean_us, sets_us = process.call("times_us", timeout_s=TIMEOUT_S)
        times[what] = {"mean_us": mean_us, "sets_us": sets_us}
    return {"proved": proved, "times": times}


def table(rows: Sequence[Row]) -> str:
    """Standard deviations as fractions of the mean, as Markdown.

    ``between processes`` is what was seen of the first loadings; ``by the sets`` what their sets of
    buffers would make of it if each were a sample of its own; the next two of one process; the last
    is a difference of means, with its standard error.
    """
    names = dict.fromkeys(row["kernel"] for row in rows)
    cells = [_cells(name, [row for row in rows if row["kernel"] == name]) for name in names]
    return markdown_table(HEADER, cells, text=(0,))


def _cells(name: str, rows: Sequence[Row]) -> list[str]:
    first, graphs, elsewhere = (
        [row["times"][what]["mean_us"] for row in rows] for what in (FIRST, OTHER_GRAPHS, ELSEWHERE)
    )
    mean_us = fmean(first)
    sets = [row["times"][FIRST]["sets_us"] for row in rows]
    of_sets = [variance(times) / len(times) for times in sets if len(times) > 1]
    return [
        name,
        str(len(rows)),
        f"{mean_us:.4f}",
        f"{stdev(first) / mean_us:.3%}" if len(first) > 1 else "",
        f"{math.sqrt(fmean(of_sets)) / mean_us:.3%}" if of_sets else "",
        f"{_of_pairs(first, graphs) / mean_us:.3%}",
        f"{_of_pairs(first, elsewhere) / mean_us:.3%}",
        _difference(rows, mean_us),
    ]


def _of_pairs(left: Sequence[float], right: Sequence[float]) -> float:
    """The standard deviation of one, by pairs of two."""
    return math.sqrt(fmean((a - b) ** 2 / 2 for a, b in zip(left, right, strict=True)))


def _difference(rows: Sequence[Row], mean_us: float) -> str:
    with_it, without = (
        [row["times"][FIRST]["mean_us"] for row in rows if row["proved"] is proved]
        for proved in (True, False)
    )
    if min(len(with_it), len(without)) < 2:
        return ""
    error_us = math.sqrt(sum(variance(some) / len(some) for some in (with_it, without)))
    difference_us = fmean(with_it) - fmean(without)
    return f"{difference_us / mean_us:+.3%} ± {error_us / mean_us:.3%}"


def main(argv: Sequence[str] | None = None) -> int:
    """Exit code 2 when there is no GPU, or something is missing."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kernels", default=KERNELS, metavar="LIST", help=f"(default: {KERNELS})")
    parser.add_argument("--processes", type=int, default=12, metavar="N", help="Of each (12)")
    parser.add_argument("--budget-s", type=float, metavar="S", help="Begin no process later")
    parser.add_argument("--side-by-side", action="store_true", help="Sets without gaps")
    parser.add_argument("--json", type=Path, required=True, metavar="PATH", help="What was found")
    arguments = parser.parse_args(argv)
    # The processes import this file.
    path = [str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    os.environ["PYTHONPATH"] = os.pathsep.join(path)
    try:
        print(table(study(arguments)))
    except GpuEnergyError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
