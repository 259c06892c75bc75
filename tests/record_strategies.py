"""Any record, for tests that hold for all of them."""

from __future__ import annotations

import sys
from typing import Any, get_args

from hypothesis import strategies as st

from pytest_gpuenergy.record import (
    MAX_W,
    PHASES,
    AnchorCheck,
    CheckVerdict,
    ClockState,
    Conditions,
    Correctness,
    Estimate,
    Interval,
    KernelInfo,
    Measurement,
    Metric,
    RunInfo,
    Window,
    WorkloadInfo,
)
from pytest_gpuenergy.report import Report
from pytest_gpuenergy.support import Outcome

MOST = sys.float_info.max
FINITE = st.floats(allow_nan=False, allow_infinity=False)
NOT_NEGATIVE = st.floats(0, allow_infinity=False)
ABOVE_ZERO = st.floats(0, allow_infinity=False, exclude_min=True)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
"""Whole characters: half a surrogate pair is read as a question mark."""

COUNTS = st.integers(0, 2**60)
VALUES = st.one_of(TEXTS, st.integers(-(2**63), 2**63 - 1))
WORKLOADS = st.builds(
    WorkloadInfo, TEXTS, st.dictionaries(TEXTS, VALUES, max_size=3), COUNTS, COUNTS
)
KERNELS = st.builds(
    KernelInfo,
    TEXTS,
    TEXTS,
    TEXTS,
    st.none() | COUNTS,
    st.dictionaries(TEXTS, st.one_of(VALUES, FINITE), max_size=3),
)
CONDITIONS = st.builds(Conditions, *([st.none() | COUNTS] * 5))
CORRECTNESS = st.builds(
    Correctness, FINITE, FINITE, FINITE, FINITE, st.lists(COUNTS, max_size=3).map(tuple)
)
TRIALS = st.lists(
    st.builds(Window, st.floats(1e-3, MOST), st.floats(0, 10), ABOVE_ZERO, NOT_NEGATIVE),
    max_size=3,
).map(tuple)
LIMITS_W = st.floats(0, MAX_W)
CLOCKS_MHZ = st.none() | st.integers(1, 2**60)


@st.composite
def possible_figures(draw: st.DrawFn) -> dict[str, float]:
    """Figures that follow from each other."""
    time_ms, power_w = draw(st.floats(1e-6, 1e9)), draw(st.floats(1e-3, MAX_W))
    energy_mj = time_ms * power_w
    return {
        "time_ms": time_ms,
        "energy_mj": energy_mj,
        "edp_mj_ms": time_ms * energy_mj,
        "power_w": power_w,
        "gflops": draw(st.floats(0, 1e6)),
        "gflops_per_w": draw(st.floats(0, 1e6)),
    }


STATES = st.lists(st.builds(ClockState, TEXTS, NOT_NEGATIVE, NOT_NEGATIVE), max_size=2).map(tuple)
FLAGS = st.lists(TEXTS, max_size=3).map(tuple)
RUNS = st.builds(
    RunInfo,
    *([TEXTS] * 6),
    st.booleans(),
    st.dictionaries(TEXTS, FINITE, max_size=2),
    st.dictionaries(TEXTS, TEXTS, max_size=2),
    st.dictionaries(TEXTS, TEXTS, max_size=2),
    st.none() | TEXTS,
    st.booleans(),
)
RATIOS = st.none() | st.builds(Estimate, FINITE, FINITE, FINITE)
CHECKS = st.builds(
    AnchorCheck,
    *([TEXTS] * 4),
    st.sampled_from(get_args(CheckVerdict)),
    TEXTS,
    TEXTS,
    st.none() | TEXTS,
    RATIOS,
    RATIOS,
    RATIOS,
    st.none() | COUNTS,
    st.none() | COUNTS,
    FLAGS,
    st.none() | TEXTS,
    FLAGS,
)


@st.composite
def measurements(draw: st.DrawFn) -> Measurement:
    trials = draw(TRIALS)
    figures: dict[str, Any] = {}
    if draw(st.booleans()):
        figures = draw(possible_figures()) | {"trials": ()}
        for metric in Metric:
            if draw(st.booleans()):
                value = figures[metric.field]
                low, high = draw(st.floats(-MOST, value)), draw(st.floats(value, MOST))
                figures[f"{metric.field}_ci95"] = Interval(low, high)
    return Measurement(
        node_id=draw(TEXTS),
        workload=draw(WORKLOADS),
        kernel=draw(KERNELS),
        outcome="correct" if figures else draw(st.sampled_from(get_args(Outcome))),
        cap=draw(TEXTS),
        cap_index=draw(st.none() | COUNTS),
        power_limit_w=draw(st.none() | LIMITS_W),
        enforced_power_limit_w=draw(st.none() | LIMITS_W),
        cache=draw(TEXTS),
        gpu_uuid=draw(st.none() | TEXTS),
        energy_source=draw(st.none() | TEXTS),
        error=draw(st.none() | TEXTS),
        **({"trials": trials} | figures),
        warm_trials=draw(TRIALS),
        correctness=draw(st.none() | CORRECTNESS),
        start=draw(st.none() | CONDITIONS),
        begin=draw(st.none() | CONDITIONS),
        end=draw(st.none() | CONDITIONS),
        temperature_c=draw(st.none() | FINITE),
        settling_error=draw(st.none() | NOT_NEGATIVE),
        effective_sm_clock_mhz=draw(st.none() | NOT_NEGATIVE),
        clock_states=draw(STATES),
        cap_binding=draw(st.none() | st.booleans()),
        in_process=draw(st.none() | st.booleans()),
        validity=draw(FLAGS),
        started=draw(TEXTS),
        wall_s=draw(FINITE),
        phases_s=draw(st.dictionaries(st.sampled_from(PHASES), FINITE, max_size=2)),
        sm_clock_mhz=draw(CLOCKS_MHZ),
        locked_sm_clock_min_mhz=draw(CLOCKS_MHZ),
        locked_sm_clock_max_mhz=draw(CLOCKS_MHZ),
    )


REPORTS = st.builds(
    Report,
    RUNS,
    st.lists(measurements(), max_size=2, unique_by=lambda m: m.node_id).map(tuple),
    st.lists(CHECKS, max_size=1).map(tuple),
)
