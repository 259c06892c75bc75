"""How often the gate raises a false alarm, and how often it finds a regression, by simulation.

``python studies/gate_simulation.py`` draws trials and differences between sessions from their
distributions. With ``--device``, it measures kernels on the emulated GPU instead, and shifts their
recorded figures from session to session: this exercises the harness and the gate together. Its
rates are not published, because the emulated noise is not that of a card.
"""

from __future__ import annotations

import argparse
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np

from pytest_gpuenergy.control import Setpoint
from pytest_gpuenergy.emulator import EmulatedDevice
from pytest_gpuenergy.energy import estimate
from pytest_gpuenergy.engine import Harness, Subject
from pytest_gpuenergy.gate import GateSettings, Verdict, compare
from pytest_gpuenergy.kernels import Job, Kernel, Launch, RecordedFigures
from pytest_gpuenergy.record import (
    METRICS,
    SAME_BOARD_SD,
    WANDER,
    KernelInfo,
    Measurement,
    Metric,
    RunInfo,
    Window,
    WorkloadInfo,
)
from pytest_gpuenergy.report import Report
from pytest_gpuenergy.workloads import IoContract

# With seven trials, the standard error of the energy is 0.20 % on average over 126 stretches of the
# 14 kernels in bench/results/nvidia-h200-2026-11-22/heat.json (docs/notes/trials-needed.md). The
# standard deviation of the time between trials has a median of 0.00020 over the 175 kernels in
# report.json beside it, and exceeds 0.00095 for one kernel in twenty.
TRIAL_SD_ENERGY = 0.0053
TRIAL_SD_TIME = 0.0002
TRIALS = 7

TIME_MS, POWER_W = 0.0194, 419.0
SOURCE = 'extern "C" __global__ void f() {}'


@dataclass(frozen=True)
class Session:
    """Relative shifts of one kernel's time and energy in one session, as logarithms."""

    time: float
    energy: float

    @classmethod
    def draw(cls, rng: np.random.Generator, *, heavy_tails: bool) -> Session:
        """Draw with the deviations that the gate assumes, correlated so as to give EDP's as well.

        ``heavy_tails``: use Student's t with five degrees of freedom instead of the normal
        distribution, with the same standard deviation.
        """
        time, energy, edp = (SAME_BOARD_SD[metric] for metric in METRICS)
        covariance = (edp**2 - time**2 - energy**2) / 2
        shape = np.linalg.cholesky([[time**2, covariance], [covariance, energy**2]])
        drawn = shape @ rng.standard_normal(2)
        if heavy_tails:
            drawn *= math.sqrt(3 / rng.chisquare(5))
        return cls(float(drawn[0]), float(drawn[1]))


Measure = Callable[[str, Session, float], Measurement]
"""Makes a measurement from a label, the session's shift and the true EDP (as a factor)."""


def drawn_measurement(rng: np.random.Generator) -> Measure:
    """Measurements whose trials are drawn from normal distributions."""

    def measure(label: str, session: Session, edp: float) -> Measurement:
        factor = math.sqrt(edp)
        times = TIME_MS * factor * math.exp(session.time)
        energies = TIME_MS * POWER_W * factor * math.exp(session.energy)
        time_ms = times * (1 + TRIAL_SD_TIME * rng.standard_normal(TRIALS))
        energy_mj = energies * (1 + TRIAL_SD_ENERGY * rng.standard_normal(TRIALS))
        columns = (time_ms, energy_mj, time_ms * energy_mj)
        figures = [
            estimate(values.tolist(), known_variance=float(WANDER[metric] * values.mean()) ** 2)
            for metric, values in zip(METRICS, columns, strict=True)
        ]
        ends = [figure.interval for figure in figures]
        trials = tuple(
            Window(0.3, 0.3 * e / t, 300 / t, 0.3)
            for t, e in zip(time_ms.tolist(), energy_mj.tolist(), strict=True)
        )
        return Measurement(
            node_id=f"test[{label}]",
            workload=WorkloadInfo("simulated", {}, 10**8, 10**6),
            kernel=KernelInfo(label, "", "simulated"),
            outcome="correct",
            cap="current",
            enforced_power_limit_w=700.0,
            time_ms=figures[0].value,
            time_ms_ci95=ends[0],
            energy_mj=figures[1].value,
            energy_mj_ci95=ends[1],
            edp_mj_ms=figures[2].value,
            edp_mj_ms_ci95=ends[2],
            power_w=figures[1].value / figures[0].value,
            gflops=100 / figures[0].value,
            gflops_per_w=0.1 / figures[1].value,
            trials=trials,
        )

    return measure


def emulated_measurement(device: EmulatedDevice) -> Measure:
    """Measurements that the harness makes on ``device``, of a kernel with recorded figures."""
    harness = Harness(device)

    def measure(label: str, session: Session, edp: float) -> Measurement:
        factor = math.sqrt(edp)
        time_ms = TIME_MS * factor * math.exp(session.time)
        energy_mj = TIME_MS * POWER_W * factor * math.exp(session.energy)
        figures = RecordedFigures(device.name, 700.0, time_ms, energy_mj / time_ms, energy_mj)
        kernel = Kernel(SOURCE, (Launch("f", (1, 1, 1), (32, 1, 1), ()),), recorded=(figures,))
        job = Job(kernel, IoContract("simulated", flops=10**8, bytes_moved=10**6))
        return harness.measure_callable(
            lambda: device.repeat(job, {}),
            WorkloadInfo("simulated", {}, 10**8, 10**6),
            Subject(f"test[{label}]", label, enforced=Setpoint(700.0)),
            "simulated",
        )

    return measure


def simulate(
    measure: Measure,
    rng: np.random.Generator,
    *,
    runs: int,
    kernels: int,
    limit: float,
    edp: float,
    heavy_tails: bool = False,
) -> Iterator[tuple[Verdict, Counter[Verdict]]]:
    """Compare pairs of sessions; in the later one, the first kernel's EDP is multiplied by ``edp``.

    Yields:
        For each pair: the verdict on the first kernel's EDP, and how often each verdict occurred
        among the other kernels.
    """
    settings = GateSettings({Metric.EDP: limit}, enforced=True)
    labels = [f"k{number:03d}" for number in range(1, kernels + 1)]

    def report(name: str, factor: float) -> Report:
        sessions = [Session.draw(rng, heavy_tails=heavy_tails) for _ in labels]
        factors = [factor, *(1.0 for _ in labels[1:])]
        made = map(measure, labels, sessions, factors)
        return Report(_run(name), tuple(made))

    for _ in range(runs):
        comparison = compare(report("base", 1.0), report("new", edp), settings)
        first, *others = (judgement.verdict for judgement in comparison.judgements)
        yield first, Counter(others)


def rates(outcomes: Sequence[tuple[Verdict, Counter[Verdict]]]) -> dict[str, float]:
    """Fractions of the runs.

    ``alarm``: an unchanged kernel is WORSE; ``strict``: an unchanged kernel is WORSE or AMBIGUOUS;
    and each verdict on the first kernel.
    """
    count = len(outcomes)
    firsts = Counter(first for first, _ in outcomes)
    alarms = sum(others[Verdict.WORSE] > 0 for _, others in outcomes)
    strict = sum(others[Verdict.WORSE] + others[Verdict.AMBIGUOUS] > 0 for _, others in outcomes)
    return {
        "alarm": alarms / count,
        "strict": strict / count,
        **{verdict: firsts[verdict] / count for verdict in Verdict},
    }


def _run(name: str) -> RunInfo:
    return RunInfo(name, "", "", "simulated", "GPU-0", "sm_90", True, {}, {}, {})


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--kernels", default="5,25")
    parser.add_argument("--limits", default="1,5", help="Percent")
    parser.add_argument("--changes", default="0,5,10", help="Of the first kernel's EDP, percent")
    parser.add_argument("--heavy-tails", action="store_true")
    parser.add_argument("--device", action="store_true", help="Measure on the emulated GPU")
    arguments = parser.parse_args()
    rng = np.random.default_rng(1)
    print("| kernels | limit | change | false alarms | strict | WORSE | AMBIGUOUS | SAME |")
    print("|---:|---:|---:|---:|---:|---:|---:|---:|")
    with ExitStack() as stack:
        if arguments.device:
            device = stack.enter_context(EmulatedDevice())
            assert isinstance(device, EmulatedDevice)
            measure = emulated_measurement(device)
        else:
            measure = drawn_measurement(rng)
        for kernels in map(int, arguments.kernels.split(",")):
            for limit in arguments.limits.split(","):
                for change in arguments.changes.split(","):
                    found = rates(
                        list(
                            simulate(
                                measure,
                                rng,
                                runs=arguments.runs,
                                kernels=kernels,
                                limit=float(limit) / 100,
                                edp=1 + float(change) / 100,
                                heavy_tails=arguments.heavy_tails,
                            )
                        )
                    )
                    words = (f"{100 * found[k]:.1f} %" for k in ("alarm", "strict", *_VERDICTS))
                    print(f"| {kernels} | {limit} % | {change} % | {' | '.join(words)} |")


_VERDICTS = (Verdict.WORSE, Verdict.AMBIGUOUS, Verdict.SAME)

if __name__ == "__main__":
    main()
