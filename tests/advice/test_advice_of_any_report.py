"""Advice on any report that can be read: an answer or one sentence, never an error."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from record_strategies import (
    CLOCKS_MHZ,
    LIMITS_W,
    MOST,
    NOT_NEGATIVE,
    TEXTS,
    possible_figures,
)

from pytest_gpuenergy.advice import Goal, advise_on, json_document, markdown, terminal
from pytest_gpuenergy.record import (
    METRICS,
    Interval,
    KernelInfo,
    Measurement,
    Metric,
    Window,
    WorkloadInfo,
)
from pytest_gpuenergy.report import Report
from pytest_gpuenergy.support import InputError

GOALS = st.one_of(
    st.sampled_from(METRICS).map(Goal),
    st.floats(0, 100).map(lambda slower_by: Goal(Metric.ENERGY, slower_by)),
)


@st.composite
def rows(draw: st.DrawFn) -> tuple[Measurement, ...]:
    """Measurements of few workloads at few setpoints, so that there is something to choose."""

    def row(number: int) -> Measurement:
        figures: dict[str, Any] = draw(possible_figures())
        for metric in METRICS if draw(st.booleans()) else ():
            value = figures[metric.field]
            ends = draw(st.floats(-MOST, value)), draw(st.floats(value, MOST))
            figures[f"{metric.field}_ci95"] = Interval(*ends)
        return Measurement(
            node_id=str(number),
            workload=WorkloadInfo(draw(st.sampled_from("ab")), {}, 1, 1),
            kernel=KernelInfo(draw(TEXTS), "", ""),
            outcome="correct",
            cap=draw(st.sampled_from(["300W", "current"])),
            power_limit_w=draw(st.none() | LIMITS_W),
            gpu_uuid=draw(st.none() | TEXTS),
            sm_clock_mhz=draw(CLOCKS_MHZ),
            trials=(Window(1.0, 1.0, 1.0, 1.0),) * draw(st.integers(0, 3)),
            settling_error=draw(st.none() | NOT_NEGATIVE),
            validity=("host_gaps",) * draw(st.integers(0, 1)),
            **figures,
        )

    return tuple(map(row, range(draw(st.integers(0, 4)))))


@pytest.mark.slow
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows(), GOALS, st.floats(1e-9, 1e9))
def test_any_report_gets_advice_or_one_sentence(run_info, found, goal, weight):
    report = Report(run_info(), found)
    clean = {m.workload.name for m in found if m.measured and not m.validity}
    try:
        outcome = advise_on(report, goal, weights=dict.fromkeys(sorted(clean)[:1], weight))
    except InputError:
        assert not clean
        return
    lines = list(terminal(outcome, 60))
    assert max(map(len, lines)) <= 60
    assert markdown(outcome)
    document = json.loads(json_document(outcome))
    for one in filter(None, [document["whole"], *document["workloads"]]):
        assert one["setpoint"] in one["within_noise"]
