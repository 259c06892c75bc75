"""What reading the energy counter does to it: the scatter of its steps, read in two ways.

    python bench/validation/counter_reads.py [--kernels case5-fastest] [--steps 60]

While a kernel runs, every step of the counter is awaited, by reading on and on from just before it
is due, as a first item does; then the counter is read half-way between its steps, as all later
items do. Of the power in the windows between two steps it prints the mean, the standard deviation,
and how windows are correlated with the next: -0.5 where steps come early and late by chance.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

import kernels
import numpy as np

from pytest_gpuenergy.devices.device import Device
from pytest_gpuenergy.devices.select import open_device
from pytest_gpuenergy.energy.counter import EnergyCounter
from pytest_gpuenergy.errors import GpuEnergyError
from pytest_gpuenergy.kernels.kernel import Kernel
from pytest_gpuenergy.report.tables import markdown_table
from pytest_gpuenergy.tuning.lowering import KernelStore
from pytest_gpuenergy.verification import arenas_for
from pytest_gpuenergy.workloads.workload import Workload

KERNELS = "case5-fastest,case4-slowest,lcg"
HEAT_S = 3.0
HEADER = ("kernel", "steps are", "windows", "power (W)", "deviation", "correlation")
AWAITED, BETWEEN = "awaited", "read between"


def study(device: Device, kernel: Kernel, workload: Workload, steps: int) -> list[list[str]]:
    """Cells of the table but for the kernel's name."""
    rows = []
    counter = EnergyCounter(device)
    with (
        arenas_for(workload, seed=0) as arenas,
        kernels.loaded(device, kernel, workload, arenas) as repeater,
    ):
        repeater.start()
        device.clock.sleep_s(HEAT_S)
        for way in (AWAITED, BETWEEN):
            edges = [counter.probe(), *(counter.next_edge(1) for _ in range(steps))]
            times_s, _ = counter.times_s(edges)
            # The first edge was awaited in any case.
            energies_j = [edge.energy_mj / 1e3 for edge in edges][1:]
            rows.append([way, *described(np.diff(energies_j) / np.diff(times_s[1:]))])
        repeater.stop()
    return rows


def described(powers_w: Sequence[float]) -> list[str]:
    """Their number, mean, deviation about a straight line, and correlation with the next."""
    powers = np.asarray(powers_w)
    numbers = np.arange(len(powers))
    rest = powers - np.polynomial.Polynomial.fit(numbers, powers, 1)(numbers)
    mean_w = float(powers.mean())
    together = float((rest[1:] * rest[:-1]).mean() / (rest**2).mean())
    return [
        str(len(powers)),
        f"{mean_w:.2f}",
        f"{rest.std(ddof=2) / mean_w:.3%}",
        f"{together:+.2f}",
    ]


def main(argv: Sequence[str] | None = None) -> int:
    """Exit code 2 when something is missing."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kernels", default=KERNELS, metavar="LIST", help=f"(default: {KERNELS})")
    parser.add_argument("--steps", type=int, default=60, metavar="N", help="(default: 60)")
    parser.add_argument("--gpu-device", default="auto", metavar="DEVICE", help="(default: auto)")
    arguments = parser.parse_args(argv)
    try:
        with open_device(arguments.gpu_device) as device, KernelStore() as store:
            print(f"{device.name}{' (emulated)' if device.emulated else ''}\n")
            rows = []
            for name in arguments.kernels.split(","):
                found = kernels.named(name, kernels.RECORDS, store, emulated=device.emulated)
                rows += [[name, *row] for row in study(device, *found, arguments.steps)]
        print(markdown_table(HEADER, rows, text=(0, 1)))
    except GpuEnergyError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
