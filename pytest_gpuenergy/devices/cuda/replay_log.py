"""What the host learns of replays while they run, and the timeline that follows from it."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from pytest_gpuenergy.devices.cuda.clock_notes import ClockNotes
from pytest_gpuenergy.devices.device import Timeline


class ReplayLog:
    """One run of a `GraphRepeater`: its turns and the notes of the clock between them.

    All times called ``gpu_s`` are on the GPU's timer and counted from the start of the first turn.
    """

    def __init__(self) -> None:
        self._turns: list[tuple[float, float, float, float]] = []
        self._notes_s: list[float] = []

    def begin(self, noticed_s: float) -> None:
        """Note the host's time before the first turn."""
        self._turns.append((noticed_s, 0.0, 0.0, 0.0))

    def add(
        self, noticed_s: float, gpu_s: float, launches: int, busy_s: float, *, noted: bool
    ) -> None:
        """Add the next turn.

        Args:
            noticed_s: when the host noticed its end.
            gpu_s: its end.
            launches: of this turn.
            busy_s: its duration on the GPU.
            noted: whether the clock was noted directly before it.
        """
        _, _, launches_before, busy_before_s = self._turns[-1]
        if noted:
            self._notes_s.append(gpu_s - busy_s)
        self._turns.append((noticed_s, gpu_s, launches_before + launches, busy_before_s + busy_s))

    def note_at_end(self) -> None:
        """The clock was noted directly after the last turn."""
        self._notes_s.append(self._turns[-1][1])

    def timeline(self, placements: int, notes: ClockNotes | None) -> Timeline:
        """The timeline on the host's clock.

        Args:
            placements: see `Timeline`.
            notes: those of this run are the latest; None where the clock cannot be noted.
        """
        noticed_s, gpu_s, launches, busy_s = np.array(self._turns, dtype=np.float64).T
        time_s = host_times_s(noticed_s, gpu_s)
        clocks = None
        if notes is not None:
            clocks = notes.samples(np.array(self._notes_s) + (time_s[0] - gpu_s[0]))
        return Timeline(time_s, launches, busy_s, placements, clocks)


def host_times_s(
    noticed_s: npt.NDArray[np.float64], gpu_s: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    """Convert times of the GPU's timer to the host's clock.

    A host that sleeps until a batch has ended wakes up late, usually by tens of microseconds and
    sometimes by milliseconds, but never early: the smallest delay gives the offset of the two
    clocks. Their difference in rate, some parts per million, is neglected.

    Args:
        noticed_s: shape (n,), host clock at the start and whenever the host noticed that a batch
            had ended.
        gpu_s: shape (n,), the same on the GPU's timer, counted from the start of the first batch.
    """
    late_s = noticed_s - gpu_s
    # Without the first entry: the host starts before the first batch begins.
    offset_s = float((late_s[1:] if len(late_s) > 1 else late_s).min())
    return gpu_s + offset_s
