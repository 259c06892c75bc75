"""What reading the energy counter does to it."""

from __future__ import annotations

import re

import counter_reads
import numpy as np
import pytest


def test_both_ways_to_read_agree_on_the_power(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--gpu-device", "emulated", "--kernels", "axpy", "--steps", "30"]
    assert counter_reads.main(words) == 0
    shown = capsys.readouterr().out
    assert "(emulated)" in shown
    powers = [float(word) for word in re.findall(r"\| 29 \| ([\d.]+) \|", shown)]
    assert powers[0] == pytest.approx(powers[1], rel=0.005)


def test_steps_that_come_early_and_late_are_told_from_power_that_changes() -> None:
    rng = np.random.default_rng(2)
    late = rng.normal(0, 1, 2001)
    count, mean, deviation, together = counter_reads.described(400 + np.diff(late))
    assert (count, float(mean)) == ("2000", pytest.approx(400, abs=0.1))
    assert float(deviation.rstrip("%")) == pytest.approx(100 * 2**0.5 / 400, rel=0.05)
    assert float(together) == pytest.approx(-0.5, abs=0.05)
    *_, drifting, _ = counter_reads.described(np.linspace(400, 440, 50))
    assert drifting == "0.000%"


def test_a_kernel_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert counter_reads.main(["--gpu-device", "emulated", "--kernels", "case9-fastest"]) == 2
    assert capsys.readouterr().err.startswith("error: ")
