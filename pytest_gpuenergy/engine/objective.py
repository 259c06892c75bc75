"""What a search minimizes (time, energy or EDP), and which candidates' power to measure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median
from typing import Literal, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from pytest_gpuenergy.record import AboveZero, Metric, NotNegative
from pytest_gpuenergy.support import Outcome

KEEP_ONE_OF = 4
"""Each step of successive halving keeps one candidate in this many: all are timed, the power of
these is measured, and those worth keeping are then measured precisely (compare Jamieson and
Talwalkar, "Non-stochastic Best Arm Identification and Hyperparameter Optimization", AISTATS
2016)."""

EvaluationOutcome = Outcome | Literal["timed"]
"""``timed``, which says nothing about the candidate's results, or the outcome of its fault."""


class Evaluation(Struct, frozen=True, kw_only=True):
    """What is known about a candidate.

    Attributes:
        outcome: whether it ran, and if not, why.
        time_ms: of one launch in the first moments, in which no power limit slows the card yet;
            None if it failed.
        sustained_ms: of one launch while the power was measured, if it was.
        power_w: mean while it ran, if measured.
        energy_mj: of one launch, if measured.
        message: why it failed.
        gpu: the UUID of the card, if there were several. Figures are then those of the card by
            which the search's log goes: ``time_scale`` and ``power_scale`` times those of this one.
    """

    outcome: EvaluationOutcome
    time_ms: AboveZero | None = None
    sustained_ms: AboveZero | None = None
    power_w: NotNegative | None = None
    energy_mj: NotNegative | None = None
    message: str | None = None
    gpu: str | None = None
    time_scale: AboveZero | None = None
    power_scale: AboveZero | None = None

    @property
    def good(self) -> bool:
        """Whether it ran without a fault so far."""
        return self.outcome == "timed"


class Typical(NamedTuple):
    """What a candidate is assumed to do whose power was not measured.

    Attributes:
        power_w: that it draws.
        slowdown: its time while it draws that, divided by its time in the first moments.
    """

    power_w: float
    slowdown: float = 1.0

    @classmethod
    def of(cls, evaluations: Sequence[Evaluation]) -> Typical | None:
        """The medians of what is known; None if no power is."""
        powers = [one.power_w for one in evaluations if one.good and one.power_w]
        return cls(median(powers), median(_slowdowns(evaluations))) if powers else None


def cost_ms(objective: Metric, evaluation: Evaluation, typical: Typical | None) -> float:
    """The objective as a time: that of an equally good kernel of ``typical`` power and slowdown.

    For time this is t; for energy, P t, it is t P / P_typical; for the energy-delay product, P t^2,
    it is t sqrt(P / P_typical). There, t is the time while P was measured, divided by the typical
    slowdown. A search that only knows times minimizes the objective when given these. A candidate
    of unknown power counts as typical; the cost of one that failed is infinite.
    """
    if not evaluation.good or evaluation.time_ms is None:
        return math.inf
    if objective == Metric.TIME or evaluation.power_w is None or typical is None:
        return evaluation.time_ms
    time_ms, ratio = evaluation.time_ms, evaluation.power_w / typical.power_w
    if evaluation.sustained_ms is not None:
        time_ms = evaluation.sustained_ms / typical.slowdown
    return time_ms * (ratio if objective == Metric.ENERGY else math.sqrt(ratio))


def _slowdowns(evaluations: Sequence[Evaluation]) -> list[float]:
    return [
        one.sustained_ms / one.time_ms
        for one in evaluations
        if one.good and one.sustained_ms is not None and one.time_ms is not None
    ] or [1.0]


def promising(
    objective: Metric, batch: Sequence[Evaluation], known: Sequence[Evaluation]
) -> list[int]:
    """Positions in ``batch`` of candidates whose power to measure, fastest first; none for time.

    These are the fastest quarter of those that ran, except candidates that would not become the
    best even at the lowest power and the least slowdown known so far.

    Args:
        objective: what is minimized.
        batch: candidates of which only the time is known.
        known: all candidates so far.
    """
    if objective == Metric.TIME:
        return []
    good = [place for place, one in enumerate(batch) if one.good]
    good.sort(key=lambda place: batch[place].time_ms or math.inf)
    wanted = good[: -(-len(good) // KEEP_ONE_OF)]
    measured = [one for one in known if one.good and one.power_w]
    typical = Typical.of(measured)
    if typical is None:
        return wanted
    best_ms = min(cost_ms(objective, one, typical) for one in measured)
    least_w = min(one.power_w or math.inf for one in measured)
    slowdown = min(_slowdowns(measured))

    def least_cost_ms(one: Evaluation) -> float:
        sustained_ms = None if one.time_ms is None else one.time_ms * slowdown
        return cost_ms(objective, replace(one, power_w=least_w, sustained_ms=sustained_ms), typical)

    return [place for place in wanted if least_cost_ms(batch[place]) <= best_ms]
