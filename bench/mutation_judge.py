"""Whether verification finds the fault of a mutant, and if not, whether it makes a difference."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from mutation_operators import Mutant
from mutation_subjects import Subject

from pytest_gpuenergy.devices import Device
from pytest_gpuenergy.engine import Drawing, case_of, seeded_arenas, verify_on_device
from pytest_gpuenergy.kernels import Job, Kernel
from pytest_gpuenergy.support import KernelFault
from pytest_gpuenergy.workloads import Array

Ending = Literal["found", "survived", "rounding", "equivalent", "invalid"]
ENDINGS: tuple[Ending, ...] = ("found", "survived", "rounding", "equivalent", "invalid")
TURNS = ((Drawing(101), 0), (Drawing(102, -1), 1), (Drawing(103, 1), 2), (Drawing(104), 5))
"""The inputs with which outputs are compared, and the order of threads and blocks."""
DRAWN = 105
"""In place of the seed that verification draws: a mutant ends the same way each time."""
ROUNDING = 2.0**-21
"""The largest difference, relative to the largest output, that counts as rounding: four units in
the last place of float32."""

Outputs = list[dict[str, Array]]


@dataclass(frozen=True)
class Verdict:
    """What became of a mutant.

    Attributes:
        subject: name of the kernel.
        operator: of the fault, see `Mutant`, with its line and the text before and after.
        ending: see `mutations`.
        why: the outcome and message of verification, or how the outputs differ.
        seconds: that it took.
    """

    subject: str
    operator: str
    line: int
    before: str
    after: str
    ending: Ending
    why: str
    seconds: float


class Judge:
    """Judges mutants on a device.

    Args:
        device: an emulated one.
        timeout_s: of each run of a kernel.
    """

    def __init__(self, device: Device, timeout_s: float) -> None:
        self._device = device
        self._timeout_s = timeout_s
        self._right: tuple[str, Outputs] = ("", [])

    def verdict(self, subject: Subject, mutant: Mutant) -> Verdict:
        """Verify a mutant; if it passes, compare its outputs with the original's."""
        began_s = time.monotonic()
        ending, why = self._ending(subject, replace(subject.kernel, source=mutant.source))
        seconds = round(time.monotonic() - began_s, 2)
        fault = (mutant.operator, mutant.line, mutant.before, mutant.after)
        return Verdict(subject.name, *fault, ending, why, seconds)

    def _ending(self, subject: Subject, kernel: Kernel) -> tuple[Ending, str]:
        try:
            verify_on_device(
                self._device, kernel, subject.workload, drawn=DRAWN, timeout_s=self._timeout_s
            )
        except KernelFault as fault:
            return "invalid" if fault.outcome == "compile" else "found", f"{fault.outcome}: {fault}"
        if self._right[0] != subject.name:
            self._right = subject.name, self._outputs(subject, subject.kernel)
        try:
            seen = self._outputs(subject, kernel)
        except KernelFault as fault:
            return "survived", f"later {fault.outcome}: {fault}"
        pairs = zip(self._right[1], seen, strict=True)
        largest = max(
            difference(right[name], other[name]) for right, other in pairs for name in right
        )
        if largest == 0:
            return "equivalent", ""
        said = f"differs by {largest:.2g} of the largest output"
        return "rounding" if largest <= ROUNDING else "survived", said

    def _outputs(self, subject: Subject, kernel: Kernel) -> Outputs:
        """The outputs of each of `TURNS`, all in one process."""
        workload, outputs = subject.workload, []
        job = Job.of(kernel, workload, seed=TURNS[0][0].seed, timeout_s=self._timeout_s)
        with (
            seeded_arenas(workload, job.seed) as arenas,
            self._device.load(job, arenas) as loaded,
        ):
            for drawing, order in TURNS:
                inputs = case_of(workload, drawing).inputs
                with seeded_arenas(workload, drawing.seed, second=bool(order)) as poisoned:
                    for name, arena in arenas.items():
                        arena.fill(inputs.get(name, poisoned[name].value()))
                loaded.run(order_seed=order)
                outputs.append({t.name: arenas[t.name].value() for t in workload.outputs})
        return outputs


def difference(right: Array, seen: Array) -> float:
    """The largest difference relative to the largest value; 0 only for equal bits."""
    if right.tobytes() == seen.tobytes():
        return 0.0
    a, b = right.astype(np.float64), seen.astype(np.float64)
    with np.errstate(all="ignore"):
        apart = np.where((a == b) | (np.isnan(a) & np.isnan(b)), 0.0, np.abs(a - b))
        size = float(np.max(np.abs(a), initial=0.0, where=np.isfinite(a))) or 1.0
    if not np.isfinite(apart).all():
        return float("inf")
    return max(float(apart.max()) / size, sys.float_info.min)
