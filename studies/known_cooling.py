"""How soon is it known where a card will settle, without and with what an earlier session learned?

python studies/known_cooling.py bench/results/nvidia-h200-2026-11-23/temperature-trace.json
python studies/known_cooling.py bench/results/nvidia-h200-2026-11-23/temperature-trace.json --starts

A trace has the card's power and temperature every 0.1 s while kernels ran for a while each. Its
first runs are the earlier session. Then the model follows the first run once more, and each run
after a rest, both without and with what the earlier session tells. With ``--starts``, the settled
power of each run is taken from windows that begin at several moments, and compared with that from
the latest window.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from pytest_gpuenergy.energy import KnownCooling, ThermalModel, ThermalSample

REST_S = 5.0
"""The shortest idle time after which a run counts as the first of a session."""
EARLIER_RUNS = 3
MOMENTS_S = (1.5, 3.0, 5.0, 8.0, 12.0, 20.0, 30.0)
RECENT = 3
STARTS_S = (0.3, 0.6, 1.0, 1.7)
TRIALS, STEP_S = 6, 0.1


@dataclass(frozen=True)
class Phase:
    """A part of a trace in which one kernel ran, or none: its name and its samples."""

    name: str
    samples: list[ThermalSample]

    @property
    def is_idle(self) -> bool:
        """Whether no kernel ran."""
        return self.name == "idle"

    @property
    def seconds(self) -> float:
        """The time from the first sample to the last."""
        return self.samples[-1].time_s - self.samples[0].time_s

    def at_rest(self) -> ThermalSample:
        """Return the end of an idle phase, with its mean power."""
        return self.samples[-1]._replace(power_w=fmean(one.power_w for one in self.samples))


def read_phases(path: Path) -> list[Phase]:
    """Return the phases of a trace that have some samples."""
    trace = json.loads(path.read_text(encoding="utf-8"))
    samples = [ThermalSample(*sample) for sample in trace["samples"]]
    phases = [
        Phase(name, [sample for sample in samples if begin_s < sample.time_s <= end_s])
        for name, begin_s, end_s in trace["phases"]
    ]
    return [phase for phase in phases if len(phase.samples) >= 2 * RECENT]


def learned(phases: Sequence[Phase], gpu: str, runs: int = EARLIER_RUNS) -> KnownCooling:
    """Return what a session with the first runs of a trace learns about the card."""
    model = ThermalModel(phases[0].at_rest(), gpu=gpu)
    for phase in phases[1:]:
        if phase.is_idle:
            model.add_pause(phase.at_rest())
        elif runs:
            model.add_run(phase.samples)
            runs -= 1
    return model.cooling


def rows(rest: Phase, run: Phase, known: KnownCooling, gpu: str) -> Iterator[str]:
    """Yield the lines of a run after a rest: what is expected at each moment."""
    begin_s = run.samples[0].time_s
    end_c = fmean(one.temperature_c for one in run.samples[-RECENT:])
    for moment_s in MOMENTS_S:
        part = [sample for sample in run.samples if sample.time_s <= begin_s + moment_s]
        if moment_s > run.seconds:
            return
        cells = [f"{moment_s:g}", f"{part[-1].temperature_c:g}"]
        for remembered in (None, known):
            found = ThermalModel(rest.at_rest(), remembered, gpu).settling(part, RECENT)
            cells += [f"{found.settled_c:.1f}", f"{100 * found.gain_error:.2f} %"]
        yield f"| {run.name} | {' | '.join(cells)} | {end_c:.0f} after {run.seconds:.0f} s |"


def settled_powers_w(model: ThermalModel, run: Phase) -> list[float]:
    """Return the settled power of a run, from a window of trials at each moment of `STARTS_S`."""
    powers_w = []
    for start_s in STARTS_S:
        end_s = run.samples[0].time_s + start_s + (TRIALS - 0.5) * STEP_S
        part = [sample for sample in run.samples if sample.time_s <= end_s]
        power_w = fmean(sample.power_w for sample in part[-TRIALS:])
        powers_w.append(power_w * (1 + model.settling(part, TRIALS).gain))
    return powers_w


def start_rows(phases: Sequence[Phase]) -> Iterator[str]:
    """Yield how far the settled power is off in windows that begin early."""
    model = ThermalModel(phases[0].at_rest())
    off: list[list[float]] = []
    for phase in phases[1:]:
        if phase.is_idle:
            model.add_pause(phase.at_rest())
            continue
        if phase.seconds >= STARTS_S[-1] + (TRIALS - 1) * STEP_S:
            powers_w = settled_powers_w(model, phase)
            off.append([power_w / powers_w[-1] - 1 for power_w in powers_w])
        model.add_run(phase.samples)
    for start_s, column in zip(STARTS_S, zip(*off, strict=True), strict=True):
        rms = math.sqrt(fmean(value**2 for value in column))
        yield f"| {start_s:g} | {len(column)} | {100 * rms:.2f} % |"


def main() -> None:
    """Print a table in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("trace", type=Path)
    parser.add_argument("--gpu", default="", help="tell the model the name of the GPU")
    parser.add_argument("--starts", action="store_true", help="compare windows that begin early")
    arguments = parser.parse_args()
    phases = read_phases(arguments.trace)
    if arguments.starts:
        print("| trials from, s | runs | off, root mean square |\n|---:|---:|---:|")
        print("\n".join(start_rows(phases)))
        return
    known = learned(phases, arguments.gpu)
    print("| kernel | s | °C | settled | error | settled, known card | error | at the end |")
    print("|---|---:|---:|---:|---:|---:|---:|---|")
    for rest, run in itertools.pairwise(phases):
        is_first = rest is phases[0]
        if rest.is_idle and not run.is_idle and (is_first or rest.seconds >= REST_S):
            print("\n".join(rows(rest, run, known, arguments.gpu)))


if __name__ == "__main__":
    main()
