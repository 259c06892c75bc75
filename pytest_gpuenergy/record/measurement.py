"""The record of one item: what was measured, the figures, and the state of the card."""

from __future__ import annotations

import math
from typing import NamedTuple

from msgspec import Struct, field
from msgspec.structs import replace

from pytest_gpuenergy.record.metrics import (
    AboveZero,
    Bytes,
    Count,
    Estimate,
    Extent,
    Interval,
    Megahertz,
    Metric,
    NotNegative,
    Whole,
)
from pytest_gpuenergy.support import Outcome

FIGURES = ("time_ms", "energy_mj", "edp_mj_ms", "power_w", "gflops", "gflops_per_w")
"""The fields of a `Measurement` that are all present or all missing."""
VERIFIED = "verified, not measured"
"""The text that stands for the figures of a kernel that was only verified."""
WIDE_FLAGS = frozenset({"interval_wide", "not_settled"})
"""The flags of figures whose intervals are wide but hold."""
PHASES = ("compile", "verify", "load", "heat", "measure")
"""The parts of an item's wall time, in order."""


class WorkloadInfo(Struct, frozen=True):
    """The workload that was measured; ``flops`` and ``bytes_moved`` are for one launch."""

    name: str
    parameters: dict[str, Whole | str]
    flops: Count
    bytes_moved: Count


class LaunchInfo(Struct, frozen=True, gc=False):
    """A launch of a kernel: its entry, blocks in x, y and z, and the threads of a block.

    ``shared_bytes`` is the dynamic shared memory of a block (None: the compiler decides),
    ``static_shared_bytes`` what its text declares (None: not known).
    """

    entry: str
    grid: tuple[Extent, Extent, Extent]
    block: tuple[Extent, Extent, Extent]
    shared_bytes: Bytes | None = None
    static_shared_bytes: Bytes | None = None

    @property
    def blocks(self) -> int:
        """The number of blocks."""
        return math.prod(self.grid)

    @property
    def threads(self) -> int:
        """The threads of a block."""
        return math.prod(self.block)


class KernelInfo(Struct, frozen=True):
    """The kernel that was measured: its label in item ids, content hash, origin and rank.

    ``launches`` are in the order in which they follow each other; none where a library or a program
    decides, and in older records.
    """

    label: str
    digest: str
    origin: str
    rank: Whole | None = None
    details: dict[str, str | Whole | float] = field(default_factory=dict)
    launches: tuple[LaunchInfo, ...] = ()


class Correctness(Struct, frozen=True):
    """The largest errors over all seeds, and their bounds.

    ``max_relative_error`` is max|out - ref| / max|ref|, ``normwise_error`` ||out - ref|| / ||ref||.
    """

    max_relative_error: float
    normwise_error: float
    max_relative_bound: float
    normwise_bound: float
    seeds: tuple[int, ...]


class Conditions(Struct, frozen=True, gc=False):
    """The state of the card at one moment; None for what it does not report."""

    temperature_c: Whole | None
    sm_clock_mhz: Whole | None
    memory_clock_mhz: Whole | None
    event_reasons: Whole | None
    power_limit_mw: Whole | None


class ClockState(Struct, frozen=True, gc=False):
    """A level of the SM clock that a card kept for a while; NVML does not report it.

    ``name`` is the clock in words, ``share`` the part of the trials in which the card was in this
    state: 0 if only during the heat-up.
    """

    name: str
    clock_mhz: NotNegative
    share: NotNegative


class Window(Struct, frozen=True, gc=False):
    """One window between two edges (updates) of the energy source."""

    seconds: AboveZero
    joules: NotNegative
    launches: AboveZero
    busy_seconds: NotNegative

    @property
    def time_ms(self) -> float:
        """GPU time per launch."""
        return 1e3 * self.busy_seconds / self.launches

    @property
    def energy_mj(self) -> float:
        """Energy per launch."""
        return 1e3 * self.joules / self.launches

    @property
    def edp_mj_ms(self) -> float:
        """Energy-delay product per launch."""
        return self.energy_mj * self.time_ms


class Identity(NamedTuple):
    """The key by which measurements of different runs are matched.

    Attributes:
        workload: the workload's name.
        kernel: the kernel's label.
        cap: the setpoint's label, which names every requested setting, such as ``450W``.
        cache: the cache state.
    """

    workload: str
    kernel: str
    cap: str
    cache: str

    @property
    def label(self) -> str:
        """The label in item ids, ``case1-k01-300W``, with the cache state unless it is hot."""
        *names, cache = self
        return "-".join(names if cache == "hot" else [*names, cache])


class Measurement(Struct, frozen=True):
    """One kernel of one workload on one device under one power cap.

    A kernel that failed has an ``outcome`` other than ``correct``, an ``error``, and no figures.
    One that was only verified has neither an error nor figures. ``power_limit_w`` is the requested
    limit (None: the card was left as it was), ``enforced_power_limit_w`` the limit the card
    enforced. ``cap_binding`` reports whether the limit held the kernel back; ``validity`` lists
    flags that make the figures doubtful. ``cache`` is ``hot`` when all launches use the same
    buffers and ``cold`` when the buffers rotate through more than the L2. ``gpu_uuid`` identifies
    the card, ``energy_source`` names the source of its joules. ``warm_trials`` are from the end of
    the heat-up: they contribute to the intervals, not to the figures. Energy, EDP, power and
    GFLOP/s/W are those of a card that has settled under the kernel, at ``settled_temperature_c``;
    ``raw_energy_mj`` is the energy as measured, at ``temperature_c``. ``settling_error`` is the
    relative standard error of the way from one to the other, which the intervals include.
    ``energy_change_per_k`` is the relative change of the energy per kelvin by which it was brought
    from one to the other (None: not known, or the limit held the kernel back). ``temperature_c``
    and ``effective_sm_clock_mhz`` are means over the trials; the clock is that of an SM by its own
    cycle counter, which differs from the one that NVML reports (None: not known, also in older
    records). ``clock_states`` are the levels of that clock during the heat-up and the trials
    (empty: not known, or a limit moves the clock). All figures are per launch, in ms, mJ, W,
    GFLOP/s, GFLOP/s/W and mJ ms. ``wall_s`` is the duration of the item, ``phases_s`` that of each
    of `PHASES`. ``in_process`` reports whether the measuring process itself launched the work, as
    it does for callables, rather than a worker process (None: not recorded).
    ``parameters`` are those of pytest's item that are plain values, by name, without the power cap.
    ``sm_clock_mhz`` is the clock to which the SMs were asked to be locked (None: they were left as
    they were), ``locked_sm_clock_min_mhz`` and ``locked_sm_clock_max_mhz`` the range to which the
    card was locked.
    """

    node_id: str
    workload: WorkloadInfo
    kernel: KernelInfo
    outcome: Outcome
    cap: str
    cap_index: Whole | None = None
    power_limit_w: NotNegative | None = None
    enforced_power_limit_w: NotNegative | None = None
    cache: str = "hot"
    gpu_uuid: str | None = None
    energy_source: str | None = None
    error: str | None = None
    time_ms: NotNegative | None = None
    time_ms_ci95: Interval | None = None
    energy_mj: NotNegative | None = None
    energy_mj_ci95: Interval | None = None
    edp_mj_ms: NotNegative | None = None
    edp_mj_ms_ci95: Interval | None = None
    power_w: NotNegative | None = None
    gflops: float | None = None
    gflops_per_w: float | None = None
    trials: tuple[Window, ...] = ()
    warm_trials: tuple[Window, ...] = ()
    correctness: Correctness | None = None
    start: Conditions | None = None
    begin: Conditions | None = None
    end: Conditions | None = None
    raw_energy_mj: NotNegative | None = None
    temperature_c: float | None = None
    settled_temperature_c: float | None = None
    settling_error: NotNegative | None = None
    energy_change_per_k: float | None = None
    effective_sm_clock_mhz: NotNegative | None = None
    clock_states: tuple[ClockState, ...] = ()
    cap_binding: bool | None = None
    validity: tuple[str, ...] = ()
    started: str = ""
    wall_s: float = 0.0
    phases_s: dict[str, float] = field(default_factory=dict)
    in_process: bool | None = None
    parameters: dict[str, str | Whole | float | bool] = field(default_factory=dict)
    sm_clock_mhz: Megahertz | None = None
    locked_sm_clock_min_mhz: Megahertz | None = None
    locked_sm_clock_max_mhz: Megahertz | None = None

    @property
    def measured(self) -> bool:
        """Whether there are figures; either all are present or none."""
        return self.energy_mj is not None

    @property
    def verified_only(self) -> bool:
        """Whether the kernel was verified, and not to be measured."""
        return self.outcome == "correct" and not self.measured and self.error is None

    @property
    def why_no_figures(self) -> str:
        """The text that a view shows in place of missing figures."""
        return VERIFIED if self.verified_only else f"{self.outcome}: {self.error or 'no figures'}"

    def figure(self, metric: Metric) -> float | None:
        """Return the figure in the metric's unit; None when there is none."""
        found: float | None = getattr(self, metric.field)
        return found

    def interval(self, metric: Metric) -> Interval | None:
        """Return the figure's 95 % interval; None when there is none."""
        found: Interval | None = getattr(self, f"{metric.field}_ci95")
        return found

    def estimate(self, metric: Metric) -> Estimate | None:
        """Return the figure with its interval; None unless both are present."""
        value, ends = self.figure(metric), self.interval(metric)
        return None if value is None or ends is None else Estimate(value, ends.low, ends.high)

    @property
    def identity(self) -> Identity:
        """The key that matches it to measurements of other runs."""
        return Identity(self.workload.name, self.kernel.label, self.cap, self.cache)

    @property
    def scatter_count(self) -> int:
        """Number of trials whose scatter determines the intervals (Student's t)."""
        return len(self.warm_trials) + len(self.trials)

    def flagged(self, *flags: str) -> Measurement:
        """Return a copy with ``flags`` added."""
        return replace(self, validity=tuple(dict.fromkeys((*self.validity, *flags))))
