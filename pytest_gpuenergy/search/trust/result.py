"""What became of one variant: its figures, or why it is refused."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Literal

from msgspec import Struct

from pytest_gpuenergy.record import AboveZero, Correctness, Interval, Metric, NotNegative
from pytest_gpuenergy.support import Outcome

RESULT_VERSION = 1
"""``schema_version`` of the results written and read here."""


class Result(Struct, frozen=True, kw_only=True):
    """The evaluation of a state of a search.

    Attributes:
        id: of the state.
        outcome: ``correct``, or why it has no figures.
        emulated: whether they are those of an emulated GPU.
        objective: what the search minimizes.
        gpu: the UUID of the card.
        scale: the baseline's objective on the card where the search began, divided by that on this
            card: cards of one model differ.
        time_ms: of one launch; in the window of its power, if that was measured.
        burst_time_ms: of one launch in the first moments, in which no power limit slows the card
            yet. It decides whether the power is measured.
        power_w: mean while it ran, if the objective needs it.
        assumed_power_w: taken for its power, which was not measured, because it is so slow that it
            cannot be the best, see `Limit`.
        energy_mj: of one launch, if its power was measured.
        cap_binding: whether the power limit slowed the card meanwhile; None if that was not
            measured.
        floor_ms: the least time by the card's peaks; 0 if they are not known.
        message: why it is refused.
        correctness: on each set of sizes, by the name of its workload.
        other_sizes: that the spec does not list and it was verified on too; None if the spec allows
            none, the baseline is correct on none that were tried, or it is refused.
        steps_s: wall time of each step.
        schema_version: of this record.
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
    def edp_mj_ms(self) -> float | None:
        """Energy times time of one launch."""
        if self.energy_mj is None or self.time_ms is None:
            return None
        return self.energy_mj * self.time_ms

    @property
    def cost(self) -> float | None:
        """The objective by the card where the search began; None if the variant is refused.

        With the assumed power, if that is not measured.
        """
        if self.time_ms is None or self.objective == Metric.TIME:
            found = self.time_ms
        else:
            energy_mj = self.energy_mj
            if energy_mj is None and self.assumed_power_w is not None:
                energy_mj = self.assumed_power_w * self.time_ms
            found = energy_mj
            if found is not None and self.objective == Metric.EDP:
                found *= self.time_ms
        return None if found is None else found * self.scale


class Node(Struct, frozen=True, kw_only=True):
    """A state that was evaluated.

    Attributes:
        id: of the state.
        parent: the id of the state from which it was reached; None of the baseline.
        move: by which it was reached.
        what: the place and the parameters of the move.
        outcome: ``correct``, or why it is refused.
        cost: the objective, in ms, mJ or mJ ms; None if it is refused.
        time_ms: of one launch.
    """

    id: str
    parent: str | None
    move: str = ""
    what: str = ""
    outcome: Outcome
    cost: float | None
    time_ms: float | None


class TurnFigures(Struct, frozen=True, kw_only=True):
    """What one turn of a comparison measured; what the card does not report is None.

    Attributes:
        round: from 1 on.
        side: what was measured.
        time_ms: of one launch.
        energy_mj: of one launch.
        power_w: mean.
        seconds: for which it was measured, without the heat-up.
        temperature_c: mean.
        effective_sm_clock_mhz: mean clock of an SM.
        memory_clock_mhz: at the end.
        event_reasons: NVML's bits, of all moments.
        flags: what makes the figures doubtful.
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


class Gain(Struct, frozen=True, kw_only=True):
    """How a variant compares with the baseline when both are measured alternately.

    Attributes:
        id: of the variant.
        accepted: whether it is better in the objective, by the whole interval.
        rounds: how often each was measured.
        ended_early: whether there were fewer rounds than usual, because a gain that could be
            claimed was out of reach.
        candidates: among which the variant was the best; the intervals are the wider the more.
        ratios: by metric, the variant's figure divided by the baseline's, with an interval.
        ratio_intervals: of these; each contains the true ratio with a probability of at least 99 %,
            also where a part of what differs between sessions lasts through one.
        baseline: by metric, the baseline's figure, in ms, mJ or mJ ms.
        variant: likewise of the variant.
        reasons: why an interval is wider than the scatter of the rounds.
        message: why there are no figures, if there are none.
        unclaimed: whether that is because an emulated GPU's model was not compared with a real card
            for kernels of this kind.
        turns: in the order in which they were measured; of ``comparison.json`` only.
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


_LEAST_OF_LEAST = 0.7
"""A guess: a variant draws no less than this share of the least power of any so far."""


class Limit(Struct, frozen=True):
    """Beyond what time the power of a variant is not measured.

    Attributes:
        time_ms: of one launch in the first moments (`Result.burst_time_ms`), which are the fastest.
        power_w: that is assumed of a variant which takes longer.
    """

    time_ms: float
    power_w: float


def limit_of(nodes: Sequence[Node], objective: Metric) -> Limit | None:
    """The limit that the best of the evaluated states sets.

    A variant beyond it would not be better even if it drew `_LEAST_OF_LEAST` of the least power so
    far. It is assumed to draw the median of the powers, as in `engine.objective`.

    Args:
        nodes: evaluated so far.
        objective: what is minimized.

    Returns:
        None if the objective needs no power, or nothing is known.
    """
    if objective == Metric.TIME:
        return None
    exponent = 2 if objective == Metric.EDP else 1
    known = [
        (node.cost, node.cost / node.time_ms**exponent)
        for node in nodes
        if node.cost is not None and node.time_ms is not None
    ]
    if not known:
        return None
    best = min(cost for cost, _ in known)
    powers = [power_w for _, power_w in known]
    longest_ms = (best / (_LEAST_OF_LEAST * min(powers))) ** (1 / exponent)
    return Limit(longest_ms, median(powers))
