"""The outcome of one variant: its result, its place in the search, and its gain."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median
from typing import Literal

from msgspec import Struct

from pytest_gpuenergy.record import AboveZero, Correctness, Interval, Metric, NotNegative
from pytest_gpuenergy.support import Outcome

RESULT_VERSION = 1
"""The ``schema_version`` of the results that this version reads and writes."""

_LEAST_POWER_SHARE = 0.7
"""A guess: a variant draws no less than this share of the least power of any so far."""


class Result(Struct, frozen=True, kw_only=True):
    """The evaluation of a state of a search.

    Attributes:
        id: the id of the state.
        outcome: ``correct``, or the reason why there are no figures.
        emulated: whether the GPU is emulated.
        objective: the metric that the search minimizes.
        gpu: the UUID of the card.
        scale: the baseline's objective on the card where the search began, divided by that on this
            card, because cards of one model differ.
        time_ms: the time of one launch; in the window of its power, if that was measured.
        burst_time_ms: the time of one launch in the first moments, when no power limit slows the
            card yet. It decides whether the power is measured.
        power_w: the mean power while the kernel ran, if the objective needs it.
        assumed_power_w: the power that is assumed because the variant cannot be the best, see
            `PowerCutoff`. Its time is then that of the first moments.
        energy_mj: the energy of one launch, if its power was measured.
        cap_binding: whether the power limit slowed the card meanwhile; None if that was not
            measured.
        floor_ms: the least time by the card's peaks; 0 if they are unknown.
        message: the reason for a refusal.
        correctness: the errors on each set of sizes, by the name of its workload.
        other_sizes: the unlisted sizes on which the state was also verified; None if the spec
            allows none, the baseline is correct on none that were tried, or the state is refused.
        steps_s: the wall time of each step, in seconds.
        schema_version: the version of this record's form.
    """

    id: str
    outcome: Outcome
    emulated: bool
    objective: Metric
    gpu: str = ""
    scale: AboveZero = 1.0
    time_ms: AboveZero | None = None
    burst_time_ms: AboveZero | None = None
    power_w: NotNegative | None = None
    assumed_power_w: NotNegative | None = None
    energy_mj: NotNegative | None = None
    cap_binding: bool | None = None
    floor_ms: NotNegative = 0.0
    message: str | None = None
    correctness: dict[str, Correctness] = {}
    other_sizes: dict[str, int] | None = None
    steps_s: dict[str, float] = {}
    schema_version: int = RESULT_VERSION

    @property
    def has_wrong_values(self) -> bool:
        """Whether values were compared and are wrong.

        The message decides, because the outcome ``correctness`` has other reasons too, such as an
        access outside a tensor or a time that the card's peaks do not allow.
        """
        return self.outcome == "correctness" and " wrong " in str(self.message)

    @property
    def edp_mj_ms(self) -> float | None:
        """The energy of one launch times its time."""
        if self.energy_mj is None or self.time_ms is None:
            return None
        return self.energy_mj * self.time_ms

    @property
    def cost(self) -> float | None:
        """The objective, as on the card where the search began; None if the variant is refused.

        It is computed from the assumed power if the power was not measured.
        """
        if self.time_ms is None or self.objective == Metric.TIME:
            objective = self.time_ms
        else:
            energy_mj = self.energy_mj
            if energy_mj is None and self.assumed_power_w is not None:
                energy_mj = self.assumed_power_w * self.time_ms
            objective = energy_mj
            if objective is not None and self.objective == Metric.EDP:
                objective *= self.time_ms
        return None if objective is None else objective * self.scale


class SearchNode(Struct, frozen=True, kw_only=True):
    """A state that was evaluated.

    Attributes:
        id: the id of the state.
        parent: the id of the state from which it was reached; None for the baseline.
        move: the move by which it was reached.
        what: the place and the parameters of the move.
        outcome: ``correct``, or the reason why the state is refused.
        cost: the objective, in ms, mJ or mJ·ms; None if the state is refused.
        time_ms: the time of one launch.
        assumed: whether the power in ``cost`` is assumed (`Result.assumed_power_w`), not measured.
    """

    id: str
    parent: str | None
    move: str = ""
    what: str = ""
    outcome: Outcome
    cost: float | None
    time_ms: float | None
    assumed: bool = False


class TurnFigures(Struct, frozen=True, kw_only=True):
    """The figures of one turn of a comparison; None where the card does not report one.

    Attributes:
        round: the number of the round, from 1 on.
        side: the kernel that was measured.
        time_ms: the time of one launch.
        energy_mj: the energy of one launch.
        power_w: the mean power.
        seconds: the duration of the measurement, without the heat-up.
        temperature_c: the mean temperature.
        effective_sm_clock_mhz: the mean clock of an SM.
        memory_clock_mhz: the clock of the memory at the end.
        event_reasons: the union of NVML's bits during the turn.
        flags: the reasons to doubt the figures.
    """

    round: int
    side: Literal["baseline", "variant"]
    time_ms: float
    energy_mj: float
    power_w: float
    seconds: float = 0.0
    temperature_c: float | None = None
    effective_sm_clock_mhz: float | None = None
    memory_clock_mhz: int | None = None
    event_reasons: int = 0
    flags: tuple[str, ...] = ()


class VariantGain(Struct, frozen=True, kw_only=True):
    """The comparison of a variant with the baseline, both measured alternately.

    Attributes:
        id: the id of the variant.
        accepted: whether the variant is better in the objective, by the whole interval.
        rounds: the number of times that each of the two was measured.
        ended_early: whether there were fewer rounds than usual, because the gain was certain, or a
            certain gain was out of reach.
        candidates: the number of variants of which this one was the best; more candidates make the
            intervals wider.
        ratios: the variant's figure divided by the baseline's, by metric.
        ratio_intervals: the intervals of these ratios. Each contains the true ratio with a
            probability of at least 99 %, even if a difference between sessions persists during one.
        baseline: the baseline's figure by metric, in ms, mJ or mJ·ms.
        variant: the variant's figure by metric.
        reasons: the reasons why an interval is wider than the scatter of the rounds.
        message: the reason why there are no figures, if there are none.
        unclaimed: whether the reason is that an emulated GPU's model was not compared with a real
            card for kernels of this kind.
        turns: the figures in the order in which they were measured; in ``comparison.json`` only.
    """

    id: str
    accepted: bool
    rounds: int
    ended_early: bool = False
    candidates: int = 1
    ratios: dict[Metric, float] = {}
    ratio_intervals: dict[Metric, Interval] = {}
    baseline: dict[Metric, float] = {}
    variant: dict[Metric, float] = {}
    reasons: tuple[str, ...] = ()
    message: str = ""
    unclaimed: bool = False
    turns: tuple[TurnFigures, ...] = ()


_WORSE = 1.04
"""How much more than the best a variant must cost, by the first 0.4 s of its load, to be given up.

The power is then a few per cent off, and the time is the least one, that of the first moments.
"""


class PowerCutoff(Struct, frozen=True):
    """The limits beyond which a variant cannot be the best, so that its power is not measured.

    Attributes:
        time_ms: the time of one launch in the first moments (`Result.burst_time_ms`), which are the
            fastest. The power of a variant that takes longer is not measured at all.
        power_w: the power that is assumed for such a variant.
        cost: the objective of the best.
    """

    time_ms: float
    power_w: float
    cost: float = math.inf

    def is_passed(self, time_ms: float, power_w: float, objective: Metric) -> bool:
        """Return whether a variant certainly costs more than the best.

        Args:
            time_ms: the time of one launch in the first moments.
            power_w: about the power that the variant draws.
            objective: the metric that the search minimizes.
        """
        exponent = 2 if objective == Metric.EDP else 1
        return power_w * time_ms**exponent > _WORSE * self.cost


def power_cutoff(nodes: Sequence[SearchNode], objective: Metric) -> PowerCutoff | None:
    """Return the limit that the best of the evaluated states sets.

    A variant beyond the limit would not be better even if it drew only `_LEAST_POWER_SHARE` of the
    least power so far. It is assumed to draw the median power, as in `engine.objective`.

    Args:
        nodes: the states that were evaluated so far.
        objective: the metric that the search minimizes.

    Returns:
        The limit; None if the objective needs no power, or no state is correct yet.
    """
    if objective == Metric.TIME:
        return None
    exponent = 2 if objective == Metric.EDP else 1
    correct = [
        (node.cost, node.cost / node.time_ms**exponent)
        for node in nodes
        if node.cost is not None and node.time_ms is not None
    ]
    if not correct:
        return None
    best = min(cost for cost, _ in correct)
    powers_w = [power_w for _, power_w in correct]
    longest_ms = (best / (_LEAST_POWER_SHARE * min(powers_w))) ** (1 / exponent)
    return PowerCutoff(longest_ms, median(powers_w), best)
