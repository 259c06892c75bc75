"""The gate within a pytest run: judges each item in its call phase and summarizes all."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpuenergy.gate import (
    BUDGET_VERDICTS,
    Baseline,
    GateSettings,
    Tails,
    Unmatched,
    Verdict,
    annotate_all,
    annotate_counts,
    budget_words,
    compare,
    describe,
    fails,
    in_github_actions,
    judge_budget,
    loss,
    missing_words,
    parse_percent,
    shift_lines,
    shift_problem,
    tally,
)
from pytest_gpuenergy.pytest_plugin._compat import JunitCase, replace_in_failure
from pytest_gpuenergy.pytest_plugin.declared_options import EDP_MARKER, ENERGY_MARKER
from pytest_gpuenergy.pytest_plugin.selection import COLLECTED, Selection
from pytest_gpuenergy.record import DRIFT, METRICS, Metric
from pytest_gpuenergy.report import Report, common_shifts, find_run, load_report
from pytest_gpuenergy.support import (
    InputError,
    emulated_mark,
    printable,
    show_section,
    terminal_width,
    wrapped,
)

if TYPE_CHECKING:
    from pytest_gpuenergy.gate import Comparison
    from pytest_gpuenergy.pytest_plugin.options import PytestOptions
    from pytest_gpuenergy.record import Measurement, RunInfo
    from pytest_gpuenergy.report import Pair

VERDICT, WORDS, MISSING = "_verdict", "_change", "gate_missing"
"""Names of JUnit properties, or their suffixes: ``edp_verdict``, ``edp_change``."""
_SELECTED = "gpuenergy_selected"
"""Attribute of the reports of energy items, also those from pytest-xdist's workers."""
_LINES_SHOWN = 40
_AGAIN = ", judged again with all kernels: "
_GOOD = ("SAME", "BETTER", "within budget")
_BAD = ("WORSE", "over budget")
_OPEN = ("AMBIGUOUS", "undecided")
_UNREMARKABLE = ("SAME", "within budget")


@dataclass(frozen=True)
class BudgetKind:
    """A marker that sets a budget for an item.

    Attributes:
        argument: name of its argument, a figure of one launch.
        unit: unit of the argument.
        scale: factor from the argument's unit to the metric's unit.
        most: largest value of the argument.
        name: name of the budget in the JUnit properties.
    """

    marker: str
    metric: Metric
    argument: str
    unit: str
    scale: float
    most: float
    example: str
    name: str


BUDGET_KINDS = (
    BudgetKind(
        *(EDP_MARKER, Metric.EDP, "max_mj_ms", "mJ·ms", 1.0, 1e12),
        example='edp_budget(max_mj_ms=0.15, rel="3%")',
        name="budget",
    ),
    BudgetKind(
        *(ENERGY_MARKER, Metric.ENERGY, "joules", "J", 1e3, 1e9),
        example='energy_budget(joules=0.008, rel="3%")',
        name="energy_budget",
    ),
)


@dataclass(frozen=True)
class Budget:
    """The budget of a marker: ``most`` in the metric's unit, plus the fraction ``rel`` of it."""

    kind: BudgetKind
    most: float
    rel: float

    @classmethod
    def of(cls, kind: BudgetKind, mark: pytest.Mark) -> Budget:
        """Read the marker's arguments."""
        name, given = kind.argument, mark.kwargs.get(kind.argument)
        unknown = [*map(repr, mark.args), *sorted({*mark.kwargs} - {name, "rel"})]
        if unknown:
            raise InputError(
                f"The marker {kind.marker} does not take {unknown[0]}: write {kind.example}."
            )
        if (
            not isinstance(given, int | float)
            or isinstance(given, bool)
            or not 0 < given <= kind.most
        ):
            raise InputError(
                f"The marker {kind.marker} needs {name}, a number of {kind.unit} above 0, up to "
                f"{kind.most:g}, not {given!r}."
            )
        rel = parse_percent(mark.kwargs.get("rel", "0%"), f"{kind.marker}'s rel")
        return cls(kind, float(given) * kind.scale, rel)


def item_budgets(item: pytest.Item) -> Iterator[Budget]:
    """Return the budgets of an item; of several markers of one kind, the closest one counts.

    Raises:
        InputError: the arguments of a marker are invalid.
    """
    for kind in BUDGET_KINDS:
        if (mark := item.get_closest_marker(kind.marker)) is not None:
            yield Budget.of(kind, mark)


_COMPARED = {f"{name}{VERDICT}" for name in METRICS}
_VERDICTS = {*_COMPARED, *(f"{kind.name}{VERDICT}" for kind in BUDGET_KINDS)}


def measures_energy(item: pytest.Item) -> bool:
    """Return whether ``item`` is an energy item: one that uses the fixture ``energy_benchmark``."""
    return "energy_benchmark" in getattr(item, "fixturenames", ())


class GatePlugin:
    """Holds the baseline and judges measurements; also a pytest plugin with hooks."""

    def __init__(self, config: pytest.Config, options: PytestOptions) -> None:
        """Read the baseline, which must not be marked legacy.

        Raises:
            ReportError: it cannot be read.
            InputError: it is marked legacy.
        """
        self._settings: GateSettings = options.gate
        self._must_judge = options.strict_named
        self._baseline: Baseline | None = None
        self._comparisons = 1
        self._results: dict[tuple[str, str], tuple[str, str]] = {}
        self._failed: dict[str, pytest.TestReport] = {}
        self._compared = False
        self._doubt = ""
        self._shift_lines: list[str] = []
        self._run_problems: list[str] = []
        self._pairs: dict[str, Pair] = {}
        self._unusable: dict[str, str] = {}
        self._comparison: Comparison | None = None
        self._run_again: set[str] = set()
        self._in_junit: dict[str, JunitCase] = {}
        self._config = config
        if options.baseline is not None:
            report = load_report(find_run(options.baseline, options.root))
            self._baseline = Baseline(report, options.gate)
        self._selection = Selection(
            config, () if self._baseline is None else self._baseline.report.measurements
        )

    def begin(self, run: RunInfo) -> None:
        """Check that ``run`` can be compared with the baseline.

        Raises:
            InputError: it cannot.
        """
        if self._baseline is not None:
            self._baseline.check(run)

    def shown_baseline(self, run: RunInfo) -> Report | None:
        """Return the baseline to show next to ``run``; None if none can be compared with it."""
        try:
            self.begin(run)
        except InputError:
            return None
        return None if self._baseline is None else self._baseline.report

    def judge(self, item: pytest.Item, measurement: Measurement, run: RunInfo) -> str:
        """Judge a measurement with figures; return what fails the item, or an empty string."""
        settings, strict, emulated = self._settings, self._settings.strict, run.emulated
        problems: list[str] = []
        for budget in item_budgets(item):
            judgement = judge_budget(
                measurement,
                budget.most,
                budget.rel,
                settings,
                self._comparisons,
                budget.kind.metric,
            )
            words = budget_words(judgement, emulated=emulated)
            _note(item, budget.kind.name, BUDGET_VERDICTS[judgement.verdict], words)
            undecided = judgement.verdict is Verdict.AMBIGUOUS
            if judgement.verdict is Verdict.WORSE or (undecided and strict):
                problems.append(f"budget: {words}")
        found = None if self._baseline is None else self._baseline.pair(measurement, run)
        if isinstance(found, Unmatched):
            set_properties(item, [(MISSING, found.why)])
            problems += [f"gate: {found.why}"] if strict else ()
        elif self._baseline is not None and found is not None:
            self._pairs[measurement.node_id] = found
            shifts = common_shifts(self._pairs.values(), settings.same_board_sd)
            tails = Tails.while_running(self._comparisons)
            for judgement in self._baseline.judge(found, run, shifts, tails):
                words = describe(judgement, emulated=emulated)
                _note(item, judgement.metric, judgement.verdict, words)
                problems += [f"gate: {words}"] if fails(judgement, settings) else ()
        return "\n".join(map(printable, problems))

    def compare(self, report: Report) -> Comparison | None:
        """Compare the run with the baseline, once; return None if that is impossible.

        These are the final verdicts. An item's verdict in its call phase could only use the
        unchanged kernels that were measured before it.
        """
        if self._comparison is None and self._baseline is not None:
            deselects = self._selection.deselects
            with contextlib.suppress(InputError):  # the items have failed for this reason
                base = self._baseline.report
                self._comparison = compare(base, report, self._settings, deselects)
        return self._comparison

    def review(self, report: Report | None) -> list[str]:
        """Judge all items again with all figures; return the problems that fail the run."""
        if self._baseline is not None and self._settings.enforced and not self._compared:
            if any(name == MISSING for _, name in self._results):
                self._run_problems = [
                    f"Nothing was judged, because the baseline, run {self._baseline.run.run_id}, "
                    "has none of this run's items: give another one, or use gpuenergy baseline "
                    "update."
                ]
            elif self._settings.strict and self._must_judge:
                self._run_problems = [
                    "Nothing was judged, because nothing was measured: select energy items."
                ]
            if self._run_problems:
                return self._run_problems
        if report is None and self._baseline is not None:  # all of its kernels may be missing
            report = Report(self._baseline.run, ())
        sure = {
            node
            for (node, name), (verdict, _) in self._results.items()
            if name != MISSING and verdict not in _OPEN
        }
        measurements = report.measurements if report is not None else ()
        problems = []
        if report is not None and (comparison := self.compare(report)) is not None:
            problems += self._settle(comparison)
            if self._settings.strict and comparison.missing_in_new:
                problems.append(f"gate: {missing_words(comparison)}")
        count = sum(m.node_id in sure and DRIFT in m.validity for m in measurements)
        if count:
            self._doubt = (
                f"{count} verdicts were given before drift was found: gpuenergy compare judges "
                "again with the flags."
            )
            if self._settings.strict:
                self._run_problems.append(self._doubt)
        return [*problems, *self._run_problems]

    def pytest_deselected(self, items: Sequence[pytest.Item]) -> None:
        """Note which energy items an option deselected."""
        self._selection.deselect([item for item in items if measures_energy(item)])

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Receive from a pytest-xdist worker what it has collected."""
        if sent := getattr(node, "workeroutput", {}).get(COLLECTED):
            self._selection.receive(sent)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Before anything is measured, count the verdicts to come and read the markers."""
        comparisons = 0
        self._selection.select([item for item in session.items if measures_energy(item)])
        if self._baseline is not None and hasattr(session.config, "workeroutput"):
            session.config.workeroutput[COLLECTED] = self._selection.sent()
        for item in session.items:
            measures = measures_energy(item)
            if measures and self._baseline is not None:
                comparisons += len(self._settings.limits)
            try:
                budgets = [*item_budgets(item)]
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

    @pytest.hookimpl(tryfirst=True)  # before JUnit XML reads the properties
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Collect the verdicts; with pytest-xdist they come from the workers.

        An item that is run again, as by pytest-rerunfailures, keeps the verdicts and properties of
        its last run.
        """
        self._must_judge = self._must_judge or hasattr(report, _SELECTED)
        if report.when == "teardown":
            if report.nodeid in self._run_again:
                report.user_properties.clear()
            elif (case := JunitCase.of(self._config, report)) is not None:
                self._in_junit[report.nodeid] = case
        if report.when == "setup":
            self._run_again.discard(report.nodeid)
            if (earlier := self._in_junit.pop(report.nodeid, None)) is not None:
                earlier.drop_properties()  # they belong to a failed run, as with the plugin flaky
        if str(report.outcome) == "rerun":
            self._run_again.add(report.nodeid)
        elif report.when == "call":
            self._collect_verdicts(report)

    def _collect_verdicts(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._failed[report.nodeid] = report
        properties = dict(report.user_properties)
        for name, value in properties.items():
            if name == MISSING:
                self._results[report.nodeid, MISSING] = "", str(value)
            elif name in _VERDICTS:
                self._compared = self._compared or name in _COMPARED
                name = name.removesuffix(VERDICT)
                self._results[report.nodeid, name] = str(value), str(properties.get(name + WORDS))

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
        """Return annotations for GitHub Actions: those of ``gpuenergy compare``, and budgets."""
        if in_github_actions():
            levels: dict[str, list[tuple[str, str]]] = {"error": [], "warning": []}
            for (node, _), (verdict, words) in self._results.items():
                bad = verdict in _BAD
                fails = self._settings.strict or (bad and self._settings.enforced)
                if bad or (self._settings.strict and verdict not in _GOOD):
                    level = "error" if fails or verdict == "over budget" else "warning"
                    levels[level].append((node, words.removeprefix(_AGAIN)))
            levels["error"] += (("gate", problem) for problem in self._run_problems)
            for level, found in levels.items():
                yield from annotate_all(level, found)
            if self._comparison is not None:
                yield from annotate_counts(self._comparison)

    def _summary(self) -> Iterator[str]:
        if self._baseline is None and not self._results:
            return

        if self._baseline is not None:
            run = self._baseline.run
            emulated = emulated_mark(run.emulated)
            yield f"baseline: run {run.run_id} of {run.started}{emulated}"
        notable = [
            f"{node}{words if words.startswith(_AGAIN) else f': {words}'}"
            for (node, _), (verdict, words) in self._results.items()
            if verdict not in _UNREMARKABLE or words.startswith(_AGAIN)
        ]
        yield from notable[:_LINES_SHOWN]
        if len(notable) > _LINES_SHOWN:
            yield f"{len(notable) - _LINES_SHOWN} more in the items' reports"
        verdicts = [verdict for verdict, _ in self._results.values() if verdict]
        missing = len(self._results) - len(verdicts)
        yield from self._shift_lines
        if self._doubt:
            yield self._doubt
        words = tally(verdicts) + (f", {missing} not in the baseline" if missing else "")
        if self._comparison is not None and (lost := loss(self._comparison)):
            words += f": {'passed' if self._comparison.passed else 'FAILED'}{lost}"
        yield words

    def _settle(self, comparison: Comparison) -> list[str]:
        """Replace the items' verdicts by those of the comparison; return what fails the run."""
        emulated = comparison.new.emulated
        problems = []
        for shift in comparison.failing_shifts:
            self._run_problems.append(f"gate: {shift_problem(shift, emulated=emulated)}")
        self._shift_lines += shift_lines(comparison.shifts, emulated=emulated)
        for judgement in comparison.judgements:
            place = judgement.node_id, str(judgement.metric)
            if (before := self._results.get(place)) is None:
                continue
            words = described = describe(judgement, emulated=emulated)
            if before[0] != judgement.verdict:
                words = f"{_AGAIN}{words}"
                if fails(judgement, self._settings) and judgement.node_id not in self._failed:
                    problems.append(f"gate: {judgement.node_id}{words}")
                described += f" (when it was measured: {before[0]})"
            self._results[place] = str(judgement.verdict), words
            report, shown = self._failed.get(judgement.node_id), printable(described)
            if report is not None:
                replace_in_failure(report, printable(before[1]), shown)
            if (case := self._in_junit.get(judgement.node_id)) is not None:
                case.replace(printable(before[1]), shown)
                case.set_property(f"{judgement.metric}{VERDICT}", str(judgement.verdict))
                case.set_property(f"{judgement.metric}{WORDS}", shown)
        return problems


def set_properties(item: pytest.Item, properties: Iterable[tuple[str, object]]) -> None:
    """Set an item's properties for JUnit XML, replacing those of an earlier run of the item."""
    found = dict(properties)
    kept = [(name, value) for name, value in item.user_properties if name not in found]
    item.user_properties[:] = [*kept, *found.items()]


def _note(item: pytest.Item, name: str, verdict: str, words: str) -> None:
    set_properties(item, [(f"{name}{VERDICT}", str(verdict)), (f"{name}{WORDS}", words)])
