"""The SM clock by second, on an emulated card."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace

import clock_steps
import kernels
import pytest
from clock_steps import Second

from pytest_gpuenergy.devices import Repeater

Repeat = Callable[..., AbstractContextManager[Repeater]]
SECOND = Second(1.0, 15.984, 1967.5, 1980, 400.0, 50)


def test_a_step_of_the_clock_is_in_its_second(device, repeat):
    with repeat(power_w=650.0) as repeater:
        repeater.start()
        device.clock.sleep_s(60.0)
        repeater.stop()
        device.inject("clock_states", {"after_s": 5.0})
        found = clock_steps.watch(device, repeater, 8)
    clocks = [one.clock_mhz for one in found.seconds]
    assert len(clocks) == 8
    assert None not in clocks
    before, after = found.states
    assert clocks[0] == pytest.approx(before.clock_mhz, rel=1e-5)
    assert clocks[-1] == pytest.approx(after.clock_mhz, rel=1e-5)
    assert before.clock_mhz / after.clock_mhz == pytest.approx(1 / 0.998, abs=1e-4)
    assert {one.nvml_clock_mhz for one in found.seconds} == {1980}
    assert found.seconds[0].power_w > found.seconds[-1].power_w > 600
    assert found.seconds[0].time_us == pytest.approx(19.4, rel=0.01)


def test_the_table_has_a_line_for_each_second():
    unknown = replace(SECOND, end_s=2.0, clock_mhz=None)
    lines = clock_steps.table([SECOND, unknown]).splitlines()
    assert lines[2] == "| 1.0 | 15.9840 | 1967.50 | 1980 | 400.0 | 50 |"
    assert lines[3] == "| 2.0 | 15.9840 |  | 1980 | 400.0 | 50 |"


def test_the_file_has_seconds_and_states(tmp_path, repeat, monkeypatch, capsys):
    monkeypatch.setattr(kernels, "named", lambda *_: kernels.lcg(emulated=True))
    monkeypatch.setattr(kernels, "loaded", lambda *_: repeat())
    path = tmp_path / "steps.json"
    assert (
        clock_steps.main(["--json", str(path), "--gpu-device", "emulated", "--seconds", "2"]) == 0
    )
    content = json.loads(path.read_text())
    assert content["about"]["emulated"] is True
    assert len(content["seconds"]) == 2
    (state,) = content["states"]
    assert state["share"] == 1.0
    assert f"100% at {state['name']}" in capsys.readouterr().out
