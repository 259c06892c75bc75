"""Are the time and energy of a launch accurate, and do their intervals cover the truth?

Collected only when this path is named; takes about seven minutes on a real GPU:

    pytest bench/validation --powercap current --validation-json validation.json
    python bench/validation/table.py validation.json --plot validation.svg

For each kernel in turn: our protocol, as in any item; the reference, which is twelve seconds of
steady running in six parts, each with the kernel newly loaded; for some kernels, our protocol
twenty more times, spread over the pauses between the parts; then other tools' protocols.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from kernels import TIMEOUT_S, loaded
from protocols import PARTS, Protocols, ours, reference_of, steady
from record import Attempt, Validated

from pytest_gpuenergy.engine import Harness, Subject as Named, seeded_arenas
from pytest_gpuenergy.pytest_plugin import kernel_label
from pytest_gpuenergy.record import METRICS

if TYPE_CHECKING:
    from conftest import Notebook, Subject
    from pytest_gpuenergy.devices import Device
    from pytest_gpuenergy.energy import EnergySource, Reading
    from pytest_gpuenergy.pytest_plugin import EnergyBenchmark

ENERGY_TOLERANCE, TIME_TOLERANCE = 0.01, 0.005
LEAST_BUSY = 0.99
LEAST_COVERED_OF_A_KERNEL, LEAST_COVERED = 0.8, 0.93


def test_a_launch_against_steady_running(
    subject: Subject,
    energy_benchmark: EnergyBenchmark,
    gpu: Device,
    source: EnergySource,
    notebook: Notebook,
    request: pytest.FixtureRequest,
) -> None:
    began_s = gpu.clock.now_s()
    label = kernel_label(subject.kernel)  # not by the item's id, which a report may lack
    measurement = energy_benchmark(subject.kernel, workload=subject.workload, label=label)
    attempts = [ours(measurement, gpu.clock.now_s() - began_s)]
    with seeded_arenas(subject.workload, seed=0) as arenas:
        again = Again(gpu, subject, request.node.nodeid)
        parts: list[Reading] = []
        for number in range(PARTS):
            # Newly loaded: that matters more than anything that happens while it stays loaded.
            with loaded(gpu, subject.kernel, subject.workload, arenas) as repeater:
                warmup_s = 1.0 if parts else 2.0
                parts.append(steady(gpu, repeater, source, warmup_s=warmup_s))
            again.measure_until(subject.repeats * (number + 1) // (PARTS - 1))
        reference = reference_of(parts)
        with loaded(gpu, subject.kernel, subject.workload, arenas) as repeater:
            others = Protocols(gpu, repeater)
            attempts += [others.single_launches(), others.cold_window()]
            if classic := others.classic(reference.time_ms):
                attempts.append(classic)
    validated = Validated(
        subject.name,
        f"{subject.workload.name}-{measurement.kernel.label}",
        reference,
        tuple(attempts),
        tuple(again.attempts),
    )
    notebook.add(validated)
    print(f"\n{summary_of(validated)}")
    assert validated.ours.busy is not None
    assert validated.ours.busy >= LEAST_BUSY
    assert abs(validated.error(validated.ours, "energy")) <= ENERGY_TOLERANCE
    assert abs(validated.error(validated.ours, "time")) <= TIME_TOLERANCE
    for metric in METRICS:
        assert validated.covered(metric) >= LEAST_COVERED_OF_A_KERNEL * subject.repeats, metric


def test_intervals_cover_the_reference(notebook: Notebook) -> None:
    """Check the coverage over all repeated kernels; the last test of the run."""
    tested = [one for one in notebook.validation.kernels if one.repeats]
    if not tested:
        pytest.skip("no kernel was repeated")
    count = sum(len(one.repeats) for one in tested)
    for metric in METRICS:
        covered = sum(one.covered(metric) for one in tested)
        print(f"\n{metric}: {covered} of {count} intervals hold the reference")
        assert covered >= LEAST_COVERED * count, metric


class Again:
    """Repeats our protocol as often as the subject asks, including verification."""

    def __init__(self, gpu: Device, subject: Subject, node_id: str) -> None:
        self.attempts: list[Attempt] = []
        self._gpu, self._subject, self._node_id = gpu, subject, node_id
        self._harness = Harness(gpu, timeout_s=TIMEOUT_S)

    def measure_until(self, count: int) -> None:
        """Repeat until there are ``count`` attempts, or all that the subject asks for."""
        subject, clock = self._subject, self._gpu.clock
        while len(self.attempts) < min(count, subject.repeats):
            began_s = clock.now_s()
            named = Named(f"{self._node_id} {len(self.attempts)}", subject.name)
            measurement = self._harness.measure_kernel(subject.kernel, subject.workload, named)
            self.attempts.append(ours(measurement, clock.now_s() - began_s))


def summary_of(validated: Validated) -> str:
    reference = validated.reference
    lines = [
        f"{validated.name} ({validated.kernel}): {reference.energy_mj:.5g} mJ at "
        f"{reference.power_w:.1f} W, {reference.time_ms * 1e3:.5g} us; the reference changed by "
        f"{reference.change:+.2%}"
    ]
    for one in validated.attempts:
        energy, time = (validated.error(one, metric) for metric in ("energy", "time"))
        lines.append(
            f"  {one.protocol:<16} energy {energy:+.2%}, time {time:+.2%}, {one.seconds:.2f} s"
        )
    if count := len(validated.repeats):
        covered = ", ".join(f"{metric} {validated.covered(metric)}" for metric in METRICS)
        lines.append(f"  of {count} intervals hold the reference: {covered}")
    return "\n".join(lines)
