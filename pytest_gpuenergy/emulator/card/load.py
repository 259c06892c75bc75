"""A kernel that runs back to back on an emulated card: its progress and its timeline."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from pytest_gpuenergy.devices import CLOCK_SPAN_S, ClockSamples, Timeline
from pytest_gpuenergy.emulator.card.faults import Owner
from pytest_gpuenergy.emulator.card.governor import Demand

_BUSY = 0.999  # the share of the time in which the GPU works; the rest lies between launches
_BATCH_S = 7.5e-3  # the duration of one CUDA graph


@dataclass
class Load:
    """Back-to-back runs of one kernel.

    Attributes:
        owner: the process that runs the kernel.
        demand: the demand of one run.
        marks: the moments at which the speed changed: the virtual time in ns, the runs finished by
            then, and from then on the ns between the starts of successive runs and the clock of
            the SMs in MHz.
    """

    owner: Owner
    demand: Demand
    marks: list[tuple[int, float, float, float]] = field(default_factory=list)

    def pace(self, now_ns: int, time_s: float, clock_mhz: float) -> None:
        """Let each run take ``time_s`` of GPU time from now on, at this clock of the SMs."""
        run_ns = time_s * 1e9 / _BUSY
        if not self.marks:
            self.marks.append((now_ns, 0.0, run_ns, clock_mhz))
        elif (run_ns, clock_mhz) != self.marks[-1][2:]:
            self.marks.append((now_ns, self.runs_at(now_ns), run_ns, clock_mhz))

    def runs_at(self, now_ns: int) -> float:
        """Return the runs finished by then, including the finished fraction of the present run."""
        at_ns, runs, run_ns, _ = self.marks[-1]
        return runs + (now_ns - at_ns) / run_ns

    @property
    def batch(self) -> int:
        """The number of runs in one CUDA graph, which takes about 7.5 ms."""
        return max(1, round(_BATCH_S * 1e9 / self.marks[0][2]))

    def batch_end(self, now_ns: int) -> int:
        """Return the number of runs finished at the end of the present batch."""
        return self.batch * max(1, math.ceil(self.runs_at(now_ns) / self.batch))

    def moment(self, runs: int) -> int:
        """Return the virtual ns at which ``runs`` runs are finished, at the present speed."""
        at_ns, done, run_ns, _ = self.marks[-1]
        return at_ns + math.ceil((runs - done) * run_ns)

    def timeline(self, runs: int) -> Timeline:
        """Return the start and the end of each batch until ``runs`` runs are finished."""
        at_ns, done, run_ns, clock_mhz = (
            np.array(column, dtype=np.float64) for column in zip(*self.marks, strict=True)
        )
        launches = np.arange(0, runs + 1, self.batch, dtype=np.float64)
        mark = np.maximum(np.searchsorted(done, launches, side="left") - 1, 0)
        time_s = (at_ns[mark] + (launches - done[mark]) * run_ns[mark]) / 1e9
        every = max(1, round(CLOCK_SPAN_S / (self.batch * run_ns[0] / 1e9)))
        clocks = _clocks(time_s[::every], at_ns / 1e9, clock_mhz)
        return Timeline(time_s, launches, _BUSY * (time_s - at_ns[0] / 1e9), clocks=clocks)

    def to_json(self) -> dict[str, Any]:
        """Return the load as plain data."""
        return {"owner": asdict(self.owner), "demand": asdict(self.demand), "marks": self.marks}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Load:
        """Return the load that `to_json` wrote."""
        marks = [(int(a), float(b), float(c), float(d)) for a, b, c, d in data["marks"]]
        if not marks:
            raise ValueError("a load without a speed")
        return cls(Owner(**data["owner"]), Demand(**data["demand"]), marks)


def _clocks(
    noted_s: npt.NDArray[np.float64],
    changed_s: npt.NDArray[np.float64],
    clock_mhz: npt.NDArray[np.float64],
) -> ClockSamples | None:
    """Return the mean clock between the times ``noted_s``.

    Args:
        noted_s: the times at which the clock is noted.
        changed_s: the times from which each of ``clock_mhz`` is in force.
        clock_mhz: the clocks.
    """
    if len(noted_s) < 2:
        return None
    edges_s = np.append(changed_s, max(noted_s[-1], changed_s[-1]))
    megacycles = np.concatenate(([0.0], np.cumsum(clock_mhz * np.diff(edges_s))))
    spans_s = np.diff(noted_s)
    found = np.diff(np.interp(noted_s, edges_s, megacycles)) / spans_s
    return ClockSamples(noted_s[:-1], noted_s[1:], found)
