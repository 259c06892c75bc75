"""Has each board of a run measure the same few kernels under each setpoint (`board_kernels`).

Boards of one model differ by some percent in joules. What these kernels take on each shows by how
much; `report.Boards` makes the boards' gains of it.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from pytest_gpuenergy.control import Setpoint
from pytest_gpuenergy.devices import Device
from pytest_gpuenergy.engine.board_kernels import ORIGIN, BoardKernel, board_kernels
from pytest_gpuenergy.engine.harness import Harness, Subject, describe_kernel, describe_workload
from pytest_gpuenergy.record import Measurement
from pytest_gpuenergy.report import RunFolder
from pytest_gpuenergy.support import GpuEnergyError

_TRIES = 2
"""Measurements of a kernel whose figures are flagged, such as for a step of the card's state."""


class BoardWatch:
    """The kernels of all boards, on the GPU of one process.

    Args:
        device: the GPU.
        harness: measures on it.
        folder: the run's folder, to which each measurement is written immediately.
    """

    def __init__(self, device: Device, harness: Harness, folder: RunFolder) -> None:
        self._device = device
        self._harness = harness
        self._folder = folder
        self._done: set[tuple[Setpoint, Setpoint]] = set()

    def ensure(self, subject: Subject) -> None:
        """Measure the kernels at the applied setpoint of ``subject``, unless the run has done so.

        A kernel that fails has a measurement without figures, which says why: the run goes on.

        Raises:
            ReportError: a measurement cannot be written.
        """
        place = (subject.setpoint, subject.enforced)
        if place in self._done:
            return
        self._done.add(place)
        # Another process may have this GPU too, or have had it before the run was resumed.
        known = self._folder.board_checks()
        for one in board_kernels(self._device):
            (label,) = {launch.entry for launch in one.kernel.launches}
            node_id = f"board::{label}-{subject.setpoint.label}-{self._device.uuid}"
            own = Subject(node_id, label, subject.setpoint, subject.enforced)
            if not self._knows(known, one, own):
                for _ in range(_TRIES):
                    check = self._measured(one, own)
                    self._folder.append_board_check(check)
                    if not (check.measured and check.validity):
                        break

    def _knows(self, known: Sequence[Measurement], one: BoardKernel, own: Subject) -> bool:
        return any(
            m.node_id == own.node_id
            and m.kernel.digest == one.kernel.digest
            and m.measured
            and not m.validity
            and Setpoint.enforced_for(m) == own.enforced
            for m in known
        )

    def _measured(self, one: BoardKernel, own: Subject) -> Measurement:
        try:
            return self._harness.measure_again(one.kernel, one.workload, own)
        except (GpuEnergyError, OSError) as error:  # items meet the same error and report it
            draft = self._harness.draft_of_callable(describe_workload(one.workload), own, ORIGIN)
            kernel = describe_kernel(one.kernel, own.label)
            return replace(draft, kernel=kernel, outcome="runtime", error=str(error))
