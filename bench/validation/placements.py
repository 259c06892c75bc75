"""What a kernel's time depends on besides the kernel: its graph, its module, its buffers' places.

    python bench/validation/placements.py [--records DIR] | tee placements.txt

Needs a GPU, CuPy and TVM (for case5's fastest kernel, the shipped one or that of ``DIR``). Every
figure is the mean time of a launch in us over a quarter of a second of CUDA-graph replays, after a
second and a half of running. A row is one thing made anew each time, all else being the same:

- nothing: the same graph again;
- the graph, of the same launches;
- the graph's length, in launches;
- the module;
- the buffers: eight sets that exist side by side, in two passes over them;
- the buffers, freed before the next are made;
- likewise, 128 KiB longer, as guard bands make them.

Before that, axpy is loaded eight times as in a search, in one worker process with one set of
buffers, and eight times as in a bench, in a process of its own with several sets that take turns.
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import cupy
import kernels
import numpy as np
from kernels import AXPY_FACTOR, AXPY_SIZE, RECORDS, SOURCES, TIMEOUT_S

from pytest_gpuenergy.devices.device import GUARD_BYTES
from pytest_gpuenergy.devices.select import open_device
from pytest_gpuenergy.kernels.records import find_records, load_records
from pytest_gpuenergy.tuning.lowering import KernelStore
from pytest_gpuenergy.tuning.timing import median_time_ms
from pytest_gpuenergy.verification import arenas_for
from pytest_gpuenergy.workloads import find_workload

ELEMENTS_PER_BLOCK = 1024  # of axpy: four of each of 256 threads
RUN_S, HEAT_S = 0.25, 1.5
IN_FLIGHT = 3
SETS = 8
GUARD_FLOATS = 2 * GUARD_BYTES // 4

Buffers = Mapping[str, Any]
Enqueue = Callable[[], object]
_numbers = itertools.count()


class Subject:
    """A kernel, and how many launches of it take about 4 ms."""

    def __init__(
        self,
        name: str,
        source: str,
        launches: Sequence[tuple[str, Any, Any, Sequence[str]]],
        sizes: Mapping[str, int],
        count: int,
        scalars: Mapping[str, Any] | None = None,
    ) -> None:
        self.name = name
        self.count = count
        self._source = source
        self._launches = launches
        self._sizes = sizes
        self._scalars = dict(scalars or {})

    def module(self) -> Any:
        """The kernel compiled and loaded anew: a macro keeps CuPy from giving one it has."""
        options = ("-std=c++17", f"-DMODULE={next(_numbers)}")
        return cupy.RawModule(code=self._source, options=options)

    def buffers(self, more: int = 0) -> Buffers:
        """Buffers of random numbers, float32, with so many elements ``more`` than it takes."""
        draw = np.random.default_rng(0).standard_normal
        return {
            name: cupy.asarray(draw(size + more, dtype=np.float32))
            for name, size in self._sizes.items()
        }

    def bind(self, module: Any, buffers: Buffers) -> Enqueue:
        """A function that launches the kernel once."""
        values = {**buffers, **self._scalars}
        plan = [
            (module.get_function(entry), tuple(grid), tuple(block), tuple(values[n] for n in names))
            for entry, grid, block, names in self._launches
        ]

        def enqueue() -> None:
            for function, grid, block, arguments in plan:
                function(grid, block, arguments)

        return enqueue


def axpy() -> Subject:
    """The bandwidth of the L2."""
    blocks = AXPY_SIZE // ELEMENTS_PER_BLOCK
    launch = ("axpy", (blocks,), (256,), ("x", "y", "out", "factor"))
    sizes = dict.fromkeys(("x", "y", "out"), AXPY_SIZE)
    factor = {"factor": np.float32(AXPY_FACTOR)}
    return Subject("axpy", (SOURCES / "axpy.cu").read_text(), [launch], sizes, 2000, factor)


def case5(records: Path) -> Subject:
    """Its fastest kernel in a folder of records."""
    workload = find_workload("case5")
    with KernelStore() as store:
        kernel = store.kernel(load_records(find_records(records, workload)), 1)
    tensors = [*workload.tensors, *kernel.workspaces]
    return Subject(
        "case5",
        kernel.source,
        [(launch.entry, launch.grid, launch.block, launch.arguments) for launch in kernel.launches],
        {tensor.name: int(np.prod(tensor.shape)) for tensor in tensors},
        300,
    )


def capture(enqueue: Enqueue, count: int, stream: Any) -> Any:
    """A CUDA graph of ``count`` calls."""
    with stream:
        stream.begin_capture()
        for _ in range(count):
            enqueue()
        graph = stream.end_capture()
        graph.upload(stream)
    return graph


def time_us(graph: Any, count: int, stream: Any, run_s: float = RUN_S) -> float:
    """Mean time of a launch, replaying back to back; the first third does not count."""
    times_ms, pending = [], deque[tuple[Any, Any]]()
    until_s = time.monotonic() + run_s
    with stream:
        while pending or time.monotonic() < until_s:
            while len(pending) < IN_FLIGHT and time.monotonic() < until_s:
                begin, end = (cupy.cuda.Event(block=True) for _ in range(2))
                begin.record(stream)
                graph.launch(stream)
                end.record(stream)
                pending.append((begin, end))
            begin, end = pending.popleft()
            end.synchronize()
            times_ms.append(cupy.cuda.get_elapsed_time(begin, end))
    counted = times_ms[len(times_ms) // 3 :]
    return float(1e3 * np.mean(counted) / count)


def study(subject: Subject) -> None:
    """Print the rows of one kernel."""
    stream, count = cupy.cuda.Stream(non_blocking=True), subject.count
    module, buffers = subject.module(), subject.buffers()
    enqueue = subject.bind(module, buffers)
    enqueue()
    cupy.cuda.Device().synchronize()

    def timed(enqueue: Enqueue, launches: int = count) -> float:
        return time_us(capture(enqueue, launches, stream), launches, stream)

    def tell(what: str, times_us: Sequence[float]) -> None:
        print(f"{subject.name:<6}{what:<22}", *(f"{value:.4f}" for value in times_us), flush=True)

    graph = capture(enqueue, count, stream)
    time_us(graph, count, stream, HEAT_S)
    tell("nothing", [time_us(graph, count, stream) for _ in range(5)])
    tell("graph", [timed(enqueue) for _ in range(8)])
    for launches in (count // 16, count // 4, count // 2, count, 2 * count):
        tell(f"graph of {launches}", [timed(enqueue, launches) for _ in range(3)])
    tell("module", [timed(subject.bind(subject.module(), buffers)) for _ in range(6)])
    sets = [subject.buffers() for _ in range(SETS)]
    for which in ("buffers", "the same once more"):
        tell(which, [timed(subject.bind(module, one)) for one in sets])
    del sets
    for what, more in (("buffers, freed", 0), ("longer, freed", GUARD_FLOATS)):
        tell(what, [timed(subject.bind(module, subject.buffers(more))) for _ in range(6)])


def load_axpy() -> None:
    """Print the times of axpy in one loading after the other."""
    kernel, workload = kernels.axpy()
    scalars = {scalar.name: scalar for scalar in workload.scalars}
    with open_device("auto") as device, arenas_for(workload, seed=0) as arenas:
        for what, apart in (("as in a search", False), ("as in a bench", True)):
            times_us = []
            for run_s in (HEAT_S, *[RUN_S] * (SETS - 1)):
                with device.repeat(
                    kernel, arenas, scalars, work=None, timeout_s=TIMEOUT_S, apart=apart
                ) as repeater:
                    repeater.start()
                    device.clock.sleep_s(run_s)
                    times_us.append(1e3 * median_time_ms(repeater.stop()))
            print(f"axpy  {what:<22}", *(f"{value:.4f}" for value in times_us), flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--records", type=Path, default=RECORDS, metavar="DIR")
    arguments = parser.parse_args()
    load_axpy()
    cupy.cuda.set_allocator(None)
    for subject in (axpy(), case5(arguments.records)):
        study(subject)
