"""What became of one variant: its figures, or why it is refused."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from msgspec import Struct

from pytest_gpuenergy.record import AboveZero, Correctness, Metric, NotNegative
from pytest_gpuenergy.search.running.search_state import Node
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
