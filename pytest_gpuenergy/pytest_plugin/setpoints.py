"""The setpoints that a run asks for, and which of them could be set."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import pytest

from pytest_gpuenergy.control import NamedSetpoints, Setpoint
from pytest_gpuenergy.devices import Device
from pytest_gpuenergy.pytest_plugin.options import Options


def named_setpoints(device: Device, options: Options) -> NamedSetpoints:
    """The setpoints that the options name and, unless they give others, those in ids.

    Raises:
        InputError, DeviceError: as `NamedSetpoints.of`.
    """
    every = device.emulated and not options.verify_only
    text = options.powercap or ("all" if every else "current")
    named = NamedSetpoints.of(device, text, options.root, options.smclock or "current")
    return named.with_labels(
        device,
        options.setpoints_named,
        options.root,
        any_cap=options.powercap is None,
        any_clock=options.smclock is None,
    )


@dataclass(frozen=True)
class SetpointOutcome:
    """The outcome of setting the card for an item.

    Attributes:
        setpoint: the setpoint that the item requests.
        words: the words of the options that name it, such as ``3``, ``all``, ``--smclock all``.
        problem: a sentence that says why it could not be set; empty when it was set.
        measured: whether the run being resumed has measured at this setpoint.
    """

    setpoint: Setpoint
    words: list[str]
    problem: str = ""
    measured: bool = False


OUTCOME = pytest.StashKey[SetpointOutcome]()
"""An item's outcome, once its setpoint was set or rejected."""

_ATTRIBUTE = "gpuenergy_setpoint"
"""Attribute of an item's reports that carries the outcome from pytest-xdist's workers."""


class SetpointPlugin:
    """Collects the outcomes of all items, and with pytest-xdist from all workers."""

    def __init__(self) -> None:
        self._finished: set[str] = set()
        self._outcomes: dict[str, SetpointOutcome] = {}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Add the outcome to the report, as plain data."""
        report = yield
        outcome = item.stash.get(OUTCOME, None)
        if outcome is not None:
            setattr(report, _ATTRIBUTE, asdict(outcome))
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Read the outcome from the report."""
        self._finished.add(report.nodeid)
        if (data := getattr(report, _ATTRIBUTE, None)) is not None:
            self._outcomes[report.nodeid] = _outcome(data)

    def problems(self, collected: int) -> list[str]:
        """A sentence if caps or clocks that the options name could not be set for any item.

        Args:
            collected: number of items in the run. If some did not run, a cap might have been set
                for them, so nothing is reported.
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
        caps = f"{_kind(reasons)}{'s' if len(reasons) > 1 else ''} {', '.join(reasons)}"
        alike = len(set(reasons.values())) == 1
        why = reasons[first] if alike else f"the reason for {first}: {reasons[first]}"
        return [f"The {caps} could not be set for any item{':' if alike else ';'} {why}"]

    def summary_lines(self) -> Iterator[str]:
        """The caps that could not be set, and for how many items each."""
        if refused := self._refused():
            named = (
                f"{label} ({len(outcomes)} {'item' if len(outcomes) == 1 else 'items'})"
                for label, outcomes in refused.items()
            )
            yield f"{_kind(refused)}s that could not be set: {', '.join(named)}"

    def _refused(self) -> dict[str, list[SetpointOutcome]]:
        """Outcomes with a problem by the setpoint's label, lowest first."""
        found: dict[str, list[SetpointOutcome]] = {}
        for outcome in sorted(self._outcomes.values(), key=lambda o: o.setpoint.order):
            if outcome.problem:
                found.setdefault(outcome.setpoint.label, []).append(outcome)
        return found


def _kind(labels: Iterable[str]) -> str:
    return "setpoint" if any("MHz" in label for label in labels) else "power cap"


def _outcome(data: dict[str, Any]) -> SetpointOutcome:
    return SetpointOutcome(**{**data, "setpoint": Setpoint(**data["setpoint"])})
