"""The frozen record of one item."""

from __future__ import annotations

from msgspec import Struct, field
from msgspec.structs import replace

from pytest_gpuenergy.record.amounts import NotNegative
from pytest_gpuenergy.record.conditions import Conditions
from pytest_gpuenergy.record.correctness import Correctness
from pytest_gpuenergy.record.estimate import Estimate, Interval
from pytest_gpuenergy.record.identity import Identity
from pytest_gpuenergy.record.infos import KernelInfo, WorkloadInfo
from pytest_gpuenergy.record.metrics import Metric
from pytest_gpuenergy.record.window import Window
from pytest_gpuenergy.support.errors import Outcome
from pytest_gpuenergy.support.json_input import FormError

FIGURES = ("time_ms", "energy_mj", "edp_mj_ms", "power_w", "gflops", "gflops_per_w")
PHASES = ("compile", "verify", "load", "heat", "measure")


class Measurement(Struct, frozen=True):
    """One kernel of one workload on one device under one power cap.

    A kernel that failed has an ``outcome`` other than ``correct``, an ``error``, and no figures.
    ``power_limit_w`` is what was asked for (None: the card was left as it was),
    ``enforced_power_limit_w`` what the card enforced. ``cap_binding`` tells whether the limit held
    the kernel back; ``validity`` names what makes the figures doubtful. ``cache`` tells whether the
    buffers stayed in place from launch to launch (``hot``) or rotated through more than the L2
    (``cold``); ``gpu_uuid`` is the card, ``energy_source`` where its joules come from.
    ``warm_trials`` are of the end of the heat-up: they tell of the scatter that the intervals are
    made of, and are no part of a figure. All figures are of one launch: ms, mJ, W, GFLOP/s,
    GFLOP/s/W, mJ ms. ``wall_s`` is what the item took, and ``phases_s`` what each of `PHASES` took
    of it. ``in_process`` reports whether the measuring process itself launched it, as it does with
    callables, rather than a worker process (None: not recorded).
    """

    node_id: str
    workload: WorkloadInfo
    kernel: KernelInfo
    outcome: Outcome
    cap: str
    cap_index: int | None = None
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
    cap_binding: bool | None = None
    validity: tuple[str, ...] = ()
    started: str = ""
    wall_s: float = 0.0
    phases_s: dict[str, float] = field(default_factory=dict)
    in_process: bool | None = None

    @property
    def measured(self) -> bool:
        """Whether there are figures: all of them, or none."""
        return self.energy_mj is not None

    def figure(self, metric: Metric) -> float | None:
        """The figure, in the metric's unit; None where there is none."""
        found: float | None = getattr(self, metric.field)
        return found

    def interval(self, metric: Metric) -> Interval | None:
        """Its 95 % interval; None where there is none."""
        found: Interval | None = getattr(self, f"{metric.field}_ci95")
        return found

    def estimate(self, metric: Metric) -> Estimate | None:
        """The figure with its interval; None unless there are both."""
        value, ends = self.figure(metric), self.interval(metric)
        return None if value is None or ends is None else Estimate(value, ends.low, ends.high)

    @property
    def identity(self) -> Identity:
        """What makes it comparable between runs."""
        return Identity(self.workload.name, self.kernel.label, self.cap, self.cache)

    @property
    def scatter_count(self) -> int:
        """How many trials the intervals are Student's t over."""
        return len(self.warm_trials) + len(self.trials)

    def flagged(self, *flags: str) -> Measurement:
        """The same with these flags too."""
        return replace(self, validity=tuple(dict.fromkeys((*self.validity, *flags))))


def check(m: Measurement, place: str = "") -> None:
    """See that a measurement that was read is whole.

    Args:
        m: the measurement.
        place: where it stands, for messages, such as ``measurements[3].``.

    Raises:
        FormError: it has some figures and lacks others, or a figure is not in its interval.
    """
    known = [name for name in FIGURES if getattr(m, name) is not None]
    if 0 < len(known) < len(FIGURES):
        missing = next(name for name in FIGURES if name not in known)
        raise FormError(f"{place}{missing} is missing, although {place}{known[0]} is there")
    for metric in Metric:
        found = m.estimate(metric)
        if found is not None and not found.low <= found.value <= found.high:
            raise FormError(
                f"{place}{metric.field}_ci95 goes from {found.low} to {found.high}, which does not "
                f"hold the {metric.field} of {found.value}"
            )
