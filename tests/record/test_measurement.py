"""The record of one item and its form in JSON."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable
from dataclasses import fields
from typing import Any, get_args

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pytest_gpuenergy.energy.sensors import Conditions
from pytest_gpuenergy.energy.trials import Trial
from pytest_gpuenergy.engine.verification import Correctness
from pytest_gpuenergy.record.measurement import (
    FIGURES,
    Interval,
    KernelInfo,
    from_json,
    to_json,
)
from pytest_gpuenergy.report import Measurement, RunInfo, WorkloadInfo
from pytest_gpuenergy.support.errors import Outcome, ReportError

Make = Callable[..., Any]

FINITE = st.floats(allow_nan=False, allow_infinity=False)
TEXT = st.text(max_size=12)
COUNTS = st.integers(0, 2**60)
VALUES = st.one_of(TEXT, st.integers(-(2**60), 2**60))
MAYBE_COUNT = st.none() | COUNTS

WORKLOADS = st.builds(WorkloadInfo, TEXT, st.dictionaries(TEXT, VALUES, max_size=3), COUNTS, COUNTS)
KERNELS = st.builds(
    KernelInfo,
    TEXT,
    TEXT,
    TEXT,
    MAYBE_COUNT,
    st.dictionaries(TEXT, st.one_of(VALUES, FINITE), max_size=3),
)
POSSIBLE = st.floats(0, allow_infinity=False)
ABOVE_ZERO = st.floats(0, allow_infinity=False, exclude_min=True)
CONDITIONS = st.none() | st.builds(Conditions, *([MAYBE_COUNT] * 5))
CORRECTNESS = st.none() | st.builds(
    Correctness, FINITE, FINITE, FINITE, FINITE, st.lists(COUNTS, max_size=3).map(tuple)
)
TRIALS = st.lists(st.builds(Trial, ABOVE_ZERO, POSSIBLE, ABOVE_ZERO, POSSIBLE), max_size=3).map(
    tuple
)


def intervals(value: float) -> st.SearchStrategy[Interval]:
    most = sys.float_info.max
    return st.builds(Interval, st.floats(-most, value), st.floats(value, most))


@st.composite
def measurements(draw: st.DrawFn) -> Measurement:
    figures = {name: draw(POSSIBLE) for name in FIGURES} if draw(st.booleans()) else {}
    return Measurement(
        node_id=draw(TEXT),
        workload=draw(WORKLOADS),
        kernel=draw(KERNELS),
        outcome=draw(st.sampled_from(get_args(Outcome))),
        cap=draw(TEXT),
        cap_index=draw(MAYBE_COUNT),
        power_limit_w=draw(st.none() | POSSIBLE),
        error=draw(st.none() | TEXT),
        time_ms_ci95=draw(st.none() | intervals(figures.get("time_ms", 0.0))),
        trials=draw(TRIALS),
        correctness=draw(CORRECTNESS),
        begin=draw(CONDITIONS),
        cap_binding=draw(st.none() | st.booleans()),
        validity=tuple(draw(st.lists(TEXT, max_size=3))),
        **figures,
    )


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(measurements())
def test_a_measurement_survives_json(measurement: Measurement) -> None:
    text = json.dumps(to_json(measurement), allow_nan=False)
    assert from_json(Measurement, json.loads(text)) == measurement


def test_a_run_survives_json(run_info: Make) -> None:
    run = run_info(git_revision="abc")
    assert from_json(RunInfo, json.loads(json.dumps(to_json(run)))) == run


def test_numbers_without_a_fraction_are_read_as_floats(measured: Make) -> None:
    record = from_json(Measurement, {**to_json(measured()), "time_ms": 2})
    assert type(record.time_ms) is float


def test_fields_of_later_releases_are_left_out(measured: Make) -> None:
    assert from_json(Measurement, {**to_json(measured()), "later": 1}) == measured()


def test_fields_with_a_default_may_be_missing(failed: Make) -> None:
    document = to_json(failed())
    for name in ("validity", "trials", "wall_s"):
        del document[name]
    assert from_json(Measurement, document) == failed()


@pytest.mark.parametrize("name", ["node_id", "workload", "kernel", "outcome", "cap"])
def test_a_missing_field_is_named(measured: Make, name: str) -> None:
    document = to_json(measured())
    del document[name]
    with pytest.raises(ReportError, match=f"Measurement lacks the field '{name}'"):
        from_json(Measurement, document)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("node_id", 3),
        ("outcome", "excellent"),
        ("outcome", []),
        ("cap_index", 1.5),
        ("cap_index", True),
        ("time_ms", "fast"),
        ("time_ms", True),
        ("time_ms", float("nan")),
        ("time_ms", float("-inf")),
        ("time_ms", 10**400),
        ("energy_mj", -(10**400)),
        ("time_ms", -1),
        ("energy_mj", -0.5),
        ("power_w", -300),
        ("enforced_power_limit_w", -1),
        ("time_ms_ci95", [1, 2]),
        ("trials", {"0": 1}),
        ("trials", [None]),
        ("validity", "thermal"),
        ("validity", [1]),
        ("cap_binding", 1),
        ("workload", None),
        ("workload", "case1"),
    ],
    ids=repr,
)
def test_a_value_that_does_not_belong_is_named(measured: Make, name: str, value: object) -> None:
    with pytest.raises(ReportError, match=rf"Measurement\.{name}.* does not belong there"):
        from_json(Measurement, {**to_json(measured()), name: value})


@pytest.mark.parametrize("name", ["seconds", "joules", "launches", "busy_seconds"])
def test_a_trial_takes_no_negative_amount_of_anything(measured: Make, name: str) -> None:
    trial = {"seconds": 0.1, "joules": 30.0, "launches": 200.0, "busy_seconds": 0.1}
    document = to_json(measured())
    assert from_json(Measurement, {**document, "trials": [trial]}).trials
    with pytest.raises(ReportError, match=rf"trials\[\]\.{name} holds -1"):
        from_json(Measurement, {**document, "trials": [{**trial, name: -1}]})


@pytest.mark.parametrize("name", ["seconds", "launches"])
def test_a_trial_is_of_some_length(measured: Make, name: str) -> None:
    trial = {"seconds": 0.1, "joules": 30.0, "launches": 200.0, "busy_seconds": 0.1, name: 0}
    with pytest.raises(ReportError, match=rf"trials\[\]\.{name} holds 0"):
        from_json(Measurement, {**to_json(measured()), "trials": [trial]})


@pytest.mark.parametrize("name", ["time_ms", "energy_mj", "edp_mj_ms"])
@pytest.mark.parametrize(("low", "high"), [(1e200, 0.0), (1e308, -1e308), (0.0, 1e-9)])
def test_an_interval_that_does_not_hold_its_mean_is_refused(
    measured: Make, name: str, low: float, high: float
) -> None:
    ends = {"low": low, "high": high}
    with pytest.raises(ReportError, match=f"{name}_ci95 goes from .* does not hold the {name}"):
        from_json(Measurement, {**to_json(measured()), f"{name}_ci95": ends})


@pytest.mark.parametrize("missing", FIGURES)
def test_figures_come_together(measured: Make, missing: str) -> None:
    with pytest.raises(ReportError, match=f"lacks '{missing}'"):
        from_json(Measurement, {**to_json(measured()), missing: None})


def test_a_deeply_nested_value_is_refused(measured: Make) -> None:
    nested: Any = []
    for _ in range(5 * sys.getrecursionlimit()):
        nested = [nested]
    with pytest.raises(ReportError, match="does not belong there"):
        from_json(Measurement, {**to_json(measured()), "error": nested})


def test_a_long_value_is_cut_short_in_the_message(measured: Make) -> None:
    with pytest.raises(ReportError) as raised:
        from_json(Measurement, {**to_json(measured()), "outcome": "x" * 10_000})
    assert len(str(raised.value)) < 200


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)


@given(JSON)
def test_any_json_is_a_record_or_a_report_error(document: Any) -> None:
    for kind in (Measurement, RunInfo):
        with contextlib.suppress(ReportError):
            from_json(kind, document)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from([field.name for field in fields(Measurement)]), JSON)
def test_any_value_of_a_field_is_taken_or_a_report_error(
    measured: Make, name: str, value: Any
) -> None:
    with contextlib.suppress(ReportError):
        record = from_json(Measurement, {**to_json(measured()), name: value})
        # What was taken can be written again: no NaN has slipped in.
        json.dumps(to_json(record), allow_nan=False)


def test_identity_leaves_out_where_the_item_lies(measured: Make) -> None:
    assert measured(node_id="here").identity == measured(node_id="there").identity


@pytest.mark.parametrize(
    "change", [{"workload": "case2"}, {"rank": 2}, {"cap": 4}, {"cache": "cold"}], ids=repr
)
def test_identity_tells_what_must_not_be_compared(measured: Make, change: dict[str, Any]) -> None:
    assert measured(**change).identity != measured().identity


def test_a_failed_kernel_is_not_measured(measured: Make, failed: Make) -> None:
    assert measured().measured
    assert not failed().measured
