"""What a search minimizes (time, energy or EDP), and which candidates' power to measure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from pytest_gpuenergy.record.amounts import AboveZero, NotNegative
from pytest_gpuenergy.record.metrics import Metric
from pytest_gpuenergy.support.errors import Outcome

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
        time_ms: of one launch; None if it failed.
        power_w: mean while it ran, if measured.
        energy_mj: of one launch, if measured.
        message: why it failed.
        gpu: the UUID of the card, if there were several. Figures are then those of the card by
            which the search's log goes: ``time_scale`` and ``power_scale`` times those of this one.
    """

    outcome: EvaluationOutcome
    time_ms: AboveZero | None = None
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


def cost_ms(objective: Metric, evaluation: Evaluation, typical_w: float | None) -> float:
    """The objective as a time: that of an equally good kernel which draws ``typical_w``.

    For time this is t; for energy, P t, it is t P / P_typical; for the energy-delay product, P t^2,
    it is t sqrt(P / P_typical). A search that only knows times minimizes the objective when given
    these. A candidate of unknown power is assumed to draw ``typical_w``; the cost of one that
    failed is infinite.
    """
    if not evaluation.good or evaluation.time_ms is None:
        return math.inf
    if objective == Metric.TIME or evaluation.power_w is None or typical_w is None:
        return evaluation.time_ms
    ratio = evaluation.power_w / typical_w
    return evaluation.time_ms * (ratio if objective == Metric.ENERGY else math.sqrt(ratio))


def typical_power_w(evaluations: Sequence[Evaluation]) -> float | None:
    """The median of the known powers in W; None if there are none."""
    powers = [one.power_w for one in evaluations if one.good and one.power_w]
    return median(powers) if powers else None


def promising(
    objective: Metric, batch: Sequence[Evaluation], known: Sequence[Evaluation]
) -> list[int]:
    """Positions in ``batch`` of candidates whose power to measure, fastest first; none for time.

    These are the fastest quarter of those that ran, except candidates that would not become the
    best even at the lowest power known so far.

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
    typical_w = typical_power_w(measured)
    if typical_w is None:
        return wanted
    best_ms = min(cost_ms(objective, one, typical_w) for one in measured)
    least_w = min(one.power_w or math.inf for one in measured)
    return [
        place
        for place in wanted
        if cost_ms(objective, replace(batch[place], power_w=least_w), typical_w) <= best_ms
    ]
