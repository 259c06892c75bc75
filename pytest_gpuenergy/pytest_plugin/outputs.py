"""The output of a run: header, progress and summary in the terminal, views on disk, errors.

The functions stand in the order in which a run uses them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from functools import partial
from math import sqrt
from pathlib import Path
from statistics import fmean, stdev
from time import monotonic
from typing import Any

import pytest

import pytest_gpuenergy
from pytest_gpuenergy import report as reports
from pytest_gpuenergy.control import CURRENT, Setpoint, check_setpoint
from pytest_gpuenergy.energy import choose_source
from pytest_gpuenergy.gate import shared_identities, verdict_values
from pytest_gpuenergy.pytest_plugin.declared_options import RUN
from pytest_gpuenergy.pytest_plugin.distribute.link import BAD_OPTION
from pytest_gpuenergy.pytest_plugin.gate import GatePlugin
from pytest_gpuenergy.pytest_plugin.options import PytestOptions
from pytest_gpuenergy.pytest_plugin.session import Session, SessionCard
from pytest_gpuenergy.record import VERIFIED
from pytest_gpuenergy.report import (
    HOME,
    Report,
    ViewTarget,
    anchor_lines,
    best_lines,
    board_lines,
    by_model,
    check_targets,
    check_writable,
    duration_lines,
    files_read,
    find_run,
    idle_caps,
    summary,
    write_classic_csv,
    write_json,
)
from pytest_gpuenergy.support import (
    GpuEnergyError,
    InputError,
    SetpointError,
    counted,
    error_message,
    span,
    wrapped,
)

INTERVAL_S, CI_INTERVAL_S = 30.0, 300.0
"""Time between two lines of progress; in CI, logs are read afterwards and need fewer lines."""
_ATTRIBUTE = "gpuenergy_setpoint"
"""Attribute of an item's reports that carries the outcome from pytest-xdist's workers."""
_PACKAGE = Path(pytest_gpuenergy.__file__).parent


def header_lines(card: SessionCard, options: PytestOptions) -> list[str]:
    """Return the lines before the first item: device, driver, energy source and power caps."""
    try:
        return [f"gpuenergy: {line}" for line in _header(card, options)]
    except (GpuEnergyError, card.device.nvml.NVMLError) as error:
        return [f"gpuenergy: {card.device.name} does not work: {error}"]


def emulated_line(name: str) -> str:
    """Return the warning that a run uses the emulated GPU ``name``."""
    return f"EMULATED {name}: results are verified, time and energy are recorded or modelled"


def _header(card: SessionCard, options: PytestOptions) -> Iterator[str]:
    device = card.device
    if device.emulated:
        reason = " (no usable NVIDIA GPU found)" if options.device == "auto" else ""
        yield emulated_line(f"{device.name}{reason}")
    else:
        driver = device.nvml.nvmlSystemGetDriverVersion()
        driver = driver.decode(errors="replace") if isinstance(driver, bytes) else driver
        yield f"{device.name}, driver {driver}, {device.uuid}"
    if options.verify_only:
        yield "verify only: nothing is measured, and no power limit is set"
        return
    name = choose_source(device).name
    source = "energy counter" if name == "counter" else f"{name} over time (no energy counter)"
    setpoints = card.named.setpoints
    locks = any(setpoint.sm_clock_mhz is not None for setpoint in setpoints)
    listed = ", ".join(setpoint.label for setpoint in setpoints) or "current"
    yield (
        f"energy from the {'modelled' if device.emulated else 'NVML'} {source}; "
        f"{'setpoints' if locks else 'power caps'}: {listed}"
    )
    if any(setpoint != CURRENT for setpoint in setpoints):
        yield from _settings_lines(card, locks=locks)


def _settings_lines(card: SessionCard, *, locks: bool) -> Iterator[str]:
    """Return what cannot be set or restored; on a real GPU also how settings are made and last."""
    device, what = card.device, "power limits and clocks" if locks else "power limits"
    writer, why_none = None, ""
    try:
        writer = card.settings_writer()
    except SetpointError as error:
        why_none = str(error)
    if writer is not None and not device.emulated:
        yield f"{what} are set through {writer.name}"
    if locks:
        yield (
            "SM clocks are unlocked afterwards, which is the default: what they were locked to "
            "before cannot be read"
        )
    refused: dict[str, list[str]] = {}
    for setpoint in card.named.setpoints:
        reason = f"{setpoint.unavailable}." if setpoint.unavailable else why_none
        if writer is not None and not reason:  # as far as is known without writing
            try:
                check_setpoint(writer, setpoint)
            except SetpointError as error:
                reason = str(error)
        if reason and setpoint != CURRENT:
            refused.setdefault(reason, []).append(setpoint.label)
    for reason, labels in refused.items():
        kind = f"{'setpoint' if locks else 'power cap'}{'s' if len(labels) > 1 else ''}"
        yield f"{kind} {', '.join(labels)} cannot be set: {reason}"
    if not device.emulated:
        try:
            persistent = bool(device.nvml.nvmlDeviceGetPersistenceMode(device.handle))
        except device.nvml.NVMLError:
            persistent = True  # it is not supported, so there is no remedy
        if not persistent:
            yield (
                f"persistence mode is off, so {what} are lost whenever the driver unloads: sudo "
                "nvidia-smi -pm 1"
            )


LARGEST_ERROR = 1 / 3
"""The largest standard error of an estimate that is shown, relative to it."""
_MIN_TIMED = 3
"""The number of items after the first whose times an estimate of the remaining time takes."""


class Progress:
    """Counts finished items and estimates the remaining time, at most once per interval.

    Args:
        interval_s: minimum time between two lines.
        clock: returns the time in seconds.
    """

    def __init__(self, interval_s: float, clock: Callable[[], float] = monotonic) -> None:
        self._interval_s = interval_s
        self._clock = clock
        self._shown_s = self._latest_s = clock()
        self._finished = 0
        self._took_s: list[float] = []

    def finish(self, total: int, *, skipped: bool) -> str | None:
        """Count one of ``total`` items; return the line to show, if one is due.

        Skipped items take no time, so the estimate is based on the others. It takes some items
        after the first, which had to wait for compilers and for the card to warm up. No line is due
        while these took such different times that the estimate is uncertain by `LARGEST_ERROR`.
        """
        self._finished += 1
        now_s = self._clock()
        if not skipped:
            self._took_s.append(now_s - self._latest_s)
            self._latest_s = now_s
        left = total - self._finished
        count = len(self._took_s) - 1
        if left <= 0 or count < _MIN_TIMED or now_s - self._shown_s < self._interval_s:
            return None
        item_s = fmean(self._took_s[1:])
        error_s = stdev(self._took_s[1:]) * sqrt(left + left**2 / count)
        if error_s > LARGEST_ERROR * left * item_s:
            return None
        self._shown_s = now_s
        return f"gpuenergy: {self._finished} of {total} items, about {span(left * item_s)} left"


def show_preheat(config: pytest.Config, left_s: float) -> None:
    """Show in the terminal for how long the card may still be heated up, unless output is quiet."""
    plugins = config.pluginmanager
    terminal: Any = plugins.get_plugin("terminalreporter")
    capture: Any = plugins.get_plugin("capturemanager")
    if terminal is None or config.get_verbosity() < 0:
        return
    with nullcontext() if capture is None else capture.global_and_fixture_disabled():
        terminal.ensure_newline()
        terminal.write_line(f"gpuenergy: heating up the GPU, up to {left_s:.0f} s")


class ProgressPlugin:
    """Shows `Progress` in the terminal, beginning with the first item that is measured."""

    def __init__(self, config: pytest.Config, is_ours: Callable[[pytest.TestReport], bool]) -> None:
        self._config = config
        self._is_ours = is_ours
        self._progress = Progress(CI_INTERVAL_S if os.environ.get("CI") else INTERVAL_S)
        self._ours = self._skipped = False

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count an item after its last phase."""
        self._ours = self._ours or self._is_ours(report)
        self._skipped = report.skipped or (self._skipped and report.when != "setup")
        plugins = self._config.pluginmanager
        # pytest's session knows the number of items, even under pytest-xdist.
        session: pytest.Session | None = plugins.get_plugin("session")
        if report.when != "teardown" or session is None:
            return
        line = self._progress.finish(session.testscollected, skipped=self._skipped)
        terminal: Any = plugins.get_plugin("terminalreporter")
        if line and self._ours and terminal is not None:
            terminal.ensure_newline()
            terminal.write_line(line)


@dataclass(frozen=True)
class SetpointOutcome:
    """The outcome of setting the card for an item.

    Attributes:
        setpoint: the setpoint that the item requests.
        words: the words of the options that name it, such as ``3``, ``all``, ``--smclock all``.
        problem: why it could not be set, as a sentence; empty when it was set.
        measured: whether the run being resumed has measured at this setpoint.
    """

    setpoint: Setpoint
    words: list[str]
    problem: str = ""
    measured: bool = False


OUTCOME = pytest.StashKey[SetpointOutcome]()
"""An item's outcome, once its setpoint was set or rejected."""


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
            setpoint = Setpoint(**data["setpoint"])
            self._outcomes[report.nodeid] = SetpointOutcome(**{**data, "setpoint": setpoint})

    def problems(self, collected: int) -> list[str]:
        """Return a sentence if caps or clocks that the options name could not be set for any item.

        There is none if some of the ``collected`` items did not run: theirs might have been set.
        """
        if len(self._finished) < collected:
            return []
        met = {
            word
            for outcome in self._outcomes.values()
            if not outcome.problem or outcome.measured
            for word in outcome.words
        }
        reasons = {
            label: outcomes[0].problem
            for label, outcomes in self._refused_setpoints().items()
            if any(word not in met for outcome in outcomes for word in outcome.words)
        }
        if not reasons:
            return []
        first, why = next(iter(reasons.items()))
        caps = f"{_kind(reasons)}{'s' if len(reasons) > 1 else ''} {', '.join(reasons)}"
        alike = len(set(reasons.values())) == 1
        why = f": {why}" if alike else f"; the reason for {first}: {why}"
        return [f"The {caps} could not be set for any item{why}"]

    def summary_lines(self) -> Iterator[str]:
        """Return a line with the caps that could not be set, and for how many items each."""
        if refused := self._refused_setpoints():
            named = (
                f"{label} ({counted(len(outcomes), 'item')})" for label, outcomes in refused.items()
            )
            yield f"{_kind(refused)}s that could not be set: {', '.join(named)}"

    def _refused_setpoints(self) -> dict[str, list[SetpointOutcome]]:
        """Return the outcomes with a problem by the setpoint's label, lowest first."""
        found: dict[str, list[SetpointOutcome]] = {}
        for outcome in sorted(self._outcomes.values(), key=lambda o: o.setpoint.order):
            if outcome.problem:
                found.setdefault(outcome.setpoint.label, []).append(outcome)
        return found


def _kind(labels: Iterable[str]) -> str:
    return "setpoint" if any("MHz" in label for label in labels) else "power cap"


def check_outputs(options: PytestOptions) -> None:
    """Check that the views can be written later, each to a path of its own.

    Raises:
        InputError: a view would overwrite another one, the baseline or a run's measurements.
        ReportError: a view cannot be written.
    """
    asked = (
        ("json", options.json_path, False),
        ("csv", options.csv_folder, True),
        ("html", options.html_path, False),
    )
    targets = [
        ViewTarget(f"--gpuenergy-{name}", path, folder)
        for name, path, folder in asked
        if path is not None
    ]
    baseline = options.baseline
    check_targets(targets, files_read(find_run(baseline, options.root)) if baseline else ())
    for target in targets:
        check_writable(target.path, folder=target.folder)


def write_outputs(
    session: Session,
    gate: GatePlugin,
    searches_of: Callable[[Report], Sequence[Mapping[str, Any]]],
) -> list[str]:
    """Write the views to the run folder and the requested paths; return the problems.

    ``searches_of`` returns what the page shows of searches for the kernels of a report.
    """
    try:
        report = session.outcome
    except (GpuEnergyError, OSError) as error:
        return [error_message(error)]
    if report is None:
        return []
    options = session.options
    folder = options.root / HOME / "runs" / session.run_id
    problems = shared_identities(report.measurements)[:1]  # each worker checked only its own items
    outputs: list[tuple[Callable[[Report, Path], object], Path | None]] = [
        *((write_json, path) for path in (folder / "report.json", options.json_path)),
        *((write_classic_csv, path) for path in (folder / "csv", options.csv_folder)),
    ]
    if options.html_path is not None:
        # Imported late: it takes a tenth of the time until a run without a page begins.

        baseline = gate.shown_baseline(report.run)
        comparison = None if baseline is None else gate.compare(report)
        verdicts = None if comparison is None else verdict_values(comparison)
        searches: Sequence[Mapping[str, Any]] = ()
        try:
            searches = searches_of(report)
        except (GpuEnergyError, OSError) as error:
            problems.append(error_message(error))
        page = partial(reports.write_html, baseline=baseline, verdicts=verdicts, searches=searches)
        outputs.append((page, options.html_path))
    for write, path in outputs:
        try:
            if path is not None:
                write(report, path)
        except (GpuEnergyError, OSError) as error:
            session.unwritten.update([path] if path else [])
            problems.append(f"{error_message(error)} The measurements are in {folder}.")
    return problems


def summary_lines(session: Session, verbosity: int = 0, width: int | None = None) -> Iterator[str]:
    """Return tables per workload and cap, the best of each workload, and the paths of the views.

    With ``verbosity`` below zero, the tables per cap are omitted. There are no lines when nothing
    was measured. Lines have at most ``width`` characters, but paths are left whole.
    """
    try:
        report = session.outcome
    except (GpuEnergyError, OSError):
        return  # `write_outputs` has reported it
    if report is None or not report.measurements:
        return
    emulated = report.run.emulated
    if emulated and not session.card.opened:  # pytest-xdist hides its workers' headers
        yield from wrapped(emulated_line(report.run.gpu_name), width)
    sort, parts = session.options.sort, by_model(report)
    for part in parts:
        rows, name = part.measurements, part.run.gpu_name
        if len(parts) > 1:
            yield from wrapped(f"on {name}", width)
        if verbosity >= 0:
            yield from summary(rows, emulated=emulated, width=width, sort=sort, gpu_name=name)
        yield from best_lines(rows, emulated=emulated, width=width)
    if session.options.durations:
        for line in duration_lines(report.measurements):
            yield from wrapped(line, width, whole_words=True)
    for sentence in _sentences(session, report):
        yield from wrapped(sentence, width, whole_words=True)
    folder = session.options.root / HOME / "runs" / session.run_id
    written = {
        "report": session.options.json_path or folder / "report.json",
        "CSV": session.options.csv_folder or folder / "csv",
        "page": session.options.html_path,
    }
    places = [
        f"{name}: {path}"
        for name, path in written.items()
        if path is not None and path not in session.unwritten
    ]
    line = ", ".join(places)
    yield from [line] if width is None or len(line) <= width else places


def _sentences(session: Session, report: Report) -> Iterator[str]:
    measurements = report.measurements
    if verified := sum(m.verified_only for m in measurements):
        yield f"{verified} of {len(measurements)} kernels are {VERIFIED}"
    if flagged := sum(bool(m.validity) for m in measurements):
        yield f"{flagged} of {len(measurements)} measurements are flagged (see validity)"
    yield from anchor_lines(measurements, report.anchors, emulated=report.run.emulated)
    yield from board_lines(report)
    for sentence in session.restored:
        yield f"restored after a killed run: {sentence}"
    if idle := idle_caps(measurements):
        yield f"caps without effect (no kernel was held back): {', '.join(idle)}"


class BadOptionError(pytest.Collector.CollectError):
    """An option cannot work, as collection shows: the run ends as on any usage error."""


def collection_error(
    config: pytest.Config, error: GpuEnergyError | OSError
) -> pytest.Collector.CollectError:
    """Return what to raise while items are collected, for an error that an option causes.

    A wrong input is an error of usage: in a worker, its controller is told.
    """
    problem = error_message(error)
    if not isinstance(error, InputError):
        return pytest.Collector.CollectError(problem)
    if not hasattr(config, "workerinput"):
        return BadOptionError(problem)
    run: Any = config.pluginmanager.get_plugin(RUN)
    if run is not None and run.session.link is not None:
        run.session.link.tell(BAD_OPTION, problem, "")
    return pytest.Collector.CollectError(problem)


def shorten(
    report: pytest.TestReport | pytest.CollectReport,
    excinfo: pytest.ExceptionInfo[BaseException],
    config: pytest.Config,
) -> None:
    """Replace the traceback in a report of one of our errors by its line and its sentence.

    The traceback remains if ``--tb`` or ``--full-trace`` asks for one.
    """
    error = excinfo.value
    asked = config.getoption("tbstyle") != "auto" or config.getoption("fulltrace")
    if not report.failed or asked or not isinstance(error, GpuEnergyError):
        return
    place = ""
    for entry in excinfo.traceback:  # the last line of the user's own code
        path = Path(entry.path)
        is_own = path.is_relative_to(config.rootpath) and not path.is_relative_to(_PACKAGE)
        if is_own and "site-packages" not in path.parts:
            place = f"{path.relative_to(config.rootpath)}:{entry.lineno + 1}: "
    try:
        pytest.fail(f"{place}{error}", pytrace=False)
    except pytest.fail.Exception:
        report.longrepr = pytest.ExceptionInfo.from_current().getrepr(style="value")
