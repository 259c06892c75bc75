"""``--gpuenergy-preheat`` on the emulated GPU, whose temperature follows its power."""

from __future__ import annotations

import math

import pytest

from pytest_gpuenergy.opening import open_device

pytestmark = pytest.mark.slow

SLOW_TO_SETTLE = ("--gpu-device", "emulated:h100", "--powercap", "current")


def now_s() -> float:
    """On the card's own clock."""
    with open_device("emulated:h100") as card:
        return card.clock.now_s()


def test_a_cold_card_is_heated_up_first(project):
    began_s = now_s()
    result = project.run(*SLOW_TO_SETTLE, "--gpuenergy-preheat", "10")
    result.stdout.fnmatch_lines(["gpuenergy: heating up the GPU, up to 9 s"])
    heated_s = now_s() - began_s
    began_s = now_s()
    project.run(*SLOW_TO_SETTLE, "--gpuenergy-preheat", "0")
    assert 2 < heated_s - (now_s() - began_s) < 11


@pytest.mark.parametrize("arguments", [("--gpuenergy-preheat", "0"), ("-q",)])
def test_no_heating_up_and_a_quiet_run_are_not_told(project, arguments):
    result = project.run(*SLOW_TO_SETTLE, *arguments)
    result.stdout.no_fnmatch_line("*heating up the GPU*")


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
