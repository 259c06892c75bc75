"""Anchor kernels, which are measured early in a run and again from time to time to detect drift.

Each setpoint has its own anchor: the first kernel measured cleanly at it. It is measured again only
while the card is at that setpoint anyway, so that checks change no settings before the run ends.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime

from pytest_gpuenergy.control import Setpoint
from pytest_gpuenergy.devices import Device
from pytest_gpuenergy.engine.harness import Harness, Subject
from pytest_gpuenergy.gate import judge_check, unchecked
from pytest_gpuenergy.kernels import AnyKernel
from pytest_gpuenergy.record import DRIFT, Measurement
from pytest_gpuenergy.report import CHECK, Report, RunFolder
from pytest_gpuenergy.support import GpuEnergyError, SetpointError
from pytest_gpuenergy.workloads import Workload


@dataclass
class _Anchor:
    """A kernel to measure again.

    Attributes:
        kernel: the kernel.
        workload: what it computes.
        subject: the item that measured it first.
        first: its first measurement.
        checked_s: when it was last measured, on the device's clock.
        pending: the measurements made at its setpoint since it was last found unchanged.
        drifted: whether the last conclusive check found drift.
    """

    kernel: AnyKernel
    workload: Workload
    subject: Subject
    first: Measurement
    checked_s: float
    pending: list[Measurement] = field(default_factory=list)
    drifted: bool = False


class AnchorWatch:
    """The anchors of one process and its GPU.

    Args:
        interval_s: the time between checks at a setpoint, on the device's clock; 0 disables checks.
        device: the GPU.
        harness: the harness that measures on it.
        folder: the run's folder, to which checks and flags are written immediately.
    """

    def __init__(
        self, interval_s: float, device: Device, harness: Harness, folder: RunFolder
    ) -> None:
        self._interval_s = interval_s
        self._device = device
        self._harness = harness
        self._folder = folder
        self._anchors: dict[tuple[Setpoint, Setpoint], _Anchor] = {}
        self._began_s = math.inf

    def check(self, subject: Subject) -> None:
        """Measure the anchor of the applied setpoint if a check is due.

        Raises:
            ReportError: the check cannot be written.
        """
        anchor = self._anchors.get(_place(subject))
        if anchor and self._device.clock.now_s() - anchor.checked_s >= self._interval_s:
            self._check(anchor)

    def flags(self, subject: Subject) -> tuple[str, ...]:
        """Return the flags for anything measured at this setpoint now."""
        anchor = self._anchors.get(_place(subject))
        return (DRIFT,) if anchor and anchor.drifted else ()

    def add(
        self,
        subject: Subject,
        measurement: Measurement,
        kernel: AnyKernel | None = None,
        workload: Workload | None = None,
    ) -> None:
        """Remember a measurement; the first kernel measured cleanly at a setpoint is its anchor."""
        if not self._interval_s or not measurement.measured or measurement.validity:
            return
        anchor = self._anchors.get(_place(subject))
        if anchor is not None:
            anchor.pending.append(measurement)
        elif kernel is not None and workload is not None:
            now_s = self._device.clock.now_s()
            self._began_s = min(self._began_s, now_s)
            self._anchors[_place(subject)] = _Anchor(kernel, workload, subject, measurement, now_s)

    def recall(
        self,
        subject: Subject,
        known: Measurement,
        kernel: AnyKernel,
        workload: Workload,
        earlier: Report,
    ) -> None:
        """Take over the anchor of a resumed run; its first check is due immediately.

        Args:
            subject: the item, which is not measured again.
            known: the item's measurement from before the run was resumed.
            kernel: the kernel measured then.
            workload: the kernel's workload.
            earlier: everything the run measured before it was resumed.
        """
        place = _place(subject)
        if not self._interval_s or place in self._anchors or known.gpu_uuid != self._device.uuid:
            return
        pending = unchecked(earlier.measurements, earlier.anchors, known)
        self._began_s = min(self._began_s, self._device.clock.now_s())
        self._anchors[place] = _Anchor(kernel, workload, subject, known, -math.inf, pending)

    def finish(self, apply: Callable[[Setpoint], Setpoint]) -> None:
        """Check each anchor with pending measurements, if the run lasted at least one interval.

        Args:
            apply: sets the card to a setpoint and returns the setpoint that it enforces.

        Raises:
            ReportError: a check cannot be written.
        """
        if self._device.clock.now_s() - self._began_s < self._interval_s:
            return
        for anchor in self._anchors.values():
            if anchor.pending and anchor.checked_s > -math.inf:  # -inf: resumed, nothing measured
                self._check(anchor, apply)

    def _check(self, anchor: _Anchor, apply: Callable[[Setpoint], Setpoint] | None = None) -> None:
        items = tuple(measurement.node_id for measurement in anchor.pending)
        check = judge_check(anchor.first, self._measured(anchor, apply), items)
        if check.verdict == "drift":
            for measurement in anchor.pending:
                self._folder.append(measurement.flagged(DRIFT))
        self._folder.append(check, CHECK)
        anchor.checked_s = self._device.clock.now_s()
        if check.verdict != "unsure":
            anchor.pending.clear()
            anchor.drifted = check.verdict == "drift"

    def _measured(
        self, anchor: _Anchor, apply: Callable[[Setpoint], Setpoint] | None
    ) -> Measurement:
        subject = anchor.subject
        started = datetime.now(UTC).isoformat(timespec="seconds")
        try:
            if apply is not None:
                enforced = apply(subject.setpoint)
                if enforced != subject.enforced:
                    raise SetpointError(f"The card now enforces {enforced.label}.")
            return self._harness.measure_again(anchor.kernel, anchor.workload, subject)
        except GpuEnergyError as error:  # the next item meets the same error and reports it
            first = anchor.first
            return Measurement(
                first.node_id,
                first.workload,
                first.kernel,
                "runtime",
                first.cap,
                error=str(error),
                started=started,
            )


def _place(subject: Subject) -> tuple[Setpoint, Setpoint]:
    return (subject.setpoint, subject.enforced)
