"""False alarms and what is found when most kernels have not changed."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from gate_shift_simulation import (
    REPORTS,
    RESULTS,
    Outcome,
    at_one_temperature,
    averaged,
    drawn,
    recorded,
    scaled,
)
from msgspec.structs import replace

from pytest_gpuenergy.record.metrics import METRICS, Metric
from pytest_gpuenergy.report import Measurement, Report, load_report

BOARD = RESULTS / REPORTS[0]


def rate(outcomes: list[Outcome], name: str) -> float:
    return sum(getattr(one, name) for one in outcomes) / len(outcomes)


def on_another_board(report: Report, energy: float, first: float) -> Report:
    """With all energies multiplied by ``energy``, and that of the first kernel by ``first`` too."""
    made = [
        scaled(m, dict.fromkeys((Metric.ENERGY, Metric.EDP), energy * (first if not place else 1)))
        for place, m in enumerate(report.measurements)
    ]
    return replace(report, measurements=tuple(made))


def test_a_baseline_of_several_boards_is_the_mean_without_what_is_common_to_each() -> None:
    report = load_report(BOARD)
    colder = on_another_board(report, 0.96, 1.02)
    warmer = on_another_board(report, 1.03, 1 / 1.02)
    found = averaged([report, colder, warmer], report).measurements
    for metric in METRICS:
        ones = [one.estimate(metric) for one in found]
        others = [one.estimate(metric) for one in report.measurements]
        assert [one.value for one in ones] == pytest.approx([one.value for one in others])
        widths = [one.half_width for one in others]
        assert [one.half_width for one in ones] == pytest.approx([w / 3**0.5 for w in widths])


def test_energies_at_one_temperature_lose_what_is_in_proportion_to_the_warming() -> None:
    before = load_report(BOARD).measurements
    kelvins = [place % 4 for place in range(len(before))]
    now = [
        warmed(scaled(m, {Metric.ENERGY: math.exp(0.004 * kelvin)}), kelvin)
        for m, kelvin in zip(before, kelvins, strict=True)
    ]
    now[0] = scaled(now[0], {Metric.ENERGY: 1.1})  # what has changed shows nothing
    found = at_one_temperature(before, now, changed=0)
    ratios = [one.energy_mj / m.energy_mj for one, m in zip(found, before, strict=True)]
    level = ratios[1]
    assert ratios == pytest.approx([1.1 * level, *[level] * (len(ratios) - 1)])


def warmed(m: Measurement, kelvins: int) -> Measurement:
    assert m.end is not None
    assert m.end.temperature_c is not None
    return replace(m, end=replace(m.end, temperature_c=m.end.temperature_c + kelvins))


@pytest.mark.slow
@pytest.mark.parametrize("boards", [pytest.param(1, marks=pytest.mark.thorough), 2])
def test_two_percent_are_found_and_alarms_are_rare(boards: int) -> None:
    rng = np.random.default_rng(boards)
    setting = {"runs": 100, "kernels": 25, "scatter": 0.0025, "boards": boards}
    changed = list(drawn(rng, edp=1.02, **setting))  # type: ignore[arg-type]
    assert rate(changed, "found") >= 0.95
    assert rate(changed, "alarm") < 0.01
    assert rate(list(drawn(rng, edp=1.0, **setting)), "alarm") <= 0.01  # type: ignore[arg-type]


@pytest.mark.slow
def test_few_alarms_between_boards_and_what_is_found() -> None:
    reports = [load_report(RESULTS / name) for name in REPORTS if "/report" not in name]
    pairs = list(itertools.combinations(reports, 2))
    still = [one for base, new in pairs for one in recorded([base], new, 1.0)]
    assert len(still) > 150
    assert rate(still, "alarm") <= 0.01
    larger = [one for base, new in pairs for one in recorded([base], new, 1.04)]
    assert rate(larger, "found_by_any") >= 0.95
