"""A kernel that runs back to back on an emulated card: its progress and its timeline."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Annotated

import numpy as np
from msgspec import Meta

from pytest_gpuenergy.devices import CLOCK_SPAN_S, ClockSamples, Timeline
from pytest_gpuenergy.emulator.card.faults import Owner
from pytest_gpuenergy.emulator.card.governor import MAX_CLOCK_MHZ, MAX_RUN_S, Demand

_BUSY = 0.999  # the share of the time in which the GPU works; the rest lies between launches
_BATCH_S = 7.5e-3  # the duration of one CUDA graph

_Mark = tuple[
    Annotated[int, Meta(ge=0)],
    Annotated[float, Meta(ge=0, le=1e18)],
    Annotated[float, Meta(ge=1e-12, le=MAX_RUN_S * 1e9)],
    Annotated[float, Meta(ge=0, le=MAX_CLOCK_MHZ)],
]


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
    marks: list[_Mark] = field(default_factory=list)

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
        noted_s, changed_s = time_s[::every], at_ns / 1e9
        clocks = None
        if len(noted_s) > 1:  # the mean clock between the times at which it is noted
            edges_s = np.append(changed_s, max(noted_s[-1], changed_s[-1]))
            megacycles = np.concatenate(([0.0], np.cumsum(clock_mhz * np.diff(edges_s))))
            mean_mhz = np.diff(np.interp(noted_s, edges_s, megacycles)) / np.diff(noted_s)
            clocks = ClockSamples(noted_s[:-1], noted_s[1:], mean_mhz)
        return Timeline(time_s, launches, _BUSY * (time_s - at_ns[0] / 1e9), clocks=clocks)

    def check(self, now_ns: int) -> None:
        """Check the marks of a load that comes from a file.

        Raises:
            ValueError: there are none, they are not in order, or they lie in the future.
        """
        earlier_at = earlier_runs = 0.0
        for at_ns, runs, _, _ in self.marks:
            if at_ns < earlier_at or runs < earlier_runs or at_ns > now_ns:
                raise ValueError("marks")
            earlier_at, earlier_runs = at_ns, runs
        if not self.marks:
            raise ValueError("a load without a speed")
