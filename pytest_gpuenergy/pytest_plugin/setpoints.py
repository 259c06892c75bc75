"""Which setpoints could be applied in a run, and whether one could be for no item."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import pytest

from pytest_gpuenergy.control.setpoint import Setpoint


@dataclass(frozen=True)
class SetpointOutcome:
    """What came of setting the card for an item.

    Attributes:
        setpoint: that the item asks for.
        words: those of ``--powercap`` that name it, such as ``3`` and ``all``.
        problem: why the card could not be set so, as a sentence; empty when it was.
        measured: whether the run being resumed has measured at this setpoint.
    """

    setpoint: Setpoint
    words: list[str]
    problem: str = ""
    measured: bool = False


OUTCOME = pytest.StashKey[SetpointOutcome]()
"""Of an item, once its setpoint was applied or refused."""

_ATTRIBUTE = "gpuenergy_setpoint"
"""Of an item's reports, by which pytest-xdist's workers tell the outcome."""


class SetpointPlugin:
    """Collects the outcomes of all items; with pytest-xdist, of all workers."""

    def __init__(self) -> None:
        self._finished: set[str] = set()
        self._outcomes: dict[str, SetpointOutcome] = {}

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
            self._outcomes[report.nodeid] = _outcome(data)

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

    def _refused(self) -> dict[str, list[SetpointOutcome]]:
        """Outcomes with a problem by the setpoint's label, the lowest first."""
        found: dict[str, list[SetpointOutcome]] = {}
        for outcome in sorted(self._outcomes.values(), key=lambda o: o.setpoint.order):
            if outcome.problem:
                found.setdefault(outcome.setpoint.label, []).append(outcome)
        return found


def _outcome(data: dict[str, Any]) -> SetpointOutcome:
    return SetpointOutcome(**{**data, "setpoint": Setpoint(**data["setpoint"])})
