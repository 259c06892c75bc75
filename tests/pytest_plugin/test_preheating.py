"""``--gpuenergy-preheat`` on the emulated GPU, whose temperature follows its power."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_gpuenergy.opening import open_device
from pytest_gpuenergy.pytest_plugin import show_preheat

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
