"""False alarms and what is found when most kernels have not changed."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from gate_shift_simulation import REPORTS, RESULTS, Outcome, drawn, recorded, sides

from pytest_gpuenergy.report import load_report


def rate(outcomes: list[Outcome], name: str) -> float:
    return sum(getattr(one, name) for one in outcomes) / len(outcomes)


@pytest.mark.slow
@pytest.mark.parametrize("boards", [pytest.param(1, marks=pytest.mark.thorough), 2])
def test_two_percent_are_found_and_alarms_are_rare(boards):
    rng = np.random.default_rng(boards)
    setting = {"runs": 100, "kernels": 25, "scatters": [0.0025], "boards": boards}
    changed = list(drawn(rng, edp=1.02, **setting))  # type: ignore[arg-type]
    assert rate(changed, "found") >= 0.93
    assert rate(changed, "alarm") < 0.01
    assert rate(list(drawn(rng, edp=1.0, **setting)), "alarm") <= 0.01  # type: ignore[arg-type]


@pytest.mark.slow
def test_few_alarms_between_boards_and_what_is_found():
    reports = [load_report(RESULTS / name) for name in REPORTS if "/report" not in name]
    pairs = list(itertools.combinations(reports, 2))[::3]
    still = [one for base, new in pairs for one in recorded(base, new, 1.0)]
    assert len(still) > 110
    assert rate(still, "alarm") <= 0.01
    larger = [one for base, new in pairs for one in recorded(base, new, 1.04)]
    assert rate(larger, "found_by_any") >= 0.95


@pytest.mark.slow
def test_means_of_two_reports_find_two_percent():
    reports = [load_report(RESULTS / name) for name in REPORTS if "/report" not in name]
    pairs = sides(reports, 2, most=9)
    changed = [one for base, new in pairs for one in recorded(base, new, 1.02)]
    assert len(changed) > 130
    assert rate(changed, "found_by_any") >= 0.95
