"""``--gpuenergy-preheat`` on the emulated GPU, whose temperature follows its power."""

from __future__ import annotations

import math
import threading
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from pytest_gpuenergy.emulator import EmulatedDevice
from pytest_gpuenergy.engine import run_info
from pytest_gpuenergy.opening import open_device
from pytest_gpuenergy.pytest_plugin import show_preheat
from pytest_gpuenergy.record import RunInfo
from pytest_gpuenergy.support import DeviceError

SLOW_TO_SETTLE = ("--gpu-device", "emulated:h100", "--powercap", "current")


def now_s() -> float:
    """On the card's own clock."""
    with open_device("emulated:h100") as card:
        return card.clock.now_s()


@pytest.mark.slow
def test_a_cold_card_is_heated_up_first(project):
    began_s = now_s()
    project.run(*SLOW_TO_SETTLE, "--gpuenergy-preheat", "10")
    heated_s = now_s() - began_s
    began_s = now_s()
    project.run(*SLOW_TO_SETTLE, "--gpuenergy-preheat", "0")
    assert 2 < heated_s - (now_s() - began_s) < 11


@pytest.mark.slow
def test_the_seconds_of_an_emulated_card_are_not_shown(project):
    result = project.run(*SLOW_TO_SETTLE, "--gpuenergy-preheat", "10")
    result.stdout.no_fnmatch_line("*heating up the GPU*")


@pytest.mark.parametrize(
    ("verbosity", "lines"), [(0, ["gpuenergy: heating up the GPU, up to 9 s"]), (-1, [])]
)
def test_a_heat_up_is_a_line_unless_the_run_is_quiet(verbosity, lines):
    shown: list[str] = []
    terminal = SimpleNamespace(ensure_newline=lambda: None, write_line=shown.append)
    plugins = SimpleNamespace(get_plugin={"terminalreporter": terminal, "capturemanager": None}.get)
    config: Any = SimpleNamespace(pluginmanager=plugins, get_verbosity=lambda: verbosity)
    show_preheat(config, 9.0)
    assert shown == lines


def test_the_record_has_the_energy_as_measured_and_both_temperatures(project):
    project.run(*SLOW_TO_SETTLE, "--gpuenergy-preheat", "0")
    first = project.stored().measurements[0]
    warmer = first.settled_temperature_c - first.temperature_c
    assert math.copysign(1, warmer) == math.copysign(1, first.energy_mj - first.raw_energy_mj)
    half_width = (first.energy_mj_ci95.high - first.energy_mj_ci95.low) / 2
    assert 0 < 1.96 * first.settling_error < half_width / first.energy_mj
    raw = sum(trial.energy_mj for trial in first.trials) / len(first.trials)
    assert first.raw_energy_mj == pytest.approx(raw)
    brought = first.raw_energy_mj * (1 + first.energy_change_per_k * warmer)
    assert brought == pytest.approx(first.energy_mj, rel=1e-6)


RUN_INFO = "pytest_gpuenergy.pytest_plugin.session.run_info"
HEATS_AT_ONCE = """
def pytest_collection_finish(session):
    session.config.pluginmanager.get_plugin("gpuenergy-run").session.heats_at_once = True
"""
SKIPPED = """
import pytest

def test_one(powercap, energy_benchmark):
    pytest.skip("nothing to measure")
"""


class IdleHeater:
    """A heater that heats nothing, and notes when it begins and is to end."""

    def __init__(self, events: list[str]) -> None:
        self._events = events
        self._ended = threading.Event()
        events.append("heat")

    def __enter__(self) -> Any:
        self._ended.wait(30)
        raise DeviceError("It has been ended.")

    def __exit__(self, *_: object) -> None: ...

    def end(self) -> None:
        self._events.append("end")
        self._ended.set()


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What happens in a run: heat, its end, and the identity of the run, which takes a second."""
    found: list[str] = []

    def noted(*given: Any, **named: Any) -> RunInfo:
        found.append("identity")
        return run_info(*given, **named)

    monkeypatch.setattr(RUN_INFO, noted)
    monkeypatch.setattr(EmulatedDevice, "heater", lambda _: IdleHeater(found))
    return found


@pytest.mark.parametrize(
    ("options", "happens"),
    [
        (("--powercap", "current"), ["heat", "identity", "end"]),
        (("--powercap", "1"), ["identity"]),
        (("--powercap", "current", "--gpuenergy-verify-only"), ["identity"]),
    ],
)
def test_a_card_is_heated_once_it_is_claimed_until_its_item_ends(project, events, options, happens):
    project.module(SKIPPED)
    project.pytester.makeconftest(HEATS_AT_ONCE)
    project.run("--gpuenergy-preheat", "5", *options).assert_outcomes(skipped=1)
    assert events == happens


def test_a_card_is_not_heated_for_an_item_that_may_time_something_on_it(project, events):
    project.module(SKIPPED)
    project.run("--gpuenergy-preheat", "5", "--powercap", "current").assert_outcomes(skipped=1)
    assert events == ["identity"]


def test_a_run_that_cannot_begin_heats_no_longer(project, events, monkeypatch):
    project.module(SKIPPED)
    project.pytester.makeconftest(HEATS_AT_ONCE)
    monkeypatch.setattr(RUN_INFO, Mock(side_effect=DeviceError("It is gone.")))
    assert project.run("--gpuenergy-preheat", "5", "--powercap", "current").ret != 0
    assert events == ["heat", "end"]
