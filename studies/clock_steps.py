"""The effective SM clock of a kernel, second by second, with time and power.

    python studies/clock_steps.py --json clock-steps.json [--kernel case5-fastest]

On the emulated GPU, ``GPUENERGY_EMULATED_FAULTS='{"clock_states": true}'`` makes the clock step.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "bench" / "validation"))

import kernels
import numpy as np

from pytest_gpuenergy.devices import Device, Repeater, Timeline
from pytest_gpuenergy.energy import (
    Edge,
    EnergyCounter,
    clock_states,
    mean_clock_mhz,
    read_conditions,
)
from pytest_gpuenergy.engine import seeded_arenas
from pytest_gpuenergy.opening import open_device
from pytest_gpuenergy.record import ClockState, Conditions
from pytest_gpuenergy.report import markdown_table
from pytest_gpuenergy.support import GpuEnergyError, write_atomically
from pytest_gpuenergy.tuners import KernelStore

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


@dataclass(frozen=True)
class Found:
    """What a study found: its seconds, and the states of the card during them."""

    seconds: list[Second]
    states: tuple[ClockState, ...]


def watch(device: Device, repeater: Repeater, seconds: int) -> Found:
    """Run a repeater for this many seconds."""
    counter = EnergyCounter(device)
    start_s = device.clock.now_s()
    repeater.start()
    edges, states = [counter.probe()], [read_conditions(device)]
    periods = max(1, round(1 / counter.period_s))
    for _ in range(seconds):
        edges.append(counter.next_edge(periods))
        states.append(read_conditions(device))
    timeline = repeater.stop()
    times_s, _ = counter.times_s(edges)
    return Found(
        seconds_of(edges, times_s, states, timeline),
        clock_states(timeline.clocks, start_s, times_s[0], times_s[-1]),
    )


def seconds_of(
    edges: Sequence[Edge],
    times_s: Sequence[float],
    states: Sequence[Conditions],
    timeline: Timeline,
) -> list[Second]:
    """The clock, time and power from each edge to the next.

    Args:
        edges: about a second apart.
        times_s: of the edges.
        states: of the card at the edges.
        timeline: of the turns, with the clock.
    """
    launches = np.diff(np.interp(times_s, timeline.time_s, timeline.launches))
    busy_s = np.diff(np.interp(times_s, timeline.time_s, timeline.busy_s))
    powers_w = np.diff([edge.energy_mj for edge in edges]) / 1e3 / np.diff(times_s)
    return [
        Second(
            end_s=times_s[number + 1] - times_s[0],
            time_us=1e6 * float(busy_s[number] / launches[number]),
            clock_mhz=mean_clock_mhz(timeline.clocks, times_s[number], times_s[number + 1]),
            nvml_clock_mhz=states[number + 1].sm_clock_mhz,
            power_w=float(powers_w[number]),
            temperature_c=states[number + 1].temperature_c,
        )
        for number in range(len(edges) - 1)
    ]


def study(device: Device, name: str, seconds: int) -> Found:
    """Run a kernel for this many seconds after the card has been idle."""
    with ExitStack() as stack:
        store = stack.enter_context(KernelStore())
        kernel, workload = kernels.named(name, kernels.RECORDS, store)
        arenas = stack.enter_context(seeded_arenas(workload, seed=0))
        repeater = stack.enter_context(kernels.loaded(device, kernel, workload, arenas))
        return watch(device, repeater, seconds)


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
    """Run the command; exit code 2 if something is missing."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--gpu-device", default="auto", help="(default: auto)")
    parser.add_argument("--kernel", default="case5-fastest", help="(default: case5-fastest)")
    parser.add_argument("--seconds", type=int, default=45, metavar="N", help="(default: 45)")
    parser.add_argument("--json", type=Path, required=True, metavar="PATH", help="File of results")
    arguments = parser.parse_args(argv)
    try:
        with open_device(arguments.gpu_device) as device:
            about = {"gpu": device.name, "uuid": device.uuid, **device.describe()}
            found = study(device, arguments.kernel, arguments.seconds)
    except GpuEnergyError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    content = {
        "about": {**about, "emulated": device.emulated},
        "kernel": arguments.kernel,
        "seconds": [asdict(one) for one in found.seconds],
        "states": [
            {"name": one.name, "clock_mhz": one.clock_mhz, "share": one.share}
            for one in found.states
        ],
    }
    write_atomically(arguments.json, json.dumps(content, indent=1) + "\n")
    print(table(found.seconds))
    for one in found.states:
        print(f"{one.share:.0%} at {one.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
