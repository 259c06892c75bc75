"""The conditions of the card during the trials, in the record of an item."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest

from pytest_gpuenergy.devices import Repeater
from pytest_gpuenergy.emulator import EmulatedDevice
from pytest_gpuenergy.engine import Harness, Subject
from pytest_gpuenergy.record import WorkloadInfo

Repeat = Callable[..., AbstractContextManager[Repeater]]


def test_a_record_has_the_mean_temperature_and_clock_of_the_trials(
    device: EmulatedDevice, repeat: Repeat
) -> None:
    found = Harness(device).measure_callable(
        repeat, WorkloadInfo("w", {}, 10**8, 10**6), Subject("id", "k01"), "callable"
    )
    assert found.begin is not None
    assert found.begin.temperature_c is not None
    assert found.temperature_c == pytest.approx(found.begin.temperature_c, abs=3)
    assert found.effective_sm_clock_mhz == pytest.approx(1980, rel=0.01)
