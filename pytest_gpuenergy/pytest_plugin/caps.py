"""Which power caps could be set in a run, and what it comes to when one could be for no item."""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pytest_gpuenergy.control.powercap import PowerCap


@dataclass(frozen=True)
class CapOutcome:
    """What came of setting an item's power cap.

    Attributes:
        label: of the cap, such as ``300W``.
        power_limit_w: None for ``current``.
        words: those of ``--powercap`` that name the cap, such as ``3`` and ``all``.
        problem: why it could not be set, as a sentence; empty when it was set.
        measured: whether the run being resumed has measured under this cap.
    """

    label: str
    power_limit_w: float | None
    words: list[str]
    problem: str = ""
    measured: bool = False

    @classmethod
    def of(
        cls, cap: PowerCap, words: list[str], problem: str = "", *, measured: bool = False
    ) -> CapOutcome:
        """The outcome for ``cap``."""
        return cls(cap.label, cap.power_limit_w, words, problem, measured)


OUTCOME = pytest.StashKey[CapOutcome]()
"""Of an item, once its cap was set or refused."""

_ATTRIBUTE = "gpuenergy_cap"
"""Of an item's reports, by which pytest-xdist's workers tell the outcome."""


class CapPlugin:
    """Collects the outcomes of all items; with pytest-xdist, of all workers."""

    def __init__(self) -> None:
        self._finished: set[str] = set()
        self._outcomes: dict[str, CapOutcome] = {}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Put the outcome into the report, as plain data."""
        report = yield
        outcome = item.stash.get(OUTCOME, None)
        if outcome is not None:
            setattr(report, _ATTRIBUTE, asdict(outcome))
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Take the outcome out of the report."""
        self._finished.add(report.nodeid)
        if (data := getattr(report, _ATTRIBUTE, None)) is not None:
            self._outcomes[report.nodeid] = CapOutcome(**data)

    def problems(self, collected: int) -> list[str]:
        """A sentence when caps that ``--powercap`` names could be set for no item.

        Args:
            collected: how many items the run has. When some were not reached, nobody knows whether
                a cap could have been set for them, and nothing is said.
        """
        if len(self._finished) < collected:
            return []
        refused = self._refused()
        met = {
            word
            for outcome in self._outcomes.values()
            if not outcome.problem or outcome.measured
            for word in outcome.words
        }
        reasons = {
            label: outcomes[0].problem
            for label, outcomes in refused.items()
            if any(word not in met for outcome in outcomes for word in outcome.words)
        }
        if not reasons:
            return []
        first = next(iter(reasons))
        caps = f"power cap{'s' if len(reasons) > 1 else ''} {', '.join(reasons)}"
        alike = len(set(reasons.values())) == 1
        why = reasons[first] if alike else f"the reason for {first}: {reasons[first]}"
        return [f"The {caps} could be set for no item{':' if alike else ';'} {why}"]

    def summary_lines(self) -> Iterator[str]:
        """The caps that could not be set, for how many items."""
        if refused := self._refused():
            named = (
                f"{label} ({len(outcomes)} {'item' if len(outcomes) == 1 else 'items'})"
                for label, outcomes in refused.items()
            )
            yield f"power caps that could not be set: {', '.join(named)}"

    def _refused(self) -> dict[str, list[CapOutcome]]:
        """Outcomes with a problem by the cap's label, the lowest cap first."""
        found: dict[str, list[CapOutcome]] = {}
        for outcome in sorted(self._outcomes.values(), key=lambda o: o.power_limit_w or -math.inf):
            if outcome.problem:
                found.setdefault(outcome.label, []).append(outcome)
        return found
