"""What each end of an interval risks: a false alarm of a run, a miss of a kernel."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from gate_simulation import Session, drawn_measurement
from hypothesis import given, strategies as st
from msgspec.structs import replace
from points import each_once
from report_fixtures import a_run

from pytest_gpuenergy.gate import MISS, GateSettings, Verdict, change_interval, compare
from pytest_gpuenergy.record import Estimate, Measurement, Metric, normal_quantile
from pytest_gpuenergy.report import Report

BASE, NEW = a_run(run_id="base"), a_run(run_id="new")


def drawn(
    rng: np.random.Generator, changed: int, edp: float, unchanged: int = 0, text: str = ""
) -> tuple[Measurement, ...]:
    """Kernels in a session of the declared deviation; ``changed`` ones have the EDP ``edp``."""
    measure = drawn_measurement(rng)
    made = []
    for place in range(changed + unchanged):
        label, new = f"k{place:03d}", place < changed
        one = measure(label, Session.draw(rng, heavy_tails=False), edp if new else 1.0)
        digest = text if new else label
        made.append(replace(one, kernel=replace(one.kernel, digest=digest)))
    return tuple(made)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("metric", "unchanged"), each_once(["edp:5%", "time:2%", "energy:3%"], [0, 20])
)
def test_a_kernel_that_is_worse_by_the_limit_is_missed_once_in_twenty(metric, unchanged):
    settings = GateSettings.parse([metric], strict=True)
    (limit,) = settings.limits.values()
    edp = 1 + limit if metric.startswith("edp") else (1 + limit) ** 2  # half of it each
    rng, count = np.random.default_rng(5), 300
    base = Report(BASE, drawn(rng, count, 1.0, unchanged, "before"))
    new = Report(NEW, drawn(rng, count, edp, unchanged, "after"))
    found = [one for one in compare(base, new, settings).judgements if not one.unchanged]
    missed = sum(one.verdict is Verdict.SAME for one in found) / count
    assert 0 < missed <= MISS + 3 * math.sqrt(MISS * (1 - MISS) / count)
    assert not any(one.verdict is Verdict.WORSE for one in found)


@pytest.mark.slow
@pytest.mark.parametrize("unchanged", [0, 7])
def test_a_run_in_which_nothing_is_worse_raises_no_alarm(unchanged):
    settings = GateSettings.parse(["time:0%,energy:0%,edp:0%"])
    rng, runs, alarms = np.random.default_rng(6), 60, 0
    for _ in range(runs):
        base = Report(BASE, drawn(rng, 8 - unchanged, 1.0, unchanged, "before"))
        new = Report(NEW, drawn(rng, 8 - unchanged, 1.0, unchanged, "after"))
        alarms += not compare(base, new, settings).passed
    assert alarms <= 3  # 0.6 are allowed; more than 3: 0.3 %


def test_only_the_end_that_raises_alarms_widens_with_the_number_of_verdicts():
    few, many = (
        change_interval(normal_interval(0.0, 0.01), 0.01 / count, (), Metric.EDP)
        for count in (3, 300)
    )
    assert many.low < few.low
    assert many.high == few.high == pytest.approx(0.01 * normal_quantile(MISS))


def normal_interval(value: float, error: float) -> Callable[..., Estimate]:
    def at(*, tail: float) -> Estimate:
        half = normal_quantile(tail) * error
        return Estimate(value, value - half, value + half)

    return at


@given(st.floats(-0.1, 0.1), st.floats(1e-4, 0.05), st.floats(1e-6, MISS))
def test_an_improvement_is_claimed_no_more_readily_than_a_regression(value, error, alarm):
    at = normal_interval(value, error)
    found, certain = change_interval(at, alarm, (), Metric.EDP), at(tail=alarm)
    assert found.low == pytest.approx(certain.low, abs=1e-12)
    assert found.low <= found.value <= found.high
    assert found.high <= certain.high + 1e-12
    assert (found.high < 0) is (certain.high < 0)
