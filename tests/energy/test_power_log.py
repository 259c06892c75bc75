"""The card's power over time, as `gpuenergy replay --power-log` writes it."""

from __future__ import annotations

import csv
import threading
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_gpuenergy.emulator import Demand, EmulatedDevice
from pytest_gpuenergy.energy import CardSamples, PowerLog, power_log as card_samples, read_regularly
from pytest_gpuenergy.support import DeviceError


@pytest.fixture
def device() -> Iterator[EmulatedDevice]:
    with EmulatedDevice() as found:
        yield found


def rows(path: Path) -> list[tuple[float, float]]:
    with path.open() as file:
        return [(float(one["timestamp"]), float(one["power_w"])) for one in csv.DictReader(file)]


def run(device: EmulatedDevice, log: PowerLog, seconds: int) -> None:
    """Run a load that draws 400 W."""
    with device.play(Demand(1e-4, 400.0)) as repeater:
        repeater.start()
        for _ in range(seconds):
            device.clock.sleep_s(1.0)
            log.collect()
        repeater.stop()


def test_it_has_all_samples_of_the_card(device, tmp_path):
    with PowerLog(device, tmp_path / "power.csv") as log:
        run(device, log, 5)
    found = rows(tmp_path / "power.csv")
    assert len(found) == pytest.approx(250, abs=3)
    steps = [later[0] - one[0] for one, later in pairwise(found)]
    assert steps == pytest.approx([0.02] * len(steps), abs=1e-5)
    assert found[-5][1] == pytest.approx(400.0, rel=0.1)


def test_a_row_may_be_the_mean_over_an_interval(device, tmp_path):
    with PowerLog(device, tmp_path / "power.csv", 0.1) as log:
        run(device, log, 5)
    found = rows(tmp_path / "power.csv")
    assert len(found) == pytest.approx(50, abs=1)
    assert found[5][0] - found[4][0] == pytest.approx(0.1, abs=1e-5)


def test_rows_are_on_disk_as_they_come(device, tmp_path):
    with PowerLog(device, tmp_path / "power.csv") as log:
        run(device, log, 1)
        assert len(rows(tmp_path / "power.csv")) > 40


def test_a_card_without_samples_gets_one_sentence(device, tmp_path):
    device.inject("samples", "not_supported")
    with pytest.raises(DeviceError, match="keeps no samples of its power: leave out --power-log"):
        PowerLog(device, tmp_path / "power.csv").__enter__()
    assert not (tmp_path / "power.csv").exists()


def test_samples_that_fail_later_do_not_end_what_is_measured(device, tmp_path):
    with PowerLog(device, tmp_path / "power.csv") as log:
        run(device, log, 1)
        device.inject("samples", "unknown")
    assert len(rows(tmp_path / "power.csv")) > 40
    assert log.problem is not None
    assert "cannot be read" in log.problem


def test_each_sample_is_read_once():
    with EmulatedDevice() as device:
        device.clock.sleep_s(5.0)
        samples = CardSamples(device)
        assert len(samples.new()) == 119
        assert samples.new() == []
        device.clock.sleep_s(0.1)
        assert len(samples.new()) == 5


def test_a_real_card_is_read_on_and_on_until_the_end(monkeypatch):
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
