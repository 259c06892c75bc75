"""The SM clock by second, of notes that are known."""

from __future__ import annotations

from pathlib import Path

import clock_steps
import numpy as np
import pytest

from pytest_gpuenergy.devices.device import Timeline
from pytest_gpuenergy.energy.source import Edge
from pytest_gpuenergy.record.conditions import Conditions

TURN_S, LAUNCHES = 0.008, 500
STATE = Conditions(50, 1980, 3201, 0, 700_000)


def found(clocks_mhz: list[float], sms: list[int] | None = None) -> list[clock_steps.Second]:
    """Of a clock of so much in each second, at 400 W."""
    turns = round(len(clocks_mhz) / TURN_S) + 5
    begins_s = TURN_S * np.arange(turns + 1)
    timeline = Timeline(
        100 + begins_s, LAUNCHES * np.arange(turns + 1.0), 0.999 * begins_s, placements=12
    )
    clock_hz = np.array([*clocks_mhz, clocks_mhz[-1]])[begins_s[:-2].astype(int)] * 1e6
    cycles = np.concatenate(([7], 7 + np.cumsum(clock_hz * TURN_S)))
    seconds = np.minimum(begins_s[:-1].astype(int), len(clocks_mhz) - 1)
    sm = np.array(sms or [3] * len(clocks_mhz))[seconds]
    notes = np.stack([1e18 + 1e9 * begins_s[:-1], cycles, sm], axis=1).astype(np.int64)
    times_s = [100.0 + number for number in range(len(clocks_mhz) + 1)]
    edges = [Edge(at_s, at_s, 4e5 * number) for number, at_s in enumerate(times_s)]
    return clock_steps.seconds_of(edges, times_s, [STATE] * len(edges), timeline, notes)


def test_a_step_of_the_clock_is_in_its_second() -> None:
    seconds = found([1967.5, 1967.5, 1970.5])
    clocks = [one.clock_mhz for one in seconds]
    assert clocks == pytest.approx([1967.5, 1967.5, 1970.5], rel=2e-5)
    assert [one.power_w for one in seconds] == pytest.approx([400.0] * 3)
    assert [one.time_us for one in seconds] == pytest.approx([0.999 * 16] * 3)


def test_the_counters_of_two_sms_are_not_compared() -> None:
    first, _ = found([1900.0, 1900.0], sms=[3, 5])
    assert first.clock_mhz is None


def test_the_table_has_a_line_for_each_second() -> None:
    lines = clock_steps.table(found([1967.5, 1970.5], sms=[3, 5])).splitlines()
    assert lines[2] == "| 1.0 | 15.9840 |  | 1980 | 400.0 | 50 |"
    assert lines[3].startswith("| 2.0 | 15.9840 | 1970.5")


def test_the_emulated_gpu_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert clock_steps.main(["--json", str(tmp_path / "steps.json")]) == 2
    assert "use a real one" in capsys.readouterr().err
