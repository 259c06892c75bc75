"""Energy from power readings, on emulated cards without a counter whose true energy is known."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

import numpy as np
import pytest
from hypothesis import given, strategies as st

from pytest_gpuenergy.devices import Repeater
from pytest_gpuenergy.emulator import EmulatedDevice, HostRunner, find_profile
from pytest_gpuenergy.energy import (
    CounterError,
    EnergyMeter,
    PowerSamples,
    Reading,
    average_power_mw,
    choose_source,
    instant_power_mw,
    probe_sensor,
)
from pytest_gpuenergy.engine import QUICK
from pytest_gpuenergy.support import DeviceError

Repeat = Callable[..., AbstractContextManager[Repeater]]
INSTANT = 186


@pytest.fixture
def open_card(runner: HostRunner) -> Iterator[Callable[..., EmulatedDevice]]:
    """Return a function that opens an emulated card with ``faults``."""
    opened = []

    def make(profile: str, **faults: object) -> EmulatedDevice:
        card = EmulatedDevice(find_profile(profile), runner=runner)
        opened.append(card)
        for what, value in faults.items():
            card.inject(what, value)
        return card

    yield make
    for card in opened:
        card.close()


def measure(card: EmulatedDevice, repeat: Repeat, power_w: float, time_ms: float = 0.05) -> Reading:
    card.clock.sleep_s(2.0)
    with repeat(time_ms, power_w, on=card) as repeater:
        return EnergyMeter(card).measure(repeater)


@pytest.mark.parametrize("profile", ["h200", "a100", "v100", "rtx3090"])
def test_a_card_with_a_counter_is_measured_by_it(open_card, profile):
    assert choose_source(open_card(profile)).name == "counter"


@pytest.mark.parametrize("error", ["not_supported", "no_permission"])
def test_a_counter_that_cannot_be_had_is_replaced_by_the_instant_power(open_card, error):
    assert choose_source(open_card("h200", energy=error)).name == "instant power"


def test_a_card_without_the_instant_power_is_measured_by_the_average(open_card):
    card = open_card("p100", field_missing={"field": INSTANT})
    assert choose_source(card).name == "average power"


def test_a_card_without_any_source_is_refused(open_card):
    card = open_card("p100", fields="not_supported", power="not_supported")
    with pytest.raises(DeviceError, match="neither an energy counter nor a power reading"):
        choose_source(card)


@pytest.mark.parametrize("error", ["gpu_is_lost", "unknown"])
def test_a_counter_that_fails_is_not_replaced(open_card, error):
    assert choose_source(open_card("h200", energy=error)).name == "counter"


# A GeForce averages over a second, which takes the heat-up along; an H200's instant power is the
# mean of the last quarter of an update.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("profile", "faults", "source"),
    [
        ("p100", {}, "instant power"),
        ("h200", {"energy": "not_supported"}, "instant power"),
        (
            "rtx3090",
            {"energy": "not_supported", "field_missing": {"field": INSTANT}},
            "average power",
        ),
    ],
    ids=["p100", "h200", "rtx3090-average"],
)
def test_energy_without_a_counter_is_true_within_a_percent(
    open_card, repeat, profile, faults, source
):
    card = open_card(profile, **faults)
    for power_w in (240.0, 130.0):  # a second kernel uses what the first one's probe found
        reading = measure(card, repeat, power_w)
        assert reading.energy_source == source
        assert reading.energy_mj.value == pytest.approx(0.05 * power_w, rel=0.01)
        assert reading.power_w == pytest.approx(power_w, rel=0.01)
        # Windows of a second show how the card cools after the first kernel.
        assert set(reading.flags) <= ({"interval_wide"} if source == "average power" else set())


@pytest.mark.parametrize(
    ("profile", "read", "period_s", "window_s"),
    [
        ("v100", instant_power_mw, 0.02, 0.01),
        ("h200", instant_power_mw, 0.1, 0.025),
        ("h200", average_power_mw, 0.1, 1.0),
        ("a100", average_power_mw, 0.1, 0.025),
        ("rtx3090", instant_power_mw, 0.1, 0.1),
    ],
)
def test_period_and_window_are_found(open_card, repeat, profile, read, period_s, window_s):
    card = open_card(profile)
    card.clock.sleep_s(2.0)
    source = PowerSamples(card, "power", read)  # type: ignore[arg-type]
    with repeat(0.05, 250.0, on=card) as repeater:
        repeater.start()
        source.probe()
        repeater.stop()
    assert source.period_s == pytest.approx(period_s, rel=0.1)
    # What is shorter than an update cannot be told from one.
    assert abs(source.memory_s - max(window_s, period_s)) <= period_s


def test_a_card_is_probed_once(open_card, repeat):
    card = open_card("p100")
    meter, spent_s = EnergyMeter(card), []
    for _ in range(2):
        with repeat(0.05, 200.0, on=card) as repeater:
            begin_s = card.clock.now_s()
            meter.measure(repeater)
            spent_s.append(card.clock.now_s() - begin_s)
    assert spent_s[0] - spent_s[1] > 1.0


def test_trials_are_no_shorter_than_what_the_sensor_remembers(open_card, repeat):
    card = open_card("rtx3090", energy="not_supported", field_missing={"field": INSTANT})
    trials = measure(card, repeat, 240.0).trials
    assert min(trial.seconds for trial in trials) >= 0.8


def test_a_power_reading_that_never_changes_gives_no_figures(open_card, repeat, monkeypatch):
    card = open_card("p100", fields="not_supported")
    monkeypatch.setattr(card.nvml, "nvmlDeviceGetPowerUsage", lambda _handle: 100_000)
    with pytest.raises(CounterError) as raised:
        measure(card, repeat, 240.0)
    assert raised.value.flag == "power_stale"


def test_a_power_reading_that_freezes_later_gives_no_figures(open_card, repeat, monkeypatch):
    card = open_card("p100", fields="not_supported")
    meter = EnergyMeter(card)
    with repeat(0.05, 240.0, on=card) as repeater:
        meter.measure(repeater)
    monkeypatch.setattr(card.nvml, "nvmlDeviceGetPowerUsage", lambda _handle: 100_000)
    with repeat(0.05, 240.0, on=card) as repeater, pytest.raises(CounterError) as raised:
        meter.measure(repeater)
    assert raised.value.flag == "power_stale"


def test_a_power_reading_that_is_lost_is_a_device_error(open_card, repeat):
    card = open_card("p100", fields={"error": "gpu_is_lost", "after_s": 5.0})
    with pytest.raises(
        DeviceError, match="instant power of Tesla P100-SXM2-16GB can no longer be read"
    ):
        measure(card, repeat, 240.0)


@given(
    st.floats(0.01, 0.1),
    st.floats(0.02, 1.0),
    st.floats(20.0, 120.0),
    st.floats(0.0, 1.0),
    st.floats(1.5, 5.0),
)
def test_a_mean_over_a_window_shows_its_length(period_s, window_s, idle_w, phase, ratio):
    times_s = np.arange(0.0, 2.5, 0.002)
    update_s = (np.floor(times_s / period_s + phase) - phase) * period_s
    share = np.clip(update_s / window_s, 0.0, 1.0)
    # A little ripple, as every load has, so that every update is a change.
    ripple_w = 1e-6 * np.sin(1e4 * update_s)
    power_mw = 1e3 * (idle_w * (1 + (ratio - 1) * share) + ripple_w)
    found = probe_sensor(list(zip(times_s.tolist(), power_mw.tolist(), strict=True)))
    assert found.period_s == pytest.approx(period_s, abs=0.0045)
    assert abs(found.window_s - max(window_s, period_s)) <= 1.5 * period_s + 0.01


def test_without_a_step_the_window_is_taken_to_be_long():
    readings = [(0.01 * k, 1e5 + k % 2) for k in range(250)]
    assert probe_sensor(readings).window_s == 1.0


@pytest.mark.parametrize("profile", ["p100", "v100", "rtx3090"])
def test_the_power_of_a_candidate_is_told_by_every_card(open_card, repeat, profile):
    card = open_card(profile)
    with repeat(0.05, 200.0, on=card) as repeater:
        assert EnergyMeter(card, QUICK).measure(repeater).power_w == pytest.approx(200.0, rel=0.05)
