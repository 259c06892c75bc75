"""The frozen record of one item."""

from __future__ import annotations

from msgspec import Struct, field
from msgspec.structs import replace

from pytest_gpuenergy.record.amounts import Megahertz, NotNegative, Whole
from pytest_gpuenergy.record.clock_state import ClockState
from pytest_gpuenergy.record.conditions import Conditions
from pytest_gpuenergy.record.correctness import Correctness
from pytest_gpuenergy.record.estimate import Estimate, Interval
from pytest_gpuenergy.record.identity import Identity
from pytest_gpuenergy.record.infos import KernelInfo, WorkloadInfo
from pytest_gpuenergy.record.metrics import Metric
from pytest_gpuenergy.record.window import Window
from pytest_gpuenergy.support import Outcome

FIGURES = ("time_ms", "energy_mj", "edp_mj_ms", "power_w", "gflops", "gflops_per_w")
VERIFIED = "verified, not measured"
"""What is said of a kernel that was only verified."""
PHASES = ("compile", "verify", "load", "heat", "measure")


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
        """What a view shows in place of missing figures."""
        return VERIFIED if self.verified_only else f"{self.outcome}: {self.error or 'no figures'}"

    def figure(self, metric: Metric) -> float | None:
        """The figure in the metric's unit; None when there is none."""
        found: float | None = getattr(self, metric.field)
        return found

    def interval(self, metric: Metric) -> Interval | None:
        """The figure's 95 % interval; None when there is none."""
        found: Interval | None = getattr(self, f"{metric.field}_ci95")
        return found

    def estimate(self, metric: Metric) -> Estimate | None:
        """The figure with its interval; None unless both are present."""
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
        """A copy with ``flags`` added."""
        return replace(self, validity=tuple(dict.fromkeys((*self.validity, *flags))))
