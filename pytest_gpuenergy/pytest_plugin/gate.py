"""The gate within a pytest run: judges each item in its call phase and summarizes all."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpuenergy.gate.settings import GateSettings
from pytest_gpuenergy.pytest_plugin.budgets import KINDS, Budget, budgets_of
from pytest_gpuenergy.record.metrics import METRICS
from pytest_gpuenergy.support.errors import InputError
from pytest_gpuenergy.support.terminal import printable, show_section, terminal_width
from pytest_gpuenergy.support.text import wrapped

if TYPE_CHECKING:
    from pytest_gpuenergy.gate.comparison import Baseline, Unmatched
    from pytest_gpuenergy.gate.verdict import Judgement
    from pytest_gpuenergy.pytest_plugin.options import Options
    from pytest_gpuenergy.record.measurement import Measurement
    from pytest_gpuenergy.record.run import RunInfo
    from pytest_gpuenergy.report.shift import Pair
    from pytest_gpuenergy.report.store import Report

VERDICT, WORDS, MISSING = "_verdict", "_change", "gate_missing"
"""Names of JUnit properties, or their suffixes: ``edp_verdict``, ``edp_change``."""

_COMPARED = {f"{name}{VERDICT}" for name in METRICS}
_VERDICTS = {*_COMPARED, *(f"{kind.name}{VERDICT}" for kind in KINDS)}
_SELECTED = "gpuenergy_selected"
"""Attribute of the reports of energy items, also those from pytest-xdist's workers."""

_LINES_SHOWN = 40


def measures_energy(item: pytest.Item) -> bool:
    """Whether ``item`` is an energy item, that is, uses the fixture ``energy_benchmark``."""
    return "energy_benchmark" in getattr(item, "fixturenames", ())


class GatePlugin:
    """Holds the baseline and judges measurements; also a pytest plugin with hooks."""

    def __init__(self, options: Options) -> None:
        """Read the baseline.

        Raises:
            ReportError: it cannot be read.
            InputError: it is marked legacy.
        """
        self._settings: GateSettings = options.gate
        self._must_judge = options.strict_named
        self._baseline: Baseline | None = None
        self._comparisons = 1
        self._results: list[tuple[str, str, str]] = []
        self._failed: set[str] = set()
        self._compared = False
        self._doubt = ""
        self._given: dict[tuple[str, str], str] = {}
        self._again: list[str] = []
        self._pairs: list[Pair] = []
        self._unusable: dict[str, str] = {}
        if options.baseline is not None:
            from pytest_gpuenergy.gate.comparison import Baseline
            from pytest_gpuenergy.report.store import find_run, load_report

            report = load_report(find_run(options.baseline, options.root))
            self._baseline = Baseline(report, options.gate)

    def begin(self, run: RunInfo) -> None:
        """Check that ``run`` can be compared with the baseline.

        Raises:
            InputError: it cannot.
        """
        if self._baseline is not None:
            self._baseline.check(run)

    def baseline_for(self, run: RunInfo) -> Report | None:
        """The baseline to show next to ``run``; None without one or if they cannot be compared."""
        try:
            self.begin(run)
        except InputError:
            return None
        return None if self._baseline is None else self._baseline.report

    def judge(self, item: pytest.Item, measurement: Measurement, run: RunInfo) -> str:
        """Judge a measurement with figures; returns what fails the item, or an empty string."""
        problems: list[str] = []
        for budget in budgets_of(item):
            problems += self._judge_budget(item, measurement, budget)
        if self._baseline is not None:
            problems += self._record(item, self._judge(self._baseline, measurement, run))
        return "\n".join(map(printable, problems))

    def review(self, report: Report | None) -> list[str]:
        """Check at the end that something was judged, and judge again with all that is known.

        The verdict of an item knew only the unchanged kernels that were measured before it.

        Returns:
            The problems that fail the run.
        """
        from pytest_gpuenergy.record.anchor import DRIFT

        if self._baseline is not None and self._settings.enforced and not self._compared:
            if any(not verdict for _, verdict, _ in self._results):
                return [
                    f"Nothing was judged, because the baseline, run {self._baseline.run.run_id}, "
                    "has none of this run's items: give another one, or use gpuenergy baseline "
                    "update."
                ]
            if self._settings.strict and self._must_judge:
                return ["Nothing was judged, because nothing was measured: select energy items."]
        sure = {node for node, verdict, _ in self._results if verdict and verdict != "AMBIGUOUS"}
        measurements = report.measurements if report is not None else ()
        problems = self._judge_again(report) if report is not None else []
        count = sum(m.node_id in sure and DRIFT in m.validity for m in measurements)
        if count:
            self._doubt = (
                f"{count} verdicts were given before drift was found: gpuenergy compare judges "
                "again with the flags."
            )
        return [*problems, *([self._doubt] if count and self._settings.strict else [])]

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Count the verdicts before anything is measured, and read the markers."""
        comparisons = 0
        for item in session.items:
            measures = measures_energy(item)
            if measures and self._baseline is not None:
                comparisons += len(self._settings.limits)
            try:
                budgets = [*budgets_of(item)]
                comparisons += len(budgets)
                if budgets and not measures:
                    raise InputError(
                        f"The marker {budgets[0].kind.marker} needs the fixture energy_benchmark."
                    )
            except InputError as error:
                self._unusable[item.nodeid] = f"{item.nodeid}: {error}"
        self._comparisons = max(1, comparisons)
        if self._unusable and not hasattr(session.config, "workerinput"):
            raise pytest.UsageError("\n".join(self._unusable.values()))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Mark the reports of energy items, measured or not."""
        report = yield
        if measures_energy(item):
            setattr(report, _SELECTED, True)
        return report

    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Fail items with an invalid marker in a pytest-xdist worker, which cannot end the run."""
        if problem := self._unusable.get(item.nodeid):
            pytest.fail(problem, pytrace=False)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Collect the verdicts; with pytest-xdist they come from the workers."""
        self._must_judge = self._must_judge or hasattr(report, _SELECTED)
        if report.when != "call":
            return
        if report.failed:
            self._failed.add(report.nodeid)
        properties = dict(report.user_properties)
        for name, value in properties.items():
            if name == MISSING:
                self._results.append((report.nodeid, "", str(value)))
            elif name in _VERDICTS:
                self._compared = self._compared or name in _COMPARED
                self._given[report.nodeid, name.removesuffix(VERDICT)] = str(value)
                words = properties.get(name.removesuffix(VERDICT) + WORDS)
                self._results.append((report.nodeid, str(value), str(words)))

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Show every verdict that is not SAME, and the count of each."""
        width = terminal_width(is_terminal=terminalreporter.isatty)
        lines = (
            part for line in self._summary() for part in wrapped(line, width, whole_words=True)
        )
        show_section(terminalreporter, "gpuenergy gate", lines)
        for line in self._annotations():
            terminalreporter.write_line(line)

    def _annotations(self) -> Iterator[str]:
        """In GitHub Actions, an error annotation for each verdict that failed its item."""
        from pytest_gpuenergy.gate.annotations import limited, wanted

        if wanted():
            fine = (
                ("SAME", "BETTER") if self._settings.strict else ("SAME", "BETTER", "AMBIGUOUS", "")
            )
            failed = (
                (node, words)
                for node, verdict, words in self._results
                if node in self._failed and verdict not in fine
            )
            yield from limited("error", failed)

    def _summary(self) -> Iterator[str]:
        if self._baseline is None and not self._results:
            return
        from pytest_gpuenergy.gate.verdict import Verdict
        from pytest_gpuenergy.gate.views import tally

        if self._baseline is not None:
            yield f"baseline: run {self._baseline.run.run_id} of {self._baseline.run.started}"
        notable = [
            f"{node}: {words}" for node, verdict, words in self._results if verdict != "SAME"
        ]
        yield from notable[:_LINES_SHOWN]
        if len(notable) > _LINES_SHOWN:
            yield f"{len(notable) - _LINES_SHOWN} more in the items' reports"
        verdicts = [Verdict(verdict) for _, verdict, _ in self._results if verdict]
        missing = len(self._results) - len(verdicts)
        yield tally(verdicts) + (f", {missing} not in the baseline" if missing else "")
        yield from self._again
        if self._doubt:
            yield self._doubt

    def _judge(
        self, baseline: Baseline, measurement: Measurement, run: RunInfo
    ) -> Sequence[Judgement] | Unmatched:
        from pytest_gpuenergy.gate.comparison import Unmatched
        from pytest_gpuenergy.gate.relative import Tails
        from pytest_gpuenergy.report.shift import common_shifts

        found = baseline.pair(measurement, run)
        if isinstance(found, Unmatched):
            return found
        self._pairs.append(found)
        tails = Tails.while_running(self._comparisons)
        return baseline.judge(found, run, common_shifts(self._pairs), tails)

    def _judge_again(self, report: Report) -> list[str]:
        """Note the common shifts and the verdicts they change; returns what fails the run."""
        if self._baseline is None:
            return []
        from pytest_gpuenergy.gate.comparison import compare
        from pytest_gpuenergy.gate.shift_views import shift_lines, shift_problem
        from pytest_gpuenergy.gate.verdict import fails
        from pytest_gpuenergy.gate.views import describe

        try:
            comparison = compare(self._baseline.report, report, self._settings)
        except InputError:
            return []  # the items have failed with that
        if not comparison.shifts:
            return []
        problems = [f"gate: {shift_problem(one)}" for one in comparison.failing_shifts]
        self._again += shift_lines(comparison.shifts)
        for one in comparison.judgements:
            before = self._given.get((one.node_id, one.metric))
            if before is None or before == one.verdict:
                continue
            words = f"{one.node_id}, judged again with all kernels: {describe(one)}"
            self._again.append(words)
            if fails(one, self._settings) and one.node_id not in self._failed:
                problems.append(f"gate: {words}")
        return problems

    def _judge_budget(self, item: pytest.Item, m: Measurement, budget: Budget) -> Iterator[str]:
        from pytest_gpuenergy.gate.verdict import Verdict, judge_budget
        from pytest_gpuenergy.gate.views import budget_words

        judgement = judge_budget(
            m, budget.most, budget.rel, self._settings, self._comparisons, budget.kind.metric
        )
        words = budget_words(judgement)
        _note(item, budget.kind.name, judgement.verdict, words)
        over = judgement.verdict is Verdict.WORSE
        if over or (judgement.verdict is Verdict.AMBIGUOUS and self._settings.strict):
            yield f"budget: {words}"

    def _record(self, item: pytest.Item, result: Sequence[Judgement] | Unmatched) -> Iterator[str]:
        from pytest_gpuenergy.gate.comparison import Unmatched
        from pytest_gpuenergy.gate.verdict import fails
        from pytest_gpuenergy.gate.views import describe

        if isinstance(result, Unmatched):
            item.user_properties.append((MISSING, result.why))
            if self._settings.strict:
                yield f"gate: {result.why}"
            return
        for judgement in result:
            words = describe(judgement)
            _note(item, judgement.metric, judgement.verdict, words)
            if fails(judgement, self._settings):
                yield f"gate: {words}"


def _note(item: pytest.Item, name: str, verdict: str, words: str) -> None:
    item.user_properties += [(f"{name}{VERDICT}", str(verdict)), (f"{name}{WORDS}", words)]
