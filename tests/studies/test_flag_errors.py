"""What flags add to figures, by repeats and by references."""

from __future__ import annotations

import math

import numpy as np
import pytest
from flag_errors import Deviation, excess, from_references, from_repeats
from gate_simulation import Session, drawn_measurement
from msgspec.structs import replace

from pytest_gpuenergy.record import Metric

BASE = replace(
    drawn_measurement(np.random.default_rng(1))("k01", Session(0.0, 0.0), 1.0), time_ms=1.0
)


def test_a_flagged_figure_is_compared_with_unflagged_ones_of_other_runs():
    flagged = replace(BASE, time_ms=1.02, validity=("clock_step",))
    others = [replace(BASE, time_ms=time_ms) for time_ms in (0.99, 1.01)]
    doubtful = replace(BASE, time_ms=2.0, validity=("drift",))
    runs = [[("GPU-1", one)] for one in (flagged, *others, doubtful)]
    found = [*from_repeats([*runs, [("GPU-2", BASE)]])]
    (one,) = [d for d in found if d.flags == ("clock_step",) and d.metric is Metric.TIME]
    assert one.value == pytest.approx(math.log(1.02) - math.log(0.99 * 1.01) / 2)


def test_an_item_is_compared_with_its_kernel_around_it():
    ends = {metric: {"low": 0.98, "high": 1.02} for metric in ("time", "energy", "edp")}
    item = {"protocol": "gpuenergy", "time_ms": 1.0, "energy_mj": 1.0, "intervals": ends}
    kernel = {
        "reference": {"time_ms": 1.0, "energy_mj": 1.01},
        "attempts": [{**item, "validity": ["not_steady"]}, {**item, "protocol": "classic"}],
        "repeats": [],
    }
    found = {one.metric: one for one in from_references({"kernels": [kernel]})}
    assert found[Metric.ENERGY].value == pytest.approx(-math.log(1.01))
    assert found[Metric.ENERGY].variance == pytest.approx((0.02 / 1.96) ** 2, rel=1e-3)
    assert found[Metric.EDP].flags == ("not_steady",)


def test_what_a_flag_adds_is_bounded():
    rng = np.random.default_rng(2)
    values = rng.normal(0, math.hypot(0.003, 0.01), 200)
    found = [Deviation((), Metric.EDP, float(value), 0.003**2) for value in values]
    assert excess(found, 0.05) == pytest.approx(0.0105, abs=0.001)
    assert excess([one._replace(value=one.value / 10) for one in found], 0.05) == 0.0
