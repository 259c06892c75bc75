"""The actual SM clock of a kernel, second by second, with time and power.

    python bench/validation/clock_steps.py --json clock-steps.json [--kernel case5-fastest]

Needs a GPU and CuPy. Each graph of the kernel's launches begins with one block that records the
SM's cycle counter and the GPU's nanosecond timer: from one graph to another, these give the mean
clock to one part per million. NVML reports the requested clock.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import kernels
import numpy as np
import numpy.typing as npt

from pytest_gpuenergy.devices.cuda.graphs import GraphRepeater
from pytest_gpuenergy.devices.cuda.nvrtc import CompilerPool
from pytest_gpuenergy.devices.cuda.runner import CudaRunner
from pytest_gpuenergy.devices.device import Device, Timeline
from pytest_gpuenergy.devices.select import open_device
from pytest_gpuenergy.energy.counter import EnergyCounter
from pytest_gpuenergy.energy.sensors import read_conditions
from pytest_gpuenergy.energy.source import Edge
from pytest_gpuenergy.engine.verification import arenas_for
from pytest_gpuenergy.kernels.job import Job
from pytest_gpuenergy.record.conditions import Conditions
from pytest_gpuenergy.report.tables import markdown_table
from pytest_gpuenergy.support.errors import GpuEnergyError, InputError
from pytest_gpuenergy.support.files import write_atomically
from pytest_gpuenergy.support.paths import cache_dir
from pytest_gpuenergy.tvm.store import KernelStore

MOST_NOTES = 1 << 20
SOURCE = """
extern "C" __global__ void note(unsigned long long* notes, unsigned* count) {
  unsigned long long ns, cycles;
  unsigned sm;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns));
  asm volatile("mov.u64 %0, %%clock64;" : "=l"(cycles));
  asm volatile("mov.u32 %0, %%smid;" : "=r"(sm));
  unsigned at = 3 * (atomicAdd(count, 1u) & ((1u << 20) - 1));
  notes[at] = ns;
  notes[at + 1] = cycles;
  notes[at + 2] = sm;
}
"""
HEADER = ("second", "time (µs)", "SM clock (MHz)", "NVML says", "power (W)", "temperature (°C)")


@dataclass(frozen=True)
class Second:
    """One window between edges of the energy counter; clocks in MHz."""

    end_s: float
    time_us: float
    clock_mhz: float | None
    nvml_clock_mhz: int | None
    power_w: float
    temperature_c: int | None


class NotingRepeater(GraphRepeater):
    """Each graph begins with a note of cycles and nanoseconds."""

    def __init__(self, turns: Sequence[Any]) -> None:
        import cupy

        self._notes = cupy.zeros(3 * MOST_NOTES, dtype=cupy.uint64)
        self._count = cupy.zeros(1, dtype=cupy.uint32)
        self._note = cupy.RawModule(code=SOURCE).get_function("note")
        self._note((1,), (1,), (self._notes, self._count))  # loads it
        super().__init__(turns)

    def start(self) -> None:
        """As `GraphRepeater.start`; discards earlier notes."""
        self._count.data.memset(0, self._count.nbytes)
        super().start()

    def notes(self) -> npt.NDArray[np.int64]:
        """Nanoseconds, cycles and SM at the start of each turn: shape (turns, 3)."""
        count = int(self._count.get()[0])
        if count > MOST_NOTES:
            raise InputError("There are more graphs than can be recorded: study fewer seconds.")
        return self._notes.get()[: 3 * count].astype(np.int64).reshape(-1, 3)[:: self._replays]

    def _capture(self, enqueue: Any) -> Any:
        graph_begins = True

        def enqueue_noted() -> None:
            nonlocal graph_begins
            if graph_begins:
                graph_begins = False
                self._note((1,), (1,), (self._notes, self._count))
            enqueue()

        return super()._capture(enqueue_noted)


class NotingRunner(CudaRunner):
    """A runner in this process, with a `NotingRepeater`."""

    def load(self, *subject: Any) -> None:
        """Load as a bench does, for a hot cache."""
        super().load(*subject)
        turns = self._loaded()._turns
        self._repeater = NotingRepeater(turns)

    def notes(self) -> npt.NDArray[np.int64]:
        """See `NotingRepeater.notes`."""
        repeater = self._loaded()
        assert isinstance(repeater, NotingRepeater)
        return repeater.notes()


def seconds_of(
    edges: Sequence[Edge],
    times_s: Sequence[float],
    states: Sequence[Conditions],
    timeline: Timeline,
    notes: npt.NDArray[np.int64],
) -> list[Second]:
    """The clock, time and power from each edge to the next.

    Args:
        edges: about a second apart.
        times_s: of the edges.
        states: of the card at the edges.
        timeline: of the turns.
        notes: at the start of each turn, see `NotingRepeater.notes`.
    """
    found = []
    # Turn k ends at entry k + 1 of the timeline, where the next one begins.
    turns = [int(np.searchsorted(timeline.time_s, at_s)) for at_s in times_s]
    for number in range(len(edges) - 1):
        first, last = turns[number], min(turns[number + 1], len(notes) - 1)
        from_s, to_s = times_s[number], times_s[number + 1]
        (from_ns, from_cycles, from_sm), (to_ns, to_cycles, to_sm) = notes[[first, last]].tolist()
        launches = timeline.launches[last] - timeline.launches[first]
        busy_s = timeline.busy_s[last] - timeline.busy_s[first]
        known = from_sm == to_sm and to_ns > from_ns  # each SM has its own counter
        found.append(
            Second(
                end_s=to_s - times_s[0],
                time_us=1e6 * float(busy_s / launches),
                clock_mhz=1e3 * (to_cycles - from_cycles) / (to_ns - from_ns) if known else None,
                nvml_clock_mhz=states[number + 1].sm_clock_mhz,
                power_w=(edges[number + 1].energy_mj - edges[number].energy_mj)
                / 1e3
                / (to_s - from_s),
                temperature_c=states[number + 1].temperature_c,
            )
        )
    return found


def study(device: Device, name: str, seconds: int) -> list[Second]:
    """Run a kernel for this many seconds after the card has been idle."""
    with ExitStack() as stack:
        store = stack.enter_context(KernelStore())
        kernel, workload = kernels.named(name, kernels.RECORDS, store)
        pool = CompilerPool(device.architecture, cache_dir("cubin"))
        stack.callback(pool.close)
        arenas = dict(stack.enter_context(arenas_for(workload, seed=0)))
        job = Job.of(kernel, workload, apart=True)
        os.environ["CUDA_VISIBLE_DEVICES"] = device.uuid
        runner = NotingRunner()
        runner.load(job, pool.submit(kernel).result(), arenas)
        counter = EnergyCounter(device)
        runner.start()
        edges, states = [counter.probe()], [read_conditions(device)]
        periods = max(1, round(1 / counter.period_s))
        for _ in range(seconds):
            edges.append(counter.next_edge(periods))
            states.append(read_conditions(device))
        timeline = runner.stop()
        times_s, _ = counter.times_s(edges)
        return seconds_of(edges, times_s, states, timeline, runner.notes())


def table(found: Sequence[Second]) -> str:
    """As Markdown."""
    rows = [
        [
            f"{one.end_s:.1f}",
            f"{one.time_us:.4f}",
            "" if one.clock_mhz is None else f"{one.clock_mhz:.2f}",
            "" if one.nvml_clock_mhz is None else str(one.nvml_clock_mhz),
            f"{one.power_w:.1f}",
            "" if one.temperature_c is None else str(one.temperature_c),
        ]
        for one in found
    ]
    return markdown_table(HEADER, rows)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; exit code 2 if there is no GPU or something is missing."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kernel", default="case5-fastest", help="(default: case5-fastest)")
    parser.add_argument("--seconds", type=int, default=45, metavar="N", help="(default: 45)")
    parser.add_argument("--json", type=Path, required=True, metavar="PATH", help="File of results")
    arguments = parser.parse_args(argv)
    try:
        with open_device("auto") as device:
            if device.emulated:
                raise InputError("The emulated GPU has no cycle counter: use a real one.")
            about = {"gpu": device.name, "uuid": device.uuid, **device.describe()}
            found = study(device, arguments.kernel, arguments.seconds)
    except GpuEnergyError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    rows = [asdict(one) for one in found]
    content = {"about": about, "kernel": arguments.kernel, "seconds": rows}
    write_atomically(arguments.json, json.dumps(content, indent=1) + "\n")
    print(table(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
