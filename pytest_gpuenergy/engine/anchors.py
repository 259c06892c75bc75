"""Anchor kernels: measured early in a run and again now and then, to show what has drifted.

Each setpoint has its own, the first kernel measured cleanly at it. It is measured again when the
card is set so anyway: before the run's end, checks cost no change of settings.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime

from pytest_gpuenergy.control.setpoint import Setpoint
from pytest_gpuenergy.devices.device import Device
from pytest_gpuenergy.engine.harness import Harness, Subject
from pytest_gpuenergy.gate.drift import judge_check, unchecked
from pytest_gpuenergy.kernels.kernel import AnyKernel
from pytest_gpuenergy.record.anchor import DRIFT
from pytest_gpuenergy.record.measurement import Measurement
from pytest_gpuenergy.report.store import Report, RunFolder
from pytest_gpuenergy.support.errors import GpuEnergyError, SetpointError
from pytest_gpuenergy.workloads.workload import Workload


@dataclass
class _Anchor:
    """A kernel that is measured again, and what was measured since it was last found unchanged."""

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
        interval_s: time on the device's clock from one check at a setpoint to the next; 0: never.
        device: whose clock it is.
        harness: measures on it.
        folder: of the run, where checks and flags go as they come.
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
        """Measure the anchor of the setpoint that is applied, if it is time to.

        Raises:
            ReportError: what was found cannot be written.
        """
        anchor = self._anchors.get(_place(subject))
        if anchor and self._device.clock.now_s() - anchor.checked_s >= self._interval_s:
            self._check(anchor)

    def flags(self, subject: Subject) -> tuple[str, ...]:
        """The flags of what is measured now at this setpoint."""
        anchor = self._anchors.get(_place(subject))
        return (DRIFT,) if anchor and anchor.drifted else ()

    def add(
        self,
        subject: Subject,
        measurement: Measurement,
        kernel: AnyKernel | None = None,
        workload: Workload | None = None,
    ) -> None:
        """Remember what has been measured: the first kernel at a setpoint is its anchor."""
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
        """Take up the anchor of a run that is resumed; its first check is due at once.

        Args:
            subject: the item that is not measured again.
            known: what was measured of it.
            kernel: that was measured.
            workload: of it.
            earlier: what the run had measured before it was resumed.
        """
        place = _place(subject)
        if not self._interval_s or place in self._anchors or known.gpu_uuid != self._device.uuid:
            return
        pending = unchecked(earlier.measurements, earlier.anchors, known)
        self._began_s = min(self._began_s, self._device.clock.now_s())
        self._anchors[place] = _Anchor(kernel, workload, subject, known, -math.inf, pending)

    def finish(self, apply: Callable[[Setpoint], Setpoint]) -> None:
        """Check what was measured since the last checks, if the run was as long as an interval.

        Args:
            apply: sets the card to a setpoint and returns what it enforces.

        Raises:
            ReportError: what was found cannot be written.
        """
        if self._device.clock.now_s() - self._began_s < self._interval_s:
            return
        for anchor in self._anchors.values():
            if anchor.pending and anchor.checked_s > -math.inf:  # otherwise nothing is new
                self._check(anchor, apply)

    def _check(self, anchor: _Anchor, apply: Callable[[Setpoint], Setpoint] | None = None) -> None:
        items = tuple(measurement.node_id for measurement in anchor.pending)
        check = judge_check(anchor.first, self._measured(anchor, apply), items)
        if check.verdict == "drift":
            for measurement in anchor.pending:
                self._folder.append(measurement.flagged(DRIFT))
        self._folder.append_check(check)
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
                    raise SetpointError(f"The card now enforces {enforced.power_limit_w} W.")
            return self._harness.measure_again(anchor.kernel, anchor.workload, subject)
        except GpuEnergyError as error:  # the next item meets it too, and tells
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
