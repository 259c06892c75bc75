"""The card's other readings, and what they say of a measurement."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from pytest_gpuenergy.devices import GuardedNvml, Repeater
from pytest_gpuenergy.energy import (
    INVALIDATING_REASONS,
    MAX_DRIFT_K,
    SW_POWER_CAP,
    condition_flags,
    power_by_samples_w,
    read_conditions,
)
from pytest_gpuenergy.record import Conditions
from pytest_gpuenergy.support import DeviceError

Repeat = Callable[..., AbstractContextManager[Repeater]]
QUIET = Conditions(44, 1980, 3201, 0, 700_000)


def raised(begin: Conditions, end: Conditions) -> set[str]:
    return {name for name, flag in condition_flags(begin, end).items() if flag}


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"event_reasons": SW_POWER_CAP},
        {"temperature_c": 44 + MAX_DRIFT_K},
        {"temperature_c": None},
    ],
    ids=["nothing", "the power cap", "a small drift", "no temperature"],
)
def test_what_raises_no_flag(changes):
    changed = replace(QUIET, **changes)
    assert raised(QUIET, changed) == raised(changed, QUIET) == set()


@pytest.mark.parametrize(("name", "bit"), INVALIDATING_REASONS.items())
def test_a_reason_to_slow_down_is_a_flag_at_either_end(name, bit):
    slowed = replace(QUIET, event_reasons=bit)
    assert raised(slowed, QUIET) == raised(QUIET, slowed) == {name}


@pytest.mark.parametrize("change", [MAX_DRIFT_K + 1, -MAX_DRIFT_K - 1])
def test_a_large_change_of_temperature_is_a_flag(change):
    assert raised(QUIET, replace(QUIET, temperature_c=44 + change)) == {"temperature_drift"}


def test_conditions_are_those_of_the_card(device):
    conditions = read_conditions(device)
    assert (conditions.memory_clock_mhz, conditions.power_limit_mw) == (3201, 700_000)
    assert conditions.temperature_c is not None
    assert 20 < conditions.temperature_c < 50


@pytest.mark.parametrize("error", ["not_supported", "no_permission"])
def test_what_a_card_does_not_tell_is_none(device, error):
    device.inject("temperature", error)
    assert read_conditions(device) == replace(read_conditions(device), temperature_c=None)


def test_a_card_that_does_not_answer_is_a_device_error(device):
    device.inject("temperature", "gpu_is_lost")
    with pytest.raises(DeviceError, match=r"H200 fails in nvmlDeviceGetTemperature \(GPU"):
        read_conditions(device)


class FunctionNotFoundError(RuntimeError):
    """Raise the error of NVML's bindings for a function that the driver lacks."""


@pytest.mark.parametrize("known", [False, True])
def test_reasons_by_their_older_name(known):
    def unknown_to_the_driver(_: Any) -> int:
        raise FunctionNotFoundError

    newer = {"nvmlDeviceGetCurrentClocksEventReasons": unknown_to_the_driver} if known else {}
    nvml = SimpleNamespace(
        **newer,
        NVMLError=RuntimeError,
        NVMLError_NotSupported=KeyError,
        NVMLError_NoPermission=KeyError,
        NVMLError_FunctionNotFound=FunctionNotFoundError,
        NVML_TEMPERATURE_GPU=0,
        NVML_CLOCK_SM=1,
        NVML_CLOCK_MEM=2,
        nvmlDeviceGetTemperature=lambda *_: 40,
        nvmlDeviceGetClockInfo=lambda *_: 1000,
        nvmlDeviceGetCurrentClocksThrottleReasons=lambda _: 0x40,
        nvmlDeviceGetPowerManagementLimit=lambda _: 300_000,
    )
    old = SimpleNamespace(name="old", nvml=GuardedNvml(nvml), handle=0)
    assert read_conditions(old).event_reasons == 0x40  # type: ignore[arg-type]


def test_samples_cover_only_the_end_of_the_window(device, repeat):
    idle_w = power_by_samples_w(device, 1.0)
    with repeat(power_w=400.0) as repeater:
        repeater.start()
        device.clock.sleep_s(1.0)
        busy_w, both_w = power_by_samples_w(device, 0.9), power_by_samples_w(device, 2.0)
        repeater.stop()
    assert idle_w == pytest.approx(98, rel=0.02)
    assert busy_w == pytest.approx(400, rel=0.02)
    assert both_w == pytest.approx((400 + 98) / 2, rel=0.05)


def test_a_card_without_samples_has_no_power_by_samples(device):
    device.inject("samples", "not_supported")
    assert power_by_samples_w(device, 1.0) is None


def test_an_empty_buffer_has_no_power_by_samples(device, monkeypatch):
    monkeypatch.setattr(device.nvml, "nvmlDeviceGetSamples", lambda *_: (1, []))
    assert power_by_samples_w(device, 1.0) is None
