"""Are energies those of a settled card, on a card that has rested and on a warm one?

    python studies/settled.py --json settled.json [--seconds 60] [--rest 60]

Needs TVM; takes about seventeen minutes on a real GPU. The card rests; then all kernels are
measured in random order, as the items of a bench are; then they take turns until the card has
settled, and each runs for a minute, whose last ten seconds are its reference; then all are measured
again, in another order. Air and fans go on changing for minutes, so each energy is also compared at
its reference's own temperature. The file is written after each step.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "bench" / "validation"))

import kernels

from pytest_gpuenergy.devices import Device
from pytest_gpuenergy.energy import EnergyMeter, MeterSettings
from pytest_gpuenergy.engine import Harness, Station, Subject, seeded_arenas
from pytest_gpuenergy.kernels import Kernel
from pytest_gpuenergy.opening import open_device
from pytest_gpuenergy.record import Measurement
from pytest_gpuenergy.report import markdown_table
from pytest_gpuenergy.support import GpuEnergyError, InputError, write_atomically
from pytest_gpuenergy.tuners import KernelStore
from pytest_gpuenergy.workloads import Workload

MEASURED_S = 10.0
"""The end of each reference run that counts."""
STATES = ("rested", "warm")
HEADER = (
    "state",
    "kernel",
    "°C",
    "settled °C",
    "reference °C",
    "raw",
    "energy",
    "interval",
    "at reference °C",
    "time",
    "seconds",
)


@dataclass(frozen=True)
class Reference:
    """A kernel on a card that has settled under it."""

    energy_mj: float
    time_ms: float
    temperature_c: float | None


@dataclass(frozen=True)
class Reading:
    """What one measurement of a bench found; ``state`` is ``rested`` or ``warm``."""

    state: str
    kernel: str
    temperature_c: float | None
    settled_temperature_c: float | None
    raw_energy_mj: float
    energy_mj: float
    energy_low_mj: float
    energy_high_mj: float
    energy_change_per_k: float | None
    time_ms: float
    seconds: float


@dataclass(frozen=True)
class Item:
    """One measurement, and how far it is from the reference; errors are relative.

    Attributes:
        state: ``rested`` or ``warm``.
        held: whether the energy's interval holds the reference.
        same_temperature_error: of the energy brought to the reference's temperature by the
            record's ``energy_change_per_k``; None where one of the two is not known.
    """

    state: str
    kernel: str
    temperature_c: float | None
    settled_temperature_c: float | None
    reference_temperature_c: float | None
    raw_error: float
    energy_error: float
    half_width: float
    held: bool
    same_temperature_error: float | None
    time_error: float
    seconds: float


def reference_of(device: Device, kernel: Kernel, workload: Workload, seconds: float) -> Reference:
    """Run a kernel for ``seconds``."""
    measured_s = min(MEASURED_S, seconds / 2)
    settings = MeterSettings(
        warmup_s=seconds - measured_s,
        warmup_max_s=seconds - measured_s,
        trial_s=0.5,
        min_measure_s=measured_s,
        max_measure_s=measured_s,
        relative_half_width=0.0,
        preheat_s=0.0,
    )
    with (
        seeded_arenas(workload, 0, device.arrays) as arenas,
        kernels.loaded(device, kernel, workload, arenas) as repeater,
    ):
        reading = EnergyMeter(device, settings).measure(repeater)
    return Reference(reading.raw_energy_mj, reading.time_ms.value, reading.temperature_c)


def reading_of(state: str, name: str, m: Measurement, seconds: float) -> Reading:
    """Take what the study needs from a measurement.

    Raises:
        InputError: it has no figures.
    """
    interval = m.energy_mj_ci95
    if m.energy_mj is None or m.raw_energy_mj is None or m.time_ms is None or interval is None:
        raise InputError(f"{name} was not measured: {m.error}")
    return Reading(
        state,
        name,
        m.temperature_c,
        m.settled_temperature_c,
        m.raw_energy_mj,
        m.energy_mj,
        interval.low,
        interval.high,
        m.energy_change_per_k,
        m.time_ms,
        seconds,
    )


def judged(own: Reading, right: Reference) -> Item:
    """Compare a measurement with its reference."""
    return Item(
        own.state,
        own.kernel,
        own.temperature_c,
        own.settled_temperature_c,
        right.temperature_c,
        own.raw_energy_mj / right.energy_mj - 1,
        own.energy_mj / right.energy_mj - 1,
        (own.energy_high_mj - own.energy_low_mj) / 2 / own.energy_mj,
        own.energy_low_mj <= right.energy_mj <= own.energy_high_mj,
        _same_temperature_error(own, right),
        own.time_ms / right.time_ms - 1,
        own.seconds,
    )


def _same_temperature_error(own: Reading, right: Reference) -> float | None:
    """Of an energy at the temperature of its trials, brought to that of its reference."""
    per_k, own_c, right_c = own.energy_change_per_k, own.temperature_c, right.temperature_c
    if per_k is None or own_c is None or right_c is None:
        return None
    change = per_k * (right_c - own_c)
    return own.raw_energy_mj * (1 + change) / right.energy_mj - 1


@dataclass
class Results:
    """What was found so far, in a file that is written anew after each step."""

    path: Path
    about: Mapping[str, object]
    references: dict[str, Reference] = field(default_factory=dict)
    readings: list[Reading] = field(default_factory=list)

    def items(self) -> list[Item]:
        """The readings whose kernels have their references."""
        return [
            judged(one, self.references[one.kernel])
            for one in self.readings
            if one.kernel in self.references
        ]

    def write(self) -> None:
        """So that a study that is killed loses nothing."""
        content = {
            "about": dict(self.about),
            "references": {name: asdict(one) for name, one in self.references.items()},
            "readings": [asdict(one) for one in self.readings],
            "items": [asdict(one) for one in self.items()],
        }
        write_atomically(self.path, json.dumps(content, indent=1) + "\n")


class Study:
    """Measures the kernels on one device, in random orders that follow from a seed."""

    def __init__(
        self,
        station: Station,
        subjects: Mapping[str, tuple[Kernel, Workload]],
        results: Results,
        *,
        seed: int,
        preheat_s: float,
    ) -> None:
        self._station = station
        self._preheat_s = preheat_s
        self._subjects = subjects
        self._results = results
        self._random = random.Random(seed)

    def sweep(self, state: str) -> None:
        """Measure each kernel once, as a bench of its own does; with the seconds that it took."""
        clock = self._station.gpu.clock
        harness: Harness = self._station.harness(preheat_s=self._preheat_s)
        for name in self._order():
            kernel, workload = self._subjects[name]
            began_s = clock.now_s()
            measured = harness.measure_kernel(kernel, workload, Subject(name, name))
            took_s = clock.now_s() - began_s
            self._results.readings.append(reading_of(state, name, measured, took_s))
            self._results.write()

    def heat(self, seconds: float) -> None:
        """Run the kernels in turn, for so long in all."""
        for name in self._subjects:
            reference_of(self._station.gpu, *self._subjects[name], seconds / len(self._subjects))

    def references(self, seconds: float) -> None:
        """Run each kernel for so long."""
        for name in self._order():
            found = reference_of(self._station.gpu, *self._subjects[name], seconds)
            self._results.references[name] = found
            self._results.write()

    def _order(self) -> list[str]:
        names = list(self._subjects)
        self._random.shuffle(names)
        return names


def table(items: Iterable[Item]) -> str:
    """As Markdown."""
    return markdown_table(
        HEADER,
        [
            [
                one.state,
                one.kernel,
                "" if one.temperature_c is None else f"{one.temperature_c:.1f}",
                "" if one.settled_temperature_c is None else f"{one.settled_temperature_c:.1f}",
                "" if one.reference_temperature_c is None else f"{one.reference_temperature_c:.1f}",
                f"{one.raw_error:+.2%}",
                f"{one.energy_error:+.2%}",
                f"±{one.half_width:.2%}{'' if one.held else ' missed'}",
                "" if one.same_temperature_error is None else f"{one.same_temperature_error:+.2%}",
                f"{one.time_error:+.2%}",
                f"{one.seconds:.1f}",
            ]
            for one in items
        ],
    )


def summary(items: Sequence[Item]) -> str:
    """How far the worst is off in each state, and how many intervals hold the reference."""
    lines = []
    for state in dict.fromkeys(one.state for one in items):
        own = [one for one in items if one.state == state]
        raw = max(abs(one.raw_error) for one in own)
        worst = max(abs(one.energy_error) for one in own)
        held = sum(one.held for one in own)
        lines.append(
            f"{state}: energy off by at most {worst:.2%} (as measured {raw:.2%}); {held} of "
            f"{len(own)} intervals hold the reference"
        )
    return "\n".join(lines)


def study(device: Device, arguments: argparse.Namespace, results: Results) -> None:
    """Rest, measure, run the references, and measure again."""
    with ExitStack() as stack:
        store = stack.enter_context(KernelStore())
        subjects = {
            name: kernels.named(name, kernels.RECORDS, store, emulated=device.emulated)
            for name in arguments.kernels.split(",")
        }
        station = stack.enter_context(Station(device))
        device.prepare([kernel for kernel, _ in subjects.values()])
        for kernel, _ in subjects.values():
            device.compile(kernel)
        device.clock.sleep_s(arguments.rest)
        work = Study(station, subjects, results, seed=arguments.seed, preheat_s=arguments.preheat)
        if "rested" in arguments.states:
            work.sweep("rested")
        work.heat(arguments.heat)
        work.references(arguments.seconds)
        if "warm" in arguments.states:
            work.sweep("warm")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; exit code 2 if something is missing or fails."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--kernels", default=",".join(kernels.NAMES), metavar="LIST", help="(all ten)"
    )
    parser.add_argument(
        "--states",
        nargs="+",
        choices=STATES,
        default=STATES,
        help="Of the card, in which to measure (default: both)",
    )
    parser.add_argument("--seconds", type=float, default=60.0, help="Of a reference (default: 60)")
    parser.add_argument("--rest", type=float, default=60.0, help="Seconds before (default: 60)")
    parser.add_argument(
        "--preheat", type=float, default=30.0, help="Seconds at most of each sweep (default: 30)"
    )
    parser.add_argument(
        "--heat", type=float, default=120.0, help="Seconds before the references (default: 120)"
    )
    parser.add_argument("--seed", type=int, default=0, help="Of the orders (default: 0)")
    parser.add_argument("--gpu-device", default="auto", metavar="DEVICE", help="(default: auto)")
    parser.add_argument("--json", type=Path, required=True, metavar="PATH", help="File of results")
    arguments = parser.parse_args(argv)
    try:
        if arguments.seconds < 2 * MEASURED_S:
            raise InputError(f"--seconds {arguments.seconds:g} is too short: give at least 20.")
        with open_device(arguments.gpu_device) as device:
            about = {
                "gpu": device.name,
                "uuid": device.uuid,
                "emulated": device.emulated,
                "seconds": arguments.seconds,
                "rest": arguments.rest,
                "preheat": arguments.preheat,
                "heat": arguments.heat,
                "seed": arguments.seed,
                **device.describe(),
            }
            results = Results(arguments.json, about)
            study(device, arguments, results)
    except GpuEnergyError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    items = results.items()
    print(f"{table(items)}\n\n{summary(items)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
