"""What is to be minimized: time, energy or their product; and whose power is worth measuring."""

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
"""A step of successive halving keeps this fraction: the time of every candidate is measured, the
power of this fraction of them, and both precisely of those that are kept (compare Jamieson and
Talwalkar, "Non-stochastic Best Arm Identification and Hyperparameter Optimization", AISTATS
2016)."""

EvaluationOutcome = Outcome | Literal["timed"]
"""``timed``, which says nothing yet of a candidate's results, or its kernel's fault."""


class Evaluation(Struct, frozen=True, kw_only=True):
    """What is known of a candidate.

    Attributes:
        outcome: whether it ran.
        time_ms: of one launch; None when it failed.
        power_w: mean while it ran, if that was measured.
        energy_mj: of one launch, if that was measured.
        message: why it failed.
    """

    outcome: EvaluationOutcome
    time_ms: AboveZero | None = None
    power_w: NotNegative | None = None
    energy_mj: NotNegative | None = None
    message: str | None = None

    @property
    def good(self) -> bool:
        """Whether it ran and nothing is known against it."""
        return self.outcome == "timed"


def cost_ms(objective: Metric, evaluation: Evaluation, typical_w: float | None) -> float:
    """What is minimized, as a time: of a kernel that draws ``typical_w`` and is equally good.

    t for the objective time; t P / P_typical for energy, P t; t sqrt(P / P_typical) for the
    energy-delay product, P t^2. A search that only knows times minimizes the objective when it is
    given these. A candidate whose power is unknown counts as drawing ``typical_w``, one that failed
    as infinite.
    """
    if not evaluation.good or evaluation.time_ms is None:
        return math.inf
    if objective == Metric.TIME or evaluation.power_w is None or typical_w is None:
        return evaluation.time_ms
    ratio = evaluation.power_w / typical_w
    return evaluation.time_ms * (ratio if objective == Metric.ENERGY else math.sqrt(ratio))


def typical_power_w(evaluations: Sequence[Evaluation]) -> float | None:
    """The median power of the candidates whose power is known; None when there is none."""
    powers = [one.power_w for one in evaluations if one.good and one.power_w]
    return median(powers) if powers else None


def promising(
    objective: Metric, batch: Sequence[Evaluation], known: Sequence[Evaluation]
) -> list[int]:
    """Places in ``batch`` of those whose power should be measured, fastest first; none for time.

    A quarter of those that ran, without those that would not become the best even if they drew as
    little as the least that is known.

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
