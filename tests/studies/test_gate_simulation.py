"""False alarms of the gate and what it finds, by simulation."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from gate_simulation import (
    drawn_measurement,
    emulated_measurement,
    rates,
    simulate,
)

from pytest_gpuenergy.emulator import EmulatedDevice

pytestmark = pytest.mark.slow


@pytest.fixture
def device() -> Iterator[EmulatedDevice]:
    with EmulatedDevice() as found:
        assert isinstance(found, EmulatedDevice)
        yield found


@pytest.mark.parametrize("heavy_tails", [pytest.param(False, marks=pytest.mark.thorough), True])
def test_alarms_are_rare_and_regressions_found(heavy_tails):
    rng = np.random.default_rng(5)
    found = rates(
        list(
            simulate(
                drawn_measurement(rng),
                rng,
                runs=400,
                kernels=5,
                limit=0.01,
                edp=1.05,
                heavy_tails=heavy_tails,
            )
        )
    )
    assert found["alarm"] < 0.01
    assert found["WORSE"] >= 0.95


def test_a_strict_gate_at_five_percent_finds_five_percent():
    rng = np.random.default_rng(6)
    found = rates(
        list(simulate(drawn_measurement(rng), rng, runs=400, kernels=5, limit=0.05, edp=1.05))
    )
    assert found["strict"] < 0.01
    assert found["WORSE"] + found["AMBIGUOUS"] >= 0.93  # 0.95, and two standard deviations less


def test_measured_on_the_emulated_gpu(device):
    rng = np.random.default_rng(7)
    measure = emulated_measurement(device)
    found = rates(list(simulate(measure, rng, runs=12, kernels=2, limit=0.01, edp=1.05)))
    assert found["alarm"] == 0
    assert found["WORSE"] >= 0.9  # one run of so few may miss it
