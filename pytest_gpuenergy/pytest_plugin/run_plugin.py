"""The plugin that is loaded once one of our options is set or one of our items is collected."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Sequence
from functools import partial
from typing import Any, NoReturn

import pytest

from pytest_gpuenergy import ab
from pytest_gpuenergy.control import CURRENT, Setpoint
from pytest_gpuenergy.devices import Device
from pytest_gpuenergy.pytest_plugin._compat import JunitCase
from pytest_gpuenergy.pytest_plugin.benches.searches import graphs
from pytest_gpuenergy.pytest_plugin.bridge import BenchmarkBridge
from pytest_gpuenergy.pytest_plugin.declared_options import (
    DEVICE_FIXTURE,
    FIGURES,
    POWERCAP_FIXTURE,
    runs_items,
)
from pytest_gpuenergy.pytest_plugin.distribute.deferral import DeferringPlugin
from pytest_gpuenergy.pytest_plugin.distribute.link import (
    BAD_OPTION,
    DEFERS,
    LINE,
    PROBLEMS,
    RUN_ID,
    UNUSABLE,
    Link,
    WorkerPlugin,
)
from pytest_gpuenergy.pytest_plugin.distribute.workers import Workers
from pytest_gpuenergy.pytest_plugin.energy_benchmark import VerifyOnlyPlugin
from pytest_gpuenergy.pytest_plugin.gate import VERDICT, GatePlugin, measures_energy
from pytest_gpuenergy.pytest_plugin.options import PytestOptions
from pytest_gpuenergy.pytest_plugin.outputs import (
    OUTCOME,
    ProgressPlugin,
    SetpointOutcome,
    SetpointPlugin,
    check_outputs,
    collection_error,
    header_lines,
    show_preheat,
    summary_lines,
    write_outputs,
)
from pytest_gpuenergy.pytest_plugin.selection import interleave, item_place, name_items
from pytest_gpuenergy.pytest_plugin.session import Session
from pytest_gpuenergy.report import latest_run
from pytest_gpuenergy.support import (
    GpuEnergyError,
    InputError,
    SetpointError,
    error_message,
    printable,
    settle_places,
    show_section,
    terminal_width,
    undisturbed,
    wrapped,
)

_COMPLETE = (
    pytest.ExitCode.OK,
    pytest.ExitCode.TESTS_FAILED,
    pytest.ExitCode.NO_TESTS_COLLECTED,
)
BRIDGE = "gpuenergy-benchmark"
DEFERRING = "gpuenergy-deferring"
_INTERRUPTED_S = 10.0
"""The time that interrupted workers have to restore their GPUs; pytest-xdist then waits as long."""


class RunPlugin:
    """Connects pytest's hooks to the objects that measure, judge and report.

    Attributes:
        session: the device, its lease and the run folder.
        gate: the baseline and the verdicts.
    """

    def __init__(self, config: pytest.Config) -> None:
        """Read the options, reject invalid ones before anything is measured, register helpers.

        Raises:
            pytest.UsageError: an option is invalid.
        """
        worker_input: dict[str, Any] | None = getattr(config, "workerinput", None)
        link = (
            None if worker_input is None or LINE not in worker_input else Link(worker_input[LINE])
        )
        workers: Any = config.pluginmanager.get_plugin(WorkerPlugin.NAME)
        settle_places()
        try:
            options = PytestOptions.from_pytest_config(config)
            if worker_input is None:  # pytest-xdist's workers write no views
                check_outputs(options)
                if options.resume and (last := latest_run(options.root)) is not None:
                    workers.run_id = last.path.name
            self.gate = GatePlugin(config, options)
            run_id = workers.run_id if worker_input is None else worker_input[RUN_ID]
            self.session = Session(options, run_id, link)
        except (GpuEnergyError, OSError) as error:
            raise pytest.UsageError(error_message(error)) from None
        self.session.announce_preheat = partial(show_preheat, config)
        self._config = config
        self._crew: Workers | None = None
        self._setpoints = SetpointPlugin()
        self._problem = ""
        self._naming_nothing: list[str] = []
        self._interrupted = False
        self._finished = self._shown = False
        self._end = contextlib.ExitStack()
        plugins = config.pluginmanager
        plugins.register(self.gate, "gpuenergy_gate")
        plugins.register(self._setpoints, "gpuenergy-setpoints")
        if options.verify_only:
            plugins.register(VerifyOnlyPlugin(), "gpuenergy-verify-only")
        if worker_input is not None:
            self.session.expect_termination()
            if worker_input.get(DEFERS) and link is not None:
                # Groups are the controller's, and pytest-xdist would write them into the ids.
                config.option.loadgroup = False
                plugins.register(DeferringPlugin(self.session, self.gate, link), DEFERRING)
            return
        workers.before_start = self.session.expect_termination
        self._crew = Workers(config, workers, options, run_id)
        plugins.register(self._crew, Workers.NAME)
        if config.get_verbosity() >= 0:
            plugins.register(ProgressPlugin(config, has_figures), "gpuenergy-progress")
        if plugins.has_plugin("benchmark"):
            plugins.register(BenchmarkBridge(config), BRIDGE)

    def parametrize_setpoints(self, metafunc: pytest.Metafunc) -> None:
        """Make one item per setpoint.

        Raises:
            BadOptionError: an option cannot work, as in every other test module.
            pytest.Collector.CollectError: the setpoints cannot be determined.
        """
        try:
            setpoints = self.session.card.resolve_setpoints()
        except (GpuEnergyError, OSError) as error:
            deferring = self._config.pluginmanager.get_plugin(DEFERRING)
            if deferring is None:
                raise collection_error(self._config, error) from None
            bad_option = isinstance(error, InputError)
            deferring.give_up(error_message(error), BAD_OPTION if bad_option else UNUSABLE)
            setpoints = [CURRENT]  # other workers collect and run the rest
        card = self.session.card
        if card.opened and not card.device.emulated and runs_items(self._config):
            card.device.prepare(())  # imports CuPy while the rest is collected
        ids = [setpoint.label for setpoint in setpoints]
        metafunc.parametrize(POWERCAP_FIXTURE, setpoints, ids=ids, indirect=True)

    def name_items(self, items: Sequence[pytest.Item]) -> None:
        """Let ``-k`` select items by ids that were copied from a report."""
        if self._config.getoption("keyword"):
            self._naming_nothing = name_items(self._config, items)

    def claim_device(self) -> Device:
        """The device, claimed for this run; ends the run with an error message if that fails."""
        problem, usage = "", False
        try:
            self.session.begin()
            assert self.session.run is not None
            self.gate.begin(self.session.run)
            self.session.card.device.make_current()
        except (GpuEnergyError, OSError) as error:
            problem, usage = error_message(error), isinstance(error, InputError)
        if problem:
            self._give_up(problem, usage=usage)
        return self.session.card.device

    def apply_setpoint(self, item: pytest.Item, setpoint: Setpoint | None) -> Setpoint:
        """Set the card to ``setpoint`` (None: leave it as it is), or skip or fail the item."""
        setpoint = CURRENT if setpoint is None else setpoint
        session = self.session
        words = session.card.named.setpoint_words(setpoint)
        try:
            session.apply(setpoint)
        except (GpuEnergyError, OSError) as error:
            problem, unset = error_message(error), isinstance(error, SetpointError)
        else:
            item.stash[OUTCOME] = SetpointOutcome(setpoint, words)
            return setpoint
        if not unset:
            self._give_up(problem)
        if not session.card.answers():
            pytest.fail(problem, pytrace=False)
        item.stash[OUTCOME] = SetpointOutcome(
            setpoint, words, problem, measured=session.resumption.has_measured_at(setpoint)
        )
        if session.options.strict_powercap and not session.card.named.left_out(setpoint):
            pytest.fail(problem, pytrace=False)
        pytest.skip(problem)

    @pytest.hookimpl(tryfirst=True)  # before the card is restored, or whatever else ends
    def pytest_runtest_teardown(self) -> None:
        """Stop heating the card for an item that was not measured."""
        self.session.end_heating()

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Interleave the items of each test that has several setpoints or kernels."""
        if self.session.options.order != "file":
            items[:] = interleave(items, item_place)
        ours = sum(DEVICE_FIXTURE in getattr(item, "fixturenames", ()) for item in items)
        self.session.items = max(1, ours)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Create the folder of an export if there are energy items, whether or not they succeed.

        What all kernels need is made from now on, while the first item begins.
        """
        card, any_energy = self.session.card, any(map(measures_energy, session.items))
        if any_energy and runs_items(self._config) and card.opened:
            card.device.prepare(())

        folder = self.session.options.export_folder
        if folder is not None and any_energy:
            with contextlib.suppress(GpuEnergyError):  # each item will report it
                ab.begin_export(folder)

    def pytest_report_collectionfinish(self, items: Sequence[pytest.Item]) -> list[str]:
        """Show the device and its power caps, if an item needs them.

        If nothing is selected, tell which words of ``-k`` are in no item's name.
        """
        if not items and self._naming_nothing:
            words = ", ".join(self._naming_nothing)
            return [printable(f"gpuenergy: -k selects nothing: no item's name contains {words}")]
        if not self.session.card.opened or not items:
            return []
        return list(map(printable, header_lines(self.session.card, self.session.options)))

    def pytest_report_teststatus(
        self, report: pytest.CollectReport | pytest.TestReport
    ) -> tuple[str, str, str] | None:
        """Show an item's figures in its status: ``PASSED 19.3 µs 7.62 mJ 0.147 mJ·ms``."""
        if report.when != "call" or not report.passed or not has_figures(report):
            return None
        properties = [*report.user_properties]
        words = [value for name, value in properties if name == FIGURES]
        flagged = any(name == "validity" and value for name, value in properties)
        unsure = any(
            name.endswith(VERDICT) and value in ("AMBIGUOUS", "undecided")
            for name, value in properties
        )
        return (
            "passed",
            "!" if flagged else "?" if unsure else ".",
            f"{'FLAGGED' if flagged else 'PASSED'} {words[-1]}{' AMBIGUOUS' if unsure else ''}",
        )

    def pytest_keyboard_interrupt(self) -> None:
        """Pass an interrupt on to the workers: a signal to this process does not reach them."""
        if self._crew is not None:
            self._crew.line.interrupt()
            self._interrupted = True

    @pytest.hookimpl(wrapper=True, tryfirst=True)  # before pytest-benchmark writes
    def pytest_sessionfinish(self, session: pytest.Session) -> Generator[None, object, object]:
        """Restore the card, then write the views; measurements are already on disk."""
        problems = self._release(session)
        if session.exitstatus == pytest.ExitCode.INTERRUPTED:
            self._end.enter_context(undisturbed())  # until pytest has reported
        if self._crew is None:
            # A worker's exit status is ignored. pytest-xdist adds the attribute.
            self._config.workeroutput[PROBLEMS] = problems  # type: ignore[attr-defined]
        else:
            self._conclude(session, self._crew, problems)
        if problems:
            self._problem = " ".join(dict.fromkeys(problems))
            if self._crew is not None:  # otherwise, JUnit XML shows a run that passed
                JunitCase.add_failure(self._config, "gpuenergy", printable(self._problem))
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
        self._finished = self._crew is not None
        return (yield)

    def _release(self, session: pytest.Session) -> list[str]:
        """Restore this process's card, and those that lost workers have left; return problems."""
        ours, problems = self.session, []
        ended_early = (pytest.ExitCode.INTERRUPTED, pytest.ExitCode.INTERNAL_ERROR)
        steps: list[Callable[[], None]] = (
            [ours.close] if session.exitstatus in ended_early else [ours.finish, ours.close]
        )
        if (crew := self._crew) is not None:
            if self._interrupted:
                steps.append(partial(crew.line.await_silence, _INTERRUPTED_S))
            if crew.line.lost:
                steps.append(lambda: crew.losses.mend(ours.restore_leftovers()))
        for step in steps:
            try:
                step()
            except (GpuEnergyError, OSError) as error:
                problems.append(error_message(error))
            except KeyboardInterrupt:
                session.exitstatus = pytest.ExitCode.INTERRUPTED
        return problems

    def _conclude(self, session: pytest.Session, crew: Workers, problems: list[str]) -> None:
        """Write the views, judge all items, pass on the measurements; add to the problems."""
        config, ours = self._config, self.session
        problems += crew.line.problems
        ours.restored += crew.close()
        over = session.exitstatus in _COMPLETE and not config.getoption("collectonly")
        if over:
            problems += crew.problems()
        problems += self._setpoints.problems(session.testscollected)
        problems += write_outputs(ours, self.gate, partial(graphs, config))
        try:
            report = ours.outcome
        except (GpuEnergyError, OSError) as error:
            problems.append(error_message(error))
        else:
            if (bridge := config.pluginmanager.get_plugin(BRIDGE)) is not None:
                bridge.add(report)
            if over:
                problems += self.gate.review(report)
        if problems and ours.options.export_folder is not None:
            try:  # gpuenergy ab must know what failed the run as a whole
                ab.export_problems(ours.options.export_folder, problems)
            except GpuEnergyError as error:
                problems.append(str(error))

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Show the summary, the caps that could not be set, and errors."""
        self._shown = True
        width = terminal_width(is_terminal=terminalreporter.isatty)
        losses = () if self._crew is None else self._crew.losses.summary_lines()
        sentences = [*self._setpoints.summary_lines(), *losses]
        lines = [
            *summary_lines(self.session, self._config.get_verbosity(), width),
            *(part for line in sentences for part in wrapped(line, width, whole_words=True)),
        ]
        show_section(terminalreporter, "gpuenergy", lines)
        if self._problem:
            terminalreporter.write_line(printable(f"gpuenergy: error: {self._problem}"), red=True)

    @pytest.hookimpl(trylast=True)  # after the terminal's own
    def pytest_unconfigure(self) -> None:
        """Restore the card if the session ended before it started.

        Show the summary if another plugin failed at the end, so that pytest asked nobody for one.
        """
        try:
            self.session.close()
            terminal = self._config.pluginmanager.get_plugin("terminalreporter")
            if self._finished and not self._shown and terminal is not None:
                self.pytest_terminal_summary(terminal)
        finally:
            self._end.close()

    def _give_up(self, problem: str, *, usage: bool = False) -> NoReturn:
        """End the run because every item would fail; ``usage``: because of an invalid option."""
        if self._crew is None:  # pytest-xdist treats a worker's exit as a crash
            pytest.fail(problem, pytrace=False)
        code = pytest.ExitCode.USAGE_ERROR if usage else pytest.ExitCode.TESTS_FAILED
        pytest.exit(f"error: {problem}", returncode=code)


def has_figures(report: pytest.CollectReport | pytest.TestReport) -> bool:
    """Return whether a report belongs to an item that was measured."""
    return any(name == FIGURES for name, _ in report.user_properties)
