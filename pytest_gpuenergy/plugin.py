"""pytest's entry point: declares options, markers and fixtures, and loads the rest on demand.

A project that sets none of our options and collects none of our items imports only this module and
a few small ones, which need nothing but the standard library and pytest.
"""

from __future__ import annotations

import atexit
import gc
import os
import sys
from collections.abc import Callable, Generator
from functools import partial
from typing import TYPE_CHECKING

import pytest

from pytest_gpuenergy.pytest_plugin import (
    BENCH,
    BUDGET_MARKERS,
    DEVICE,
    DEVICE_FIXTURE,
    EDP_MARKER,
    ENERGY_MARKER,
    FLEET,
    POWERCAP_FIXTURE,
    RUN,
    WITH_VALUES,
    Hooks,
    WorkerPlugin,
    add_options,
    any_option_is_set,
    keep_rootdir,
    options_of_group,
    runs_items,
)

if TYPE_CHECKING:
    from pytest_gpuenergy.control import Setpoint
    from pytest_gpuenergy.devices import Device
    from pytest_gpuenergy.kernels import Kernel
    from pytest_gpuenergy.pytest_plugin import EnergyBenchmark, RunPlugin

_NEW_OBJECTS = 200_000
"""After how many new objects Python looks for garbage while it imports conftest files."""

_ERRORS = "pytest_gpuenergy.support.errors"
"""The module of our errors. Until it is imported, no error can be ours."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of group ``gpuenergy``."""
    add_options(parser)


def pytest_addhooks(pluginmanager: pytest.PytestPluginManager) -> None:
    """Declare the hook that a ``conftest.py`` may implement."""
    pluginmanager.add_hookspecs(Hooks)


@pytest.hookimpl(wrapper=True, tryfirst=True)  # before another plugin reads the ini file
def pytest_load_initial_conftests(
    early_config: pytest.Config, parser: pytest.Parser, args: list[str]
) -> Generator[None, object, object]:
    """Prevent that the value of an option of ours decides which ini file pytest reads."""
    keep_rootdir(early_config, parser, args, WITH_VALUES, mend=True)
    thresholds = gc.get_threshold()
    if thresholds[0]:  # importing leaves no garbage, and looking for it takes time
        gc.set_threshold(_NEW_OBJECTS, *thresholds[1:])
    try:
        result = yield
    finally:
        if gc.get_threshold()[0] == _NEW_OBJECTS:  # no conftest.py has set another one
            gc.set_threshold(*thresholds)
    loaded = [name for name, _ in early_config.pluginmanager.list_name_plugin()]
    if any(name.startswith(f"{__package__}.pytest_plugin.") for name in loaded):
        keep_rootdir(early_config, parser, args, options_of_group(parser, BENCH), mend=False)
    return result


def pytest_configure(config: pytest.Config) -> None:
    """Declare the markers; load the rest when an option of ours is set."""
    for marker, argument, figure in (
        (EDP_MARKER, "max_mj_ms", "the energy-delay product"),
        (ENERGY_MARKER, "joules", "the energy of a launch"),
    ):
        config.addinivalue_line(
            "markers",
            f'{marker}({argument}, rel="0%"): fail when {figure} exceeds {argument} by more than '
            "rel",
        )
    if not hasattr(config, "workerinput"):
        workers = WorkerPlugin(lambda: load_run(config))
        config.pluginmanager.register(workers, WorkerPlugin.NAME)
    if any_option_is_set(config):
        load_run(config)


def load_run(config: pytest.Config) -> RunPlugin:
    """Return the plugin that measures in this pytest process, which the first call loads.

    Raises:
        pytest.UsageError: an option is invalid.
    """
    loaded: RunPlugin | None = config.pluginmanager.get_plugin(RUN)
    if loaded is None:
        collecting = gc.isenabled()
        gc.disable()  # importing leaves no garbage, and looking for it takes time
        try:
            from pytest_gpuenergy.pytest_plugin import RunPlugin
        finally:
            if collecting:
                gc.enable()
        loaded = RunPlugin(config)
        config.pluginmanager.register(loaded, RUN)
        atexit.register(gc.freeze)  # nobody needs what looking for garbage would free then
    return loaded


@pytest.hookimpl(tryfirst=True)  # before another plugin reads --tx and --dist
def pytest_cmdline_main(config: pytest.Config) -> None:
    """Prepare the fleet, unless this process is one of its workers or no items will run."""
    fleet = FLEET.text(config)
    if fleet == "" and FLEET.stated(config):
        return  # an empty option switches the ini file's fleet off
    if fleet is not None and not hasattr(config, "workerinput") and runs_items(config):
        from pytest_gpuenergy.pytest_plugin import prepare

        prepare(config, fleet)


@pytest.hookimpl(optionalhook=True, tryfirst=True)  # before pytest-xdist's own
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int | None:
    """For ``-n auto``, return the number of GPUs if the user has named them.

    pytest-xdist asks before collection, when it is not yet known whether there are items of ours.
    Without a named device, pytest-xdist's own default, the number of CPU cores, applies.
    """
    device = DEVICE.text(config)
    if device is None or os.environ.get("PYTEST_XDIST_AUTO_NUM_WORKERS"):
        return None
    from pytest_gpuenergy.opening import count_gpus
    from pytest_gpuenergy.support import GpuEnergyError

    try:
        return count_gpus(device)
    except GpuEnergyError as error:
        raise pytest.UsageError(str(error)) from None


@pytest.hookimpl(trylast=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Parametrize tests that request our ``powercap``, unless they parametrize it themselves."""
    if POWERCAP_FIXTURE not in metafunc.fixturenames:
        return
    own = metafunc.definition.iter_markers("parametrize")
    if any("powercap" in str(mark.args[0]) for mark in own if mark.args):
        return
    load_run(metafunc.config).parametrize_setpoints(metafunc)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Load the rest when an item uses our fixtures or a marker of ours."""
    if any(map(_is_ours, items)):
        load_run(config).name_items(items)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show an error of ours as one sentence."""
    report = yield
    if call.excinfo is not None and _ERRORS in sys.modules:
        from pytest_gpuenergy.pytest_plugin import shorten

        shorten(report, call.excinfo, item.config)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Show an error of ours in a test module as one sentence, and a bad option only once.

    Raises:
        pytest.UsageError: an option of ours cannot work.
    """
    report = yield
    call = getattr(report, "call", None)  # pytest keeps it for its own use
    if call is not None and call.excinfo is not None and _ERRORS in sys.modules:
        from pytest_gpuenergy.pytest_plugin import BadOptionError, shorten

        error = call.excinfo.value
        if isinstance(error, BadOptionError):
            raise pytest.UsageError(str(error)) from error
        if isinstance(error.__cause__, BadOptionError):  # raised so by a collector inside
            raise error
        shorten(report, call.excinfo, collector.config)
    return report


def _is_ours(item: pytest.Item) -> bool:
    return DEVICE_FIXTURE in getattr(item, "fixturenames", ()) or any(
        map(item.get_closest_marker, BUDGET_MARKERS)
    )


@pytest.fixture(scope="session", name=DEVICE_FIXTURE)
def opened_device(request: pytest.FixtureRequest) -> Device:
    """The device behind our fixtures, claimed for this run."""
    return load_run(request.config).claim_device()


@pytest.fixture(name=POWERCAP_FIXTURE)
def applied_powercap(request: pytest.FixtureRequest) -> object:
    """The parameter of the fixture ``powercap``; None when the test is not parametrized with it."""
    return getattr(request, "param", None)


@pytest.fixture(scope="session")
def gpu(_gpuenergy_device: Device) -> Device:
    """The device: a real GPU or the emulated one."""
    return _gpuenergy_device


@pytest.fixture
def powercap(
    request: pytest.FixtureRequest,
    _gpuenergy_device: Device,
    _gpuenergy_powercap: Setpoint | None,
) -> Setpoint:
    """The item's power cap, set on the card; parametrized by ``--powercap``."""
    setpoint: Setpoint | None = getattr(request, "param", _gpuenergy_powercap)
    return load_run(request.config).apply_setpoint(request.node, setpoint)


@pytest.fixture
def energy_benchmark(request: pytest.FixtureRequest, _gpuenergy_device: Device) -> EnergyBenchmark:
    """Call it with a kernel or a callable to verify, measure and record it."""
    from pytest_gpuenergy.pytest_plugin import EnergyBenchmark

    run = load_run(request.config)
    uses_cap = POWERCAP_FIXTURE in request.fixturenames
    setpoint = request.getfixturevalue("powercap") if uses_cap else None
    return EnergyBenchmark(request.node, run.session, setpoint, run.gate)


@pytest.fixture
def load_kernel(request: pytest.FixtureRequest) -> Callable[..., Kernel]:
    """`pytest_gpuenergy.kernels.load_kernel` with paths relative to the test's folder."""
    from pytest_gpuenergy.kernels import load_kernel as load

    return partial(load, folder=request.path.parent)
