"""From measured figures to those of a settled card."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, strategies as st

from pytest_gpuenergy.energy import Settling, settling_gains
from pytest_gpuenergy.record import Metric

SETTLINGS = st.builds(
    Settling,
    temperature_c=st.floats(30, 80),
    settled_c=st.floats(30, 80),
    error_k=st.floats(0.3, 5),
    open_k=st.just(0.3),
    per_k=st.floats(0.002, 0.006),
    per_k_error=st.floats(0.0002, 0.0012),
)


@given(settling=SETTLINGS, headroom=st.floats(0, 0.2))
def test_the_power_rises_no_further_than_its_limit(settling: Settling, headroom: float) -> None:
    assert settling_gains(settling, headroom)[Metric.ENERGY].factor <= 1 + headroom + 1e-12


@given(settling=SETTLINGS)
def test_far_from_the_limit_energy_and_edp_follow_the_power(settling: Settling) -> None:
    found = settling_gains(settling, math.inf)
    assert found[Metric.ENERGY] == found[Metric.EDP]
    assert found[Metric.ENERGY] == (1 + settling.gain, settling.gain_error)
    assert found[Metric.TIME] == (1.0, 0.0)


@given(settling=SETTLINGS)
def test_at_the_limit_nobody_knows_how_much_faster_a_cooler_card_is(settling: Settling) -> None:
    found = settling_gains(settling, 0.0)
    assert {gain.factor for gain in found.values()} == {1.0}
    assert found[Metric.EDP].error == pytest.approx(2 * found[Metric.TIME].error)
    assert 0 < found[Metric.ENERGY].error < math.hypot(settling.gain, settling.gain_error)


def test_without_a_temperature_nothing_changes() -> None:
    assert set(settling_gains(None, 0.1).values()) == {(1.0, 0.0)}
