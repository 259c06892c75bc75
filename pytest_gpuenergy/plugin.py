"""The pytest plugin: a thin adapter between pytest and the rest of the package."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

from pytest_gpuenergy.pytest_plugin.caps import OUTCOME, CapOutcome, CapPlugin
from pytest_gpuenergy.pytest_plugin.gate import MARKER, VERDICT, GatePlugin
from pytest_gpuenergy.pytest_plugin.options import Options, add_options, named_device
from pytest_gpuenergy.pytest_plugin.xdist import PROBLEMS, RUN_ID, WorkerPlugin
from pytest_gpuenergy.support.errors import GpuEnergyError, InputError, PowerCapError
from pytest_gpuenergy.support.terminal import printable, show_section

if TYPE_CHECKING:
    from pytest_gpuenergy.control.powercap import PowerCap
    from pytest_gpuenergy.devices.device import Device
    from pytest_gpuenergy.kernels.kernel import Kernel
    from pytest_gpuenergy.pytest_plugin.energy_benchmark import EnergyBenchmark
    from pytest_gpuenergy.pytest_plugin.session import Session

OPTIONS = pytest.StashKey[Options]()
GATE = pytest.StashKey[GatePlugin]()
SESSION: pytest.StashKey[Session] = pytest.StashKey()
CAPS = pytest.StashKey[CapPlugin]()
FAILED = pytest.StashKey[str]()
BRIDGE, EXPORT, WORKERS = "gpuenergy-benchmark", "gpuenergy-export", "gpuenergy-workers"
WORDS = "gpuenergy"
"""Name of the JUnit property that holds an item's figures in words."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of group ``gpuenergy``."""
    add_options(parser)


def pytest_configure(config: pytest.Config) -> None:
    """Read the options, and refuse what cannot work before anything is measured."""
    from pytest_gpuenergy.pytest_plugin.outputs import check_outputs
    from pytest_gpuenergy.pytest_plugin.session import Session, choose_run_id
    from pytest_gpuenergy.report.html import check_html

    try:
        options = Options.from_pytest_config(config)
        given = getattr(config, "workerinput", {}).get(RUN_ID)
        if given is None:  # pytest-xdist's workers write no views
            check_outputs(options)
            if options.html_path is not None:
                check_html()
        config.stash[OPTIONS] = options
        config.stash[GATE] = GatePlugin(options)
        run_id = given or choose_run_id(options)
    except GpuEnergyError as error:
        raise pytest.UsageError(str(error)) from None
    config.stash[SESSION] = session = Session(options, run_id)
    if given is None:
        workers = WorkerPlugin(run_id, session.expect_termination)
        config.pluginmanager.register(workers, WORKERS)
    config.pluginmanager.register(config.stash[GATE], "gpuenergy_gate")
    config.stash[CAPS] = caps = CapPlugin()
    config.pluginmanager.register(caps, "gpuenergy-caps")
    if options.export_folder is not None:
        from pytest_gpuenergy.pytest_plugin.export import ExportPlugin

        config.pluginmanager.register(ExportPlugin(options.export_folder), EXPORT)
    config.addinivalue_line(
        "markers",
        f'{MARKER}(max_mj_ms, rel="0%"): fail when the energy-delay product is above max_mj_ms '
        "by more than rel",
    )
    if given is None and config.get_verbosity() >= 0:
        from pytest_gpuenergy.pytest_plugin.progress import ProgressPlugin

        config.pluginmanager.register(ProgressPlugin(config, _has_figures), "gpuenergy-progress")
    if given is None and config.pluginmanager.has_plugin("benchmark"):
        from pytest_gpuenergy.pytest_plugin.bridge import BenchmarkBridge

        config.pluginmanager.register(BenchmarkBridge(config), BRIDGE)


@pytest.hookimpl(optionalhook=True, tryfirst=True)  # before pytest-xdist's own
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int | None:
    """``-n auto``: a worker for each GPU, where the user has said which GPUs to use.

    pytest-xdist asks before anything is collected, so that it is not known whether an item of ours
    will be there: elsewhere its own count, that of the processor's cores, stands.
    """
    from pytest_gpuenergy.devices.select import count_gpus

    device = named_device(config)
    if device is None or os.environ.get("PYTEST_XDIST_AUTO_NUM_WORKERS"):
        return None
    try:
        return count_gpus(device)
    except GpuEnergyError as error:
        raise pytest.UsageError(str(error)) from None


@pytest.hookimpl(trylast=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One item per power cap for tests that request ``powercap`` and do not set it themselves."""
    if "powercap" not in metafunc.fixturenames:
        return
    own = metafunc.definition.iter_markers("parametrize")
    if any("powercap" in str(mark.args[0]) for mark in own if mark.args):
        return
    try:
        caps = metafunc.config.stash[SESSION].resolve_caps()
    except GpuEnergyError as error:
        raise pytest.Collector.CollectError(str(error)) from None
    metafunc.parametrize("powercap", caps, ids=[cap.label for cap in caps], indirect=True)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mix the items of each test that runs under several power caps or with several kernels."""
    from pytest_gpuenergy.pytest_plugin.order import Place, interleave

    if config.stash[OPTIONS].order == "file":
        return

    def place(item: pytest.Item) -> Place | None:
        # Parameters are told apart by identity: their values may be large, or not comparable.
        values = dict(item.callspec.params) if hasattr(item, "callspec") else {}
        if "powercap" not in values:
            return None
        cap = id(values.pop("powercap"))
        function = getattr(item, "originalname", item.name)
        return Place((item.parent, function), tuple(map(id, values.values())), cap)

    items[:] = interleave(items, place)


def pytest_report_collectionfinish(
    config: pytest.Config, items: Sequence[pytest.Item]
) -> list[str]:
    """Say where kernels will run, once an item has asked."""
    session = config.stash[SESSION]
    if not session.opened or not items:
        return []
    from pytest_gpuenergy.pytest_plugin.header import header_lines

    return list(map(printable, header_lines(session)))


@pytest.fixture(scope="session")
def gpu(request: pytest.FixtureRequest) -> Device:
    """The device: a real GPU, or the emulated one."""
    session, problem, usage = request.config.stash[SESSION], "", False
    try:
        session.begin()
        assert session.run is not None
        request.config.stash[GATE].begin(session.run)
    except GpuEnergyError as error:
        problem, usage = str(error), isinstance(error, InputError)
    if problem:
        _give_up(request.config, problem, usage=usage)
    return session.device


@pytest.fixture
def powercap(request: pytest.FixtureRequest, gpu: Device) -> PowerCap:  # noqa: ARG001
    """The power cap of this item, set on the card; parametrized by ``--powercap``."""
    from pytest_gpuenergy.control.powercap import CURRENT

    cap: PowerCap = getattr(request, "param", CURRENT)
    session = request.config.stash[SESSION]
    try:
        session.apply(cap)
    except GpuEnergyError as error:
        problem, unset = str(error), isinstance(error, PowerCapError)
    else:
        request.node.stash[OUTCOME] = CapOutcome.of(cap, session.words_for(cap))
        return cap
    if not unset:
        _give_up(request.config, problem)
    if not session.answers():
        pytest.fail(problem, pytrace=False)
    request.node.stash[OUTCOME] = CapOutcome.of(
        cap, session.words_for(cap), problem, measured=session.has_measured_under(cap)
    )
    if session.options.strict_powercap:
        pytest.fail(problem, pytrace=False)
    pytest.skip(problem)


@pytest.fixture
def energy_benchmark(request: pytest.FixtureRequest, gpu: Device) -> EnergyBenchmark:  # noqa: ARG001
    """Call it with a kernel or a callable: it verifies, measures, records and returns."""
    from pytest_gpuenergy.pytest_plugin.energy_benchmark import EnergyBenchmark

    cap = request.getfixturevalue("powercap") if "powercap" in request.fixturenames else None
    stash = request.config.stash
    return EnergyBenchmark(request.node, stash[SESSION], cap, stash[GATE])


@pytest.fixture
def load_kernel(request: pytest.FixtureRequest) -> Callable[..., Kernel]:
    """`pytest_gpuenergy.kernels.source.load_kernel`; paths are relative to the test's folder."""
    from pytest_gpuenergy.kernels.source import load_kernel as load

    folder = request.path.parent

    def relative(path_or_source: str | Path, **keywords: Any) -> Kernel:
        text = str(path_or_source)
        if "\n" not in text and "{" not in text:
            return load(folder / text, **keywords)
        return load(text, **keywords)

    return relative


def pytest_report_teststatus(
    report: pytest.CollectReport | pytest.TestReport,
) -> tuple[str, str, str] | None:
    """Show an item's figures in its status: ``PASSED 19.3 µs 7.62 mJ 0.147 mJ·ms``."""
    if report.when != "call" or not report.passed:
        return None
    if not _has_figures(report):
        return None
    words = [value for name, value in report.user_properties if name == WORDS]
    flagged = any(name == "validity" and value for name, value in report.user_properties)
    unsure = any(
        name.endswith(VERDICT) and value == "AMBIGUOUS" for name, value in report.user_properties
    )
    return (
        "passed",
        "!" if flagged else "?" if unsure else ".",
        f"{'FLAGGED' if flagged else 'PASSED'} {words[-1]}{' AMBIGUOUS' if unsure else ''}",
    )


@pytest.hookimpl(wrapper=True, tryfirst=True)  # before pytest-benchmark writes
def pytest_sessionfinish(session: pytest.Session) -> Generator[None, object, object]:
    """Put the card back, then write the views; what was measured is on disk already."""
    config = session.config
    ours = config.stash[SESSION]
    problems = []
    ended_early = (pytest.ExitCode.INTERRUPTED, pytest.ExitCode.INTERNAL_ERROR)
    steps = [ours.close] if session.exitstatus in ended_early else [ours.finish, ours.close]
    workers = config.pluginmanager.get_plugin(WORKERS)
    if workers is not None and workers.lost:
        steps.append(ours.restore_leftovers)
    for step in steps:
        try:
            step()
        except GpuEnergyError as error:
            problems.append(str(error))
        except KeyboardInterrupt:
            session.exitstatus = pytest.ExitCode.INTERRUPTED
    if hasattr(config, "workerinput"):
        # Its exit status reaches nobody. The attribute is pytest-xdist's.
        config.workeroutput[PROBLEMS] = problems  # type: ignore[attr-defined]
    else:
        from pytest_gpuenergy.pytest_plugin.outputs import write_outputs

        problems += workers.problems if workers is not None else ()
        problems += config.stash[CAPS].problems(session.testscollected)
        problems += write_outputs(ours, config.stash[GATE].baseline_for)
        problems += _tell_others(config)
        exporter = config.pluginmanager.get_plugin(EXPORT)
        problems += exporter.finish(problems) if exporter is not None else ()
    if problems:
        config.stash[FAILED] = " ".join(dict.fromkeys(problems))
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
    return (yield)


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """The table per workload and cap, where the report is, and the caps that could not be set."""
    from pytest_gpuenergy.pytest_plugin.outputs import summary_lines

    lines = summary_lines(config.stash[SESSION], config.get_verbosity())
    show_section(terminalreporter, "gpuenergy", [*lines, *config.stash[CAPS].summary_lines()])
    if problem := config.stash.get(FAILED, None):
        terminalreporter.write_line(printable(f"gpuenergy: error: {problem}"), red=True)


def pytest_unconfigure(config: pytest.Config) -> None:
    """Put the card back when the session ended before it began."""
    session = config.stash.get(SESSION, None)
    if session is not None:
        session.close()


def _tell_others(config: pytest.Config) -> list[str]:
    """Hand what was measured to the gate and to pytest-benchmark; returns what went wrong."""
    bridge = config.pluginmanager.get_plugin(BRIDGE)
    try:
        report = config.stash[SESSION].report()
    except GpuEnergyError as error:
        return [str(error)]
    if bridge is not None:
        bridge.add(report)
    return config.stash[GATE].review(report.measurements if report else ())


def _has_figures(report: pytest.CollectReport | pytest.TestReport) -> bool:
    return any(name == WORDS for name, _ in report.user_properties)


def _give_up(config: pytest.Config, problem: str, *, usage: bool = False) -> NoReturn:
    """End the run: no item could do any better. ``usage``: it is what was asked for."""
    if hasattr(config, "workerinput"):  # pytest-xdist takes a worker's exit for a crash
        pytest.fail(problem, pytrace=False)
    code = pytest.ExitCode.USAGE_ERROR if usage else pytest.ExitCode.TESTS_FAILED
    pytest.exit(f"error: {problem}", returncode=code)
