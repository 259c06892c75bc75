"""How much the time of a launch differs from one loading of a kernel to the next, and by what.

    python bench/validation/loadings.py --json loadings.json [--kernels axpy,case5-fastest]

Needs a GPU and CuPy. Kernels and ways take turns, a process each. In a process a kernel is loaded;
then, for the same buffers and on another stream, its graphs are made once more, or its module and
its graphs; then it is loaded once more. The mean time of a launch is taken each time. Every second
process has proved its kernel right before. The ways to load are:

- scattered: as in a bench, the sets of buffers at random places;
- side-by-side: the sets follow one another in memory, where the driver puts them;
- modules: scattered, and with a module for each set.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from itertools import product
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

KERNELS = "axpy,case5-fastest,case7-fastest,case4-slowest"
HEAT_S, RUN_S = 0.35, 0.5
FACTORY = "loadings:Runner"
SCATTERED, SIDE_BY_SIDE, MODULES = WAYS = ("scattered", "side-by-side", "modules")
FIRST, GRAPHS, MODULE, ELSEWHERE = "first", "other graphs", "other module", "elsewhere"
HEADER = (
    "kernel",
    "way",
    "processes",
    "mean (µs)",
    "between processes",
    "by the sets",
    GRAPHS,
    MODULE,
    "loaded once more",
    "proved right before",
)

Subject = tuple[Kernel, Binary, Mapping[str, Arena], Mapping[str, Scalar]]
Row = dict[str, Any]


class Runner(CudaRunner):
    """Runs in the process that is studied."""

    _way = SCATTERED

    def load_in_a_way(self, subject: Subject, way: str) -> None:
        """`load`, as a bench does but for the ``way``."""
        self._way = way
        self.load(*subject, "hot", True)

    def make_once_more(self, subject: Subject, module: bool) -> None:
        """Graphs of the same buffers on another stream; the ``module`` too, if asked."""
        turns = self._loaded()._turns
        if module:
            self._cupy.clear_memo()  # where CuPy has its modules
            kernel, binary, arenas, scalars = subject
            turns = [self._bind(kernel, binary, buffers, arenas, scalars) for buffers in self._kept]
        # The graphs there are go only then, so that the new ones lie elsewhere.
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

    def _bind(self, *arguments: Any) -> Callable[[], None]:
        if self._way == MODULES:
            self._cupy.clear_memo()
        return super()._bind(*arguments)

    def _scattered_sets(self, count: int, *arguments: Any) -> list[dict[str, Any]]:
        make = self._sets if self._way == SIDE_BY_SIDE else super()._scattered_sets
        return make(count, *arguments)


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
        store = stack.enter_context(KernelStore())
        subjects: dict[str, Subject] = {}
        for name in arguments.kernels.split(","):
            kernel, workload = kernels.named(name, kernels.RECORDS, store)
            arenas = dict(stack.enter_context(arenas_for(workload, seed=0)))
            scalars = {scalar.name: scalar for scalar in workload.scalars}
            subjects[name] = (kernel, pool.submit(kernel).result(), arenas, scalars)
        following = _process(uuid)
        ways = arguments.ways.split(",")
        for number, way, name in product(range(arguments.processes), ways, subjects):
            if time.monotonic() > until_s:
                break
            process, following = following, _process(uuid)
            times = _times(process, subjects[name], number, way)
            process.kill()
            rows.append({"kernel": name, "way": way, "proved": _proves(number), "times": times})
            content = {"about": about, "rows": rows}
            write_atomically(arguments.json, json.dumps(content, indent=1) + "\n")
        following.kill()
    return rows


def _process(uuid: str) -> Worker:
    process = Worker(FACTORY, environment={"CUDA_VISIBLE_DEVICES": uuid})
    process.start()  # imports CuPy meanwhile
    return process


def _proves(number: int) -> bool:
    return number % 2 == 1


def _times(process: Worker, subject: Subject, number: int, way: str) -> dict[str, Any]:
    """What was found in the process of this ``number``."""

    def call(method: str, *given: object) -> Any:
        return process.call(method, *given, timeout_s=kernels.TIMEOUT_S)

    for _ in range(2 if _proves(number) else 0):
        call("run_once", *subject)
    # Only three times: after some ten thousand launches captured, all take longer.
    second = MODULE if number // 2 % 2 else GRAPHS
    times = {}
    for what in (FIRST, second, ELSEWHERE):
        if what == second:
            call("make_once_more", subject, what == MODULE)
        else:
            call("load_in_a_way", subject, way)
        mean_us, sets_us = call("times_us")
        times[what] = {"mean_us": mean_us, "sets_us": sets_us}
    return times


def table(rows: Sequence[Row]) -> str:
    """Standard deviations as fractions of the mean, as Markdown.

    ``between processes`` is what was seen of the first loadings; ``by the sets`` what their sets of
    buffers would make of it if each were a sample of its own; the next three are of one process;
    the last is a difference of means, with its standard error.
    """
    groups = dict.fromkeys((row["kernel"], row["way"]) for row in rows)
    cells = [
        [*group, *_cells([row for row in rows if (row["kernel"], row["way"]) == group])]
        for group in groups
    ]
    return markdown_table(HEADER, cells, text=(0, 1))


def _cells(rows: Sequence[Row]) -> list[str]:
    first = [row["times"][FIRST] for row in rows]
    means_us = [one["mean_us"] for one in first]
    mean_us = fmean(means_us)
    of_sets = [
        variance(one["sets_us"]) / len(one["sets_us"]) for one in first if one["sets_us"][1:]
    ]
    return [
        str(len(rows)),
        f"{mean_us:.4f}",
        f"{stdev(means_us) / mean_us:.3%}" if len(rows) > 1 else "",
        f"{math.sqrt(fmean(of_sets)) / mean_us:.3%}" if of_sets else "",
        *(_of_pairs(rows, what, mean_us) for what in (GRAPHS, MODULE, ELSEWHERE)),
        _difference(rows, mean_us),
    ]


def _of_pairs(rows: Sequence[Row], what: str, mean_us: float) -> str:
    """The standard deviation of one time, by pairs of the first and another."""
    all_times = [row["times"] for row in rows if what in row["times"]]
    squares = [(times[what]["mean_us"] - times[FIRST]["mean_us"]) ** 2 / 2 for times in all_times]
    return f"{math.sqrt(fmean(squares)) / mean_us:.3%}" if squares else ""


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
    parser.add_argument(
        "--processes",
        type=int,
        default=12,
        metavar="N",
        help="Of each kernel and way (default: 12)",
    )
    parser.add_argument("--budget-s", type=float, metavar="S", help="Begin no process later")
    parser.add_argument("--ways", default=SCATTERED, metavar="LIST", help=f"Of {', '.join(WAYS)}")
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
