"""Reading the samples that a card takes by itself."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_gpuenergy.emulator import EmulatedDevice
from pytest_gpuenergy.energy import CardSamples, power_log as card_samples, read_regularly


def test_each_sample_is_read_once() -> None:
    with EmulatedDevice() as device:
        device.clock.sleep_s(5.0)
        samples = CardSamples(device)
        assert len(samples.new()) == 119
        assert samples.new() == []
        device.clock.sleep_s(0.1)
        assert len(samples.new()) == 5


def test_a_real_card_is_read_on_and_on_until_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(card_samples, "_EVERY_S", 1e-3)
    card: Any = SimpleNamespace(emulated=False)
    times, again = [], threading.Event()

    def read() -> None:
        times.append(0)
        if len(times) > 2:
            again.set()

    with read_regularly(card, read):
        assert again.wait(60.0)
    assert all(thread.name != "power samples" for thread in threading.enumerate())
