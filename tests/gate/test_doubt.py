"""Flags and differences widen the doubt near the limit, and hide no change far beyond it."""

from __future__ import annotations

import math
from dataclasses import replace as changed
from typing import Any

import numpy as np
import pytest
from gate_simulation import Session, drawn_measurement
from hypothesis import given, strategies as st
from msgspec.structs import replace
from report_fixtures import a_run

from pytest_gpuenergy.gate import (
    Comparison,
    Doubt,
    GateSettings,
    compare,
    decide,
    judge_budget,
    pair_doubts,
    widened,
)
from pytest_gpuenergy.record import Estimate, Measurement, Metric
from pytest_gpuenergy.report import Report

ALL_5 = GateSettings.parse(["time:5%,energy:5%,edp:5%"])
EDP_5 = GateSettings.parse(["edp:5%"])
RUN = a_run(run_id="base", software={"driver": "580"})
WIDE = ["interval_wide", "not_settled"]
STEPS = ["clock_step", "not_steady", "temperature_drift"]
SLIGHT = [*WIDE, *STEPS, "sources_disagree", "drift"]
LARGE = ["host_gaps", "foreign_process", "power_limit_changed", "hw_slowdown", "of_a_later_version"]


def measurement(edp: float = 1.0) -> Measurement:
    """One without scatter between sessions."""
    return drawn_measurement(np.random.default_rng(0))("k01", Session(0.0, 0.0), edp)


def compared(
    base: Measurement, new: Measurement, settings: GateSettings = EDP_5, **changes: Any
) -> Comparison:
    runs = RUN, replace(RUN, run_id="new", **changes)
    return compare(Report(runs[0], (base,)), Report(runs[1], (new,)), settings)


def verdict(edp: float, *flags: str) -> str:
    (judgement,) = compared(measurement(), replace(measurement(edp), validity=flags)).judgements
    return str(judgement.verdict)


@pytest.mark.parametrize("flag", [*SLIGHT, *LARGE])
def test_no_flag_hides_a_change_far_beyond_the_limit(flag):
    comparison = compared(measurement(), replace(measurement(143_000), validity=(flag,)))
    assert [str(judgement.verdict) for judgement in comparison.judgements] == ["WORSE"]
    assert not comparison.passed


@pytest.mark.parametrize("flag", [*SLIGHT, *LARGE])
def test_no_flag_hides_an_edp_far_over_its_budget(flag):
    found = replace(measurement(143_000), validity=(flag,))
    edp_mj_ms = measurement().edp_mj_ms
    assert edp_mj_ms is not None
    assert judge_budget(found, edp_mj_ms, 0.03, EDP_5, 1).verdict == "WORSE"


@pytest.mark.parametrize("flag", [*SLIGHT[2:], *LARGE])
def test_a_flag_leaves_open_what_is_near_the_limit(flag):
    assert verdict(1.08) == "WORSE"
    assert verdict(1.08, flag) == "AMBIGUOUS"


@pytest.mark.parametrize("flag", WIDE)
def test_a_wide_interval_is_no_doubt_beyond_itself(flag):
    assert verdict(1.08, flag) == "WORSE"


@pytest.mark.parametrize("flag", [*SLIGHT, *LARGE])
def test_a_flagged_measurement_that_has_not_changed_is_open_if_it_may_be_off_by_the_limit(flag):
    small = flag in (*WIDE, *STEPS)
    assert verdict(1.0, flag) == ("SAME" if small else "AMBIGUOUS")


@pytest.mark.parametrize(("flag", "expected"), [("drift", "WORSE"), ("host_gaps", "AMBIGUOUS")])
def test_a_flag_for_a_few_per_cent_explains_no_doubling(flag, expected):
    assert verdict(2.0, flag) == expected


def test_the_worst_flag_counts():
    assert verdict(2.0, "drift", "foreign_process") == "AMBIGUOUS"


@pytest.mark.parametrize("flag", [*SLIGHT, *LARGE])
@pytest.mark.parametrize("edp", [0.9, 1.0, 1.03, 1.08, 1.3])
def test_the_interval_that_is_shown_decides_unless_the_size_of_a_doubt_is_unknown(flag, edp):
    (plain,) = compared(measurement(), measurement(edp)).judgements
    flagged = replace(measurement(edp), validity=(flag,))
    (judgement,) = compared(measurement(), flagged).judgements
    assert judgement.change is not None
    assert judgement.reasons == (f"flagged now: {flag}",)
    if flag in LARGE:
        assert judgement.change == plain.change
        assert judgement.verdict == "AMBIGUOUS"
    else:
        assert judgement.verdict is decide(judgement.change, 0.05)


@pytest.mark.parametrize(
    "changes",
    [
        {"edp_mj_ms_ci95": None},
        {"trials": ()},
        {"enforced_power_limit_w": 1.0},
        {"locked_sm_clock_max_mhz": 1500},
    ],
    ids=["no interval", "no trials", "another limit", "another lock"],
)
def test_what_else_is_in_doubt_hides_nothing_far_beyond_the_limit(changes):
    comparison = compared(measurement(), replace(measurement(143_000), **changes))
    assert not comparison.passed


def test_another_lock_of_the_clocks_puts_what_is_near_the_limit_in_doubt():
    locked = replace(measurement(1.2), locked_sm_clock_max_mhz=1500)
    (doubt,) = pair_doubts(measurement(), locked, Metric.TIME)
    assert doubt.reason == "the SM clocks were not locked and are now locked to 1500 MHz"


@pytest.mark.parametrize("changes", [{"gpu_uuid": "GPU-2"}, {"software": {"driver": "590"}}])
def test_another_board_or_driver_hides_nothing_far_beyond_the_limit(changes):
    assert not compared(measurement(), measurement(143_000), **changes).passed


def test_another_energy_source_hides_nothing_far_beyond_the_limit():
    other = replace(measurement(143_000), energy_source="instant power")
    assert not compared(measurement(), other).passed


def test_another_workload_is_never_judged():
    new = measurement(143_000)
    other = replace(new, workload=replace(new.workload, flops=2 * new.workload.flops))
    (judgement,) = compared(measurement(), other).judgements
    assert judgement.verdict == "AMBIGUOUS"


def test_a_strict_gate_fails_what_a_flag_leaves_open():
    strict = changed(EDP_5, strict=True)
    assert not compared(measurement(), replace(measurement(), validity=("drift",)), strict).passed


@given(
    st.floats(-5, 5),
    st.floats(0, 2),
    st.lists(st.floats(1, 1e3)),
    st.sampled_from(Metric),
)
def test_a_doubt_never_narrows_an_interval(mean, half, factors, metric):
    change = Estimate(mean, mean - half, mean + half)
    found = widened(change, [Doubt("", factor) for factor in factors], metric)
    assert found.low <= change.low <= change.high <= found.high


@given(st.floats(1, 1e3), st.floats(-5, 5))
def test_the_factor_of_a_product_is_that_of_both(factor, mean):
    change = Estimate(mean, mean, mean)
    time, edp = (widened(change, [Doubt("", factor)], m) for m in (Metric.TIME, Metric.EDP))
    assert math.isclose(mean - edp.low, 2 * (mean - time.low), abs_tol=1e-9)


def at_clock(mhz: float, time: float = 1.0, **changes: Any) -> Measurement:
    """A measurement at an SM clock, with ``time`` as a multiple of the time of others."""
    found = measurement(time * time)
    return replace(found, effective_sm_clock_mhz=mhz, cap_binding=False, **changes)


def time_verdict(base: Measurement, new: Measurement, limit: float) -> str:
    settings = changed(GateSettings(), limits={Metric.TIME: limit})
    (judgement,) = compared(base, new, settings).judgements
    return str(judgement.verdict)


def test_a_slower_clock_may_explain_a_longer_time():
    assert time_verdict(at_clock(2000.0), at_clock(1900.0, 1.05), 0.0) == "AMBIGUOUS"


def test_a_slower_clock_explains_no_more_than_its_share():
    assert time_verdict(at_clock(2000.0), at_clock(1980.0, 1.05), 0.0) == "WORSE"


def test_a_faster_clock_may_hide_a_longer_time():
    assert time_verdict(at_clock(1900.0), at_clock(2000.0), 0.02) == "AMBIGUOUS"


def test_a_clock_that_a_power_limit_moves_belongs_to_the_kernel():
    capped = replace(at_clock(1900.0, 1.05), cap_binding=True)
    assert time_verdict(at_clock(2000.0), capped, 0.0) == "WORSE"


def test_two_clocks_are_named():
    (doubt,) = pair_doubts(at_clock(1991.0), at_clock(1974.0), Metric.TIME)
    assert doubt.reason == "the SMs ran at 1991 MHz and run at 1974 MHz now"


@given(st.floats(0.8, 1.25))
def test_room_for_a_clock_grows_towards_the_change_at_equal_clocks(ratio):
    # By itself, an energy that goes with the clock's square is no change.
    change = Estimate(*[2 * math.log(ratio)] * 3)
    found = widened(change, [Doubt("clock", 1.0, ratio)], Metric.ENERGY)
    assert found.low <= 0 <= found.high or math.isclose(ratio, 1.0)
