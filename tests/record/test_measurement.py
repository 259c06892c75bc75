"""The record of one item."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from record_strategies import CHECKS, RUNS, measurements

from pytest_gpuenergy.record import AnchorCheck, Measurement, RunInfo, check
from pytest_gpuenergy.support import decode, encode

Make = Callable[..., Any]


@pytest.mark.slow
@settings(suppress_health_check=[HealthCheck.too_slow])
@given(measurements())
def test_a_measurement_survives_json(measurement: Measurement) -> None:
    again = decode(encode(measurement), Measurement)
    check(again)
    assert again == measurement


@given(RUNS)
def test_a_run_survives_json(run: RunInfo) -> None:
    assert decode(encode(run), RunInfo) == run


@given(CHECKS)
def test_an_anchor_check_survives_json(anchor: AnchorCheck) -> None:
    assert decode(encode(anchor), AnchorCheck) == anchor


def test_a_record_cannot_be_changed(measured: Make) -> None:
    with pytest.raises(AttributeError):
        measured().cap = "200W"


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


def test_a_flag_is_added_once(measured: Make) -> None:
    assert measured().flagged("drift", "host_gaps").flagged("drift").validity == (
        "drift",
        "host_gaps",
    )
