"""The plugin that is loaded once one of our options is set or one of our items is collected."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Hashable, Sequence
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, TypeVar

import pytest

from pytest_gpuenergy.control import CURRENT, Setpoint
from pytest_gpuenergy.devices import Device
from pytest_gpuenergy.pytest_plugin._compat import JunitCase
from pytest_gpuenergy.pytest_plugin.benches.searches import graphs
from pytest_gpuenergy.pytest_plugin.declared_options import (
    DEVICE_FIXTURE,
    FIGURES,
    POWERCAP_FIXTURE,
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
    BadOptionError,
    ProgressPlugin,
    SetpointOutcome,
    SetpointPlugin,
    check_outputs,
    header_lines,
    show_preheat,
    summary_lines,
    write_outputs,
)
from pytest_gpuenergy.pytest_plugin.selection import name_items
from pytest_gpuenergy.pytest_plugin.session import Session
from pytest_gpuenergy.report import latest_run
from pytest_gpuenergy.support import (
    GpuEnergyError,
    InputError,
    SetpointError,
    printable,
    settle_places,
    show_section,
    terminal_width,
    told,
    undisturbed,
    wrapped,
)

_T = TypeVar("_T")


class ItemPlace(NamedTuple):
    """An item's place; only adjacent items of the same ``group`` are reordered."""

    group: Hashable
    kernel: Hashable
    setpoint: Hashable


def interleave(items: Sequence[_T], place: Callable[[_T], ItemPlace | None]) -> list[_T]:
    """Interleave the setpoints and kernels of each group, deterministically.

    The warming of the card then favours no setpoint and no kernel. A group is a table of kernels
    and setpoints. It is traversed in as many rounds as there are setpoints. Each round has every
    kernel once, alternately forwards and backwards. From one round to the next, a kernel advances
    by one in the sequence of setpoints first, last, second, second to last, and so on; the kernels
    start at places spread over that sequence. Each setpoint and each kernel is therefore spread
    about evenly over the run.

    Args:
        items: the items as written.
        place: returns an item's place; None for an item that stays where it is.
    """
    ordered: list[_T] = []
    for group, members in groupby(items, key=lambda item: _group(place(item))):
        listed = list(members)
        ordered += listed if group is None else _mixed(listed, place)
    return ordered


def _group(place: ItemPlace | None) -> Hashable:
    return None if place is None else (place.group,)


def _mixed(items: list[_T], place: Callable[[_T], ItemPlace | None]) -> list[_T]:
    cells: dict[tuple[Hashable, Hashable], list[_T]] = {}
    for item in items:
        found = place(item)
        assert found is not None
        cells.setdefault((found.kernel, found.setpoint), []).append(item)
    kernels = list(dict.fromkeys(kernel for kernel, _ in cells))
    setpoints = _from_both_ends(list(dict.fromkeys(setpoint for _, setpoint in cells)))
    apart = max(1, len(setpoints) // len(kernels))
    ordered: list[_T] = []
    for turn in range(len(setpoints)):
        row = list(enumerate(kernels))
        for number, kernel in row if turn % 2 == 0 else reversed(row):
            setpoint = setpoints[(number * apart + turn) % len(setpoints)]
            ordered += cells.get((kernel, setpoint), [])
    return ordered


def _from_both_ends(values: list[Hashable]) -> list[Hashable]:
    half = (len(values) + 1) // 2
    lower, upper = values[:half], values[half:][::-1]
    ends = [value for pair in zip(lower, upper, strict=False) for value in pair]
    return ends + lower[len(upper) :]


class ExportPlugin:
    """``--gpuenergy-export``: records in ``folder`` what ``gpuenergy ab`` must know of the run.

    That is whether energy items were collected, and what failed the run as a whole.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Create the folder when there are energy items, whether or not they succeed."""
        from pytest_gpuenergy.ab import begin_export

        if any(map(measures_energy, session.items)):
            with contextlib.suppress(GpuEnergyError):  # each item will report it
                begin_export(self._folder)

    def finish(self, problems: Sequence[str]) -> list[str]:
        """Write the problems that failed the run as a whole; return problems in writing them."""
        from pytest_gpuenergy.ab import export_problems

        try:
            if problems:
                export_problems(self._folder, problems)
        except GpuEnergyError as error:
            return [str(error)]
        return []


_COMPLETE = (
    pytest.ExitCode.OK,
    pytest.ExitCode.TESTS_FAILED,
    pytest.ExitCode.NO_TESTS_COLLECTED,
)
BRIDGE, EXPORT = "gpuenergy-benchmark", "gpuenergy-export"
DEFERRING = "gpuenergy-deferring"
_INTERRUPTED_S = 10.0
"""How long interrupted workers have to restore their GPUs, before pytest-xdist waits as long."""


class RunPlugin:
    """Connects pytest's hooks to the objects that measure, judge and report.

    Attributes:
        session: the device, its lease and the run folder.
        gate: the baseline and the verdicts.
    """

    def __init__(
        self, config: pytest.Config, session: Session, gate: GatePlugin, setpoints: SetpointPlugin
    ) -> None:
        self.session = session
        self.gate = gate
        self._setpoints = setpoints
        self._config = config
        self._problem = ""
        self._interrupted = False
        self._finished = self._shown = False
        session.announce_preheat = partial(show_preheat, config)
        self._end = contextlib.ExitStack()

    @classmethod
    def of(cls, config: pytest.Config) -> RunPlugin:
        """Read the options, reject invalid ones before anything is measured, register helpers.

        Raises:
            pytest.UsageError: an option is invalid.
        """
        is_worker = hasattr(config, "workerinput")
        given = getattr(config, "workerinput", {})
        link = Link(given[LINE]) if LINE in given else None
        settle_places()
        try:
            options = PytestOptions.from_pytest_config(config)
            if not is_worker:  # pytest-xdist's workers write no views
                check_outputs(options)
            gate = GatePlugin(config, options)
            session = Session(options, _run_id(config, options), link)
        except (GpuEnergyError, OSError) as error:
            raise pytest.UsageError(told(error)) from None
        setpoints = SetpointPlugin()
        config.pluginmanager.register(gate, "gpuenergy_gate")
        config.pluginmanager.register(setpoints, "gpuenergy-setpoints")
        if options.verify_only:
            config.pluginmanager.register(VerifyOnlyPlugin(), "gpuenergy-verify-only")
        if options.export_folder is not None:
            config.pluginmanager.register(ExportPlugin(options.export_folder), EXPORT)
        if is_worker:
            session.expect_termination()
            if given.get(DEFERS) and link is not None:
                # Groups are the controller's, and pytest-xdist would write them into the ids.
                config.option.loadgroup = False
                deferring = DeferringPlugin(session, gate, link)
                config.pluginmanager.register(deferring, DEFERRING)
        else:
            _workers(config).before_start = session.expect_termination
            workers = Workers(config, _workers(config), options, session.run_id)
            config.pluginmanager.register(workers, Workers.NAME)
            _register_listeners(config)
        return cls(config, session, gate, setpoints)

    def parametrize_setpoints(self, metafunc: pytest.Metafunc) -> None:
        """Make one item per setpoint.

        Raises:
            BadOptionError: an option cannot work, as in every other test module.
            pytest.Collector.CollectError: the setpoints cannot be determined.
        """
        try:
            setpoints = self.session.card.resolve_setpoints()
        except (GpuEnergyError, OSError) as error:
            self._refuse_setpoints(told(error), bad_option=isinstance(error, InputError))
            setpoints = [CURRENT]  # other workers collect and run the rest
        ids = [setpoint.label for setpoint in setpoints]
        metafunc.parametrize(POWERCAP_FIXTURE, setpoints, ids=ids, indirect=True)

    def _refuse_setpoints(self, problem: str, *, bad_option: bool) -> None:
        """End the collection with an error, unless others can measure instead of this worker."""
        deferring = self._config.pluginmanager.get_plugin(DEFERRING)
        if deferring is not None:
            deferring.give_up(problem, BAD_OPTION if bad_option else UNUSABLE)
            return
        if bad_option and not hasattr(self._config, "workerinput"):
            raise BadOptionError(problem)
        if bad_option and self.session.link is not None:
            self.session.link.tell(BAD_OPTION, problem, "")
        raise pytest.Collector.CollectError(problem)

    def name_items(self, items: Sequence[pytest.Item]) -> None:
        """Let ``-k`` select items by ids that were copied from a report."""
        if self._config.getoption("keyword"):
            name_items(self._config, items)

    def claim_device(self) -> Device:
        """The device, claimed for this run; ends the run with an error message if that fails."""
        problem, usage = "", False
        try:
            self.session.begin()
            assert self.session.run is not None
            self.gate.begin(self.session.run)
            self.session.card.device.make_current()
        except (GpuEnergyError, OSError) as error:
            problem, usage = told(error), isinstance(error, InputError)
        if problem:
            self._give_up(problem, usage=usage)
        return self.session.card.device

    def apply_setpoint(self, item: pytest.Item, setpoint: Setpoint | None) -> Setpoint:
        """Set the card to ``setpoint`` (None: leave it as it is), or skip or fail the item."""
        setpoint = CURRENT if setpoint is None else setpoint
        session = self.session
        words = session.card.named.words_for(setpoint)
        try:
            session.apply(setpoint)
        except (GpuEnergyError, OSError) as error:
            problem, unset = told(error), isinstance(error, SetpointError)
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

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Interleave the items of each test that has several setpoints or kernels."""
        if self.session.options.order != "file":
            items[:] = interleave(items, _place)
        ours = sum(DEVICE_FIXTURE in getattr(item, "fixturenames", ()) for item in items)
        self.session.items = max(1, ours)

    def pytest_report_collectionfinish(self, items: Sequence[pytest.Item]) -> list[str]:
        """Show the device and its power caps, if an item needs them."""
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
        if not hasattr(self._config, "workerinput"):
            _workers(self._config).interrupt()
            self._interrupted = True

    @pytest.hookimpl(wrapper=True, tryfirst=True)  # before pytest-benchmark writes
    def pytest_sessionfinish(self, session: pytest.Session) -> Generator[None, object, object]:
        """Restore the card, then write the views; measurements are already on disk."""
        config, ours = self._config, self.session
        problems: list[str] = []
        ended_early = (pytest.ExitCode.INTERRUPTED, pytest.ExitCode.INTERNAL_ERROR)
        steps: list[Callable[[], None]] = (
            [ours.close] if session.exitstatus in ended_early else [ours.finish, ours.close]
        )
        workers = None if hasattr(config, "workerinput") else _workers(config)
        crew: Any = config.pluginmanager.get_plugin(Workers.NAME)
        if workers is not None and self._interrupted:
            steps.append(partial(workers.await_silence, _INTERRUPTED_S))
        if workers is not None and workers.lost:
            steps.append(lambda: crew.losses.mend(ours.restore_leftovers()))
        for step in steps:
            try:
                step()
            except (GpuEnergyError, OSError) as error:
                problems.append(told(error))
            except KeyboardInterrupt:
                session.exitstatus = pytest.ExitCode.INTERRUPTED
        if session.exitstatus == pytest.ExitCode.INTERRUPTED:
            self._end.enter_context(undisturbed())  # until pytest has reported
        if workers is None:
            # A worker's exit status is ignored. pytest-xdist adds the attribute.
            config.workeroutput[PROBLEMS] = problems  # type: ignore[attr-defined]
        else:
            problems += workers.problems
            ours.restored += crew.close()
            if session.exitstatus in _COMPLETE and not config.getoption("collectonly"):
                problems += crew.problems()
            problems += self._setpoints.problems(session.testscollected)
            problems += write_outputs(ours, self.gate, partial(graphs, config))
            over = session.exitstatus in _COMPLETE and not config.getoption("collectonly")
            problems += self._pass_on(judge=over)
            exporter = config.pluginmanager.get_plugin(EXPORT)
            problems += exporter.finish(problems) if exporter is not None else ()
        if problems:
            self._problem = " ".join(dict.fromkeys(problems))
            if workers is not None:  # otherwise, JUnit XML shows a run that passed
                JunitCase.add_failure(config, "gpuenergy", printable(self._problem))
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
        self._finished = workers is not None
        return (yield)

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Show the summary, the caps that could not be set, and errors."""
        self._shown = True
        width = terminal_width(is_terminal=terminalreporter.isatty)
        crew: Any = self._config.pluginmanager.get_plugin(Workers.NAME)
        losses = crew.losses.summary_lines() if crew else ()
        sentences = [*self._setpoints.summary_lines(), *losses]
        lines = [
            *summary_lines(self.session, self._config.get_verbosity(), width),
            *(one for line in sentences for one in wrapped(line, width, whole_words=True)),
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

    def _pass_on(self, *, judge: bool) -> list[str]:
        """Pass the measurements to the gate and to pytest-benchmark; returns the problems."""
        bridge = self._config.pluginmanager.get_plugin(BRIDGE)
        try:
            report = self.session.outcome
        except (GpuEnergyError, OSError) as error:
            return [told(error)]
        if bridge is not None:
            bridge.add(report)
        return self.gate.review(report) if judge else []

    def _give_up(self, problem: str, *, usage: bool = False) -> NoReturn:
        """End the run because every item would fail; ``usage``: because of an invalid option."""
        if hasattr(self._config, "workerinput"):  # pytest-xdist treats a worker's exit as a crash
            pytest.fail(problem, pytrace=False)
        code = pytest.ExitCode.USAGE_ERROR if usage else pytest.ExitCode.TESTS_FAILED
        pytest.exit(f"error: {problem}", returncode=code)


def has_figures(report: pytest.CollectReport | pytest.TestReport) -> bool:
    """Whether a report belongs to an item that was measured."""
    return any(name == FIGURES for name, _ in report.user_properties)


def _workers(config: pytest.Config) -> WorkerPlugin:
    workers = config.pluginmanager.get_plugin(WorkerPlugin.NAME)
    assert isinstance(workers, WorkerPlugin)
    return workers


def _run_id(config: pytest.Config, options: PytestOptions) -> str:
    """The run id: a worker's comes from its controller, a resumed run keeps its own."""
    given = getattr(config, "workerinput", {}).get(RUN_ID)
    if given is not None:
        return str(given)
    workers = _workers(config)
    last = latest_run(options.root) if options.resume else None
    if last is not None:
        workers.run_id = last.path.name
    return workers.run_id


def _register_listeners(config: pytest.Config) -> None:
    """Register the plugins that show or pass on measurements."""
    plugins = config.pluginmanager
    if config.get_verbosity() >= 0:
        plugins.register(ProgressPlugin(config, has_figures), "gpuenergy-progress")
    if plugins.has_plugin("benchmark"):
        from pytest_gpuenergy.pytest_plugin.bridge import BenchmarkBridge

        plugins.register(BenchmarkBridge(config), BRIDGE)


def _place(item: pytest.Item) -> ItemPlace | None:
    # Parameters are distinguished by identity: their values may be large or not comparable.
    values = dict(item.callspec.params) if hasattr(item, "callspec") else {}
    if POWERCAP_FIXTURE not in values:
        return None
    setpoint = id(values.pop(POWERCAP_FIXTURE))
    function = getattr(item, "originalname", item.name)
    return ItemPlace((item.parent, function), tuple(map(id, values.values())), setpoint)
