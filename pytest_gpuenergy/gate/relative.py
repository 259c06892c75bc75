"""Judges kernels relative to the shift that unchanged kernels have in common, and the shift itself.

The chance of a false alarm is divided in advance (weighted Bonferroni inequality: C. R. Genovese,
K. Roeder and L. Wasserman, "False discovery control with p-value weighting", Biometrika 93, 2006).
Most of it goes to the kernels that have changed, because a kernel that has not changed rarely
becomes worse, and then by much.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from pytest_gpuenergy.gate.settings import GateSettings
from pytest_gpuenergy.gate.verdict import FALSE_ALARM, Verdict, decide
from pytest_gpuenergy.record import Estimate, normal_quantile
from pytest_gpuenergy.report import CommonShift, Pair, Shifts

CHANGED, UNCHANGED, SHIFT = 0.7, 0.2, 0.05
"""Shares of `FALSE_ALARM` for the kernels that may have changed, for those that have not, and for
the shifts. They do not depend on whether there are unchanged kernels, so that one more of these
widens no other kernel's interval. The rest allows for tails that are heavier than normal."""

UNUSUAL = 0.005
"""Probability, at either end, of a shift between sessions that is called unusual."""


@dataclass(frozen=True)
class Tails:
    """The probability beyond each end of an interval, by what is judged.

    Attributes:
        changed: of kernels that have changed, or of which nobody knows.
        unchanged: of kernels that have not.
        shift: of common shifts.
    """

    changed: float
    unchanged: float
    shift: float

    @classmethod
    def of(cls, pairs: Sequence[Pair], shifts: Shifts, metrics: int) -> Tails:
        """Divide the chance of a false alarm.

        Args:
            pairs: the measurements that are compared.
            shifts: the common shifts.
            metrics: number of metrics that are judged.
        """
        same = sum(pair.unchanged for pair in pairs)
        others = len(pairs) - same
        shares = (CHANGED, UNCHANGED) if others else (0.0, CHANGED + UNCHANGED)
        counts = (others, same, len(shifts))
        tails = (
            FALSE_ALARM * share / max(1, count * metrics)
            for share, count in zip((*shares, SHIFT), counts, strict=True)
        )
        return cls(*tails)

    @classmethod
    def while_running(cls, comparisons: int) -> Tails:
        """Equal parts for ``comparisons`` verdicts, when nobody knows yet what has changed."""
        tail = FALSE_ALARM / comparisons
        return cls(CHANGED * tail, UNCHANGED * tail, SHIFT * tail)


@dataclass(frozen=True)
class JudgedShift:
    """The verdict on a common shift.

    Attributes:
        shift: the shift of one metric at one place.
        limit: by how much the metric may become worse, as a fraction.
        verdict: WORSE or BETTER when the shift exceeds the limit by more than sessions and boards
            explain, SAME otherwise.
        usual: the largest shift, as a logarithm, that is usual between sessions or boards.
    """

    shift: CommonShift
    limit: float
    verdict: Verdict
    usual: float

    @property
    def unusual(self) -> bool:
        """Whether the shift certainly exceeds what sessions and boards do."""
        change = self.shift.change
        return change.low > self.usual or change.high < -self.usual


def judge_shift(
    shift: CommonShift, limit: float, settings: GateSettings, tail: float
) -> JudgedShift:
    """The verdict on a shift, which comes on top of the kernels' own.

    All unchanged kernels become slower when the driver, the compiler or the harness has changed for
    the worse. What is common to them is therefore judged as well, by the deviation between sessions
    or boards that the settings declare.
    """
    session_sd = settings.sd(shift.metric, same_board=shift.same_board)
    between = math.sqrt(2) * session_sd
    room = normal_quantile(tail) * math.hypot(between, shift.error)
    middle = shift.change.value
    found = decide(Estimate(middle, middle - room, middle + room), limit)
    verdict = Verdict.SAME if found is Verdict.AMBIGUOUS else found
    return JudgedShift(shift, limit, verdict, normal_quantile(UNUSUAL) * between)
