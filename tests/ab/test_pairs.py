"""Pairs of kernels of which one is correct only at first."""

from __future__ import annotations

from collections.abc import Container, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_gpuenergy.ab import Exhibit, compare_pairs, export, load_exhibits
from pytest_gpuenergy.emulator import EmulatedDevice, VirtualRepeater
from pytest_gpuenergy.energy import EnergyMeter, Reading
from pytest_gpuenergy.engine import Harness, Station, Subject, run_info
from pytest_gpuenergy.gate import Comparison, GateSettings
from pytest_gpuenergy.kernels import Job, Kernel, Launch
from pytest_gpuenergy.workloads import Contract, Tensor

pytestmark = pytest.mark.slow

SOURCE = """
extern "C" __global__ void copy(const float* x, float* y) {
  y[threadIdx.x] = x[threadIdx.x];
}
"""
KERNEL = Kernel(SOURCE, (Launch("copy", (1, 1, 1), (64, 1, 1), ("x", "y")),))
COPY = Contract(
    "copy",
    (Tensor("x", (64,), "float32", "input"), Tensor("y", (64,), "float32", "output")),
    lambda inputs: {"y": inputs["x"]},
)


def exhibit(device: EmulatedDevice, folder: Path, kernel: Kernel, name: str = "test") -> Exhibit:
    draft, fault = Harness(device).verify_kernel(kernel, COPY, Subject(name, "copy"))
    assert fault is None
    export(folder, draft, Job.of(kernel, COPY), COPY)
    (found,) = load_exhibits(folder)
    return found


def compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong: tuple[int, ...]
) -> tuple[Comparison, int]:
    """The base's measurement is number 1, 4, 5, ..., the head's 2, 3, 6, ...

    Measurements in ``wrong`` write nothing when launched again. Returns the number made.
    """
    number = 0

    def relaunch(_: VirtualRepeater, *, once: bool) -> Iterator[int]:
        nonlocal number
        number += 1
        if number in wrong:
            assert not once
            yield 3000

    monkeypatch.setattr(VirtualRepeater, "relaunch", relaunch)
    with EmulatedDevice() as device, Station(device) as station:
        base = exhibit(device, tmp_path / "base", KERNEL)
        head = exhibit(device, tmp_path / "head", replace(KERNEL, source=SOURCE + "// later"))
        settings = GateSettings.parse(["edp:5%"], strict=False)
        comparison = compare_pairs(
            station,
            (run_info(device, "base", {}, git_revision="1"), [base]),
            (run_info(device, "head", {}, git_revision="2"), [head]),
            settings,
            rounds=2,
            timeout_s=60.0,
            tell=lambda _: None,
        )
    return comparison, number


def test_both_are_checked_after_each_measurement(tmp_path, monkeypatch):
    comparison, checks = compared(tmp_path, monkeypatch, ())
    assert checks == 4
    assert len(comparison.judgements) == 1


@pytest.mark.parametrize("number", [2, 3])
def test_a_new_kernel_that_is_right_only_at_first_fails(tmp_path, monkeypatch, number):
    comparison, _ = compared(tmp_path, monkeypatch, (number,))
    assert not comparison.passed
    (failed,) = comparison.failed
    assert failed.why.startswith("Correct at first, wrong after 3000 launches: 64 of 64 ")


@pytest.mark.parametrize("number", [1, 4])
def test_with_a_baseline_that_is_right_only_at_first_nothing_is_compared(
    tmp_path, monkeypatch, number
):
    comparison, _ = compared(tmp_path, monkeypatch, (number,))
    assert not comparison.judgements
    (unknown,) = comparison.missing_in_base
    assert unknown.why.startswith("wrong in the baseline: Correct at first, wrong after 3000 ")


def disturb(monkeypatch: pytest.MonkeyPatch, numbers: Container[int]) -> list[int]:
    """Give a step of the clock to the measurements ``numbers``; returns those that are made."""
    made: list[int] = []
    measure = EnergyMeter.measure

    def disturbed(*args: Any, **kwargs: Any) -> Reading:
        made.append(len(made) + 1)
        reading = measure(*args, **kwargs)
        return replace(reading, flags=("clock_step",) if made[-1] in numbers else ())

    monkeypatch.setattr(EnergyMeter, "measure", disturbed)
    return made


def test_a_round_in_which_the_clock_steps_is_measured_again(tmp_path, monkeypatch):
    made = disturb(monkeypatch, {3})
    comparison, _ = compared(tmp_path, monkeypatch, ())
    (judgement,) = comparison.judgements
    assert (len(made), judgement.reasons) == (1 + 6, ())  # the first heats up the card


def test_rounds_that_are_all_disturbed_end_and_say_so(tmp_path, monkeypatch):
    made = disturb(monkeypatch, range(100))
    comparison, _ = compared(tmp_path, monkeypatch, ())
    (judgement,) = comparison.judgements
    assert (len(made), judgement.reasons) == (1 + 12, ("flagged: clock_step",))


def test_what_was_judged_before_an_interruption_is_returned(tmp_path, monkeypatch):
    measured = iter(range(1, 100))
    measure = EnergyMeter.measure

    def interrupted(*args: Any, **kwargs: Any) -> Reading:
        if next(measured) == 8:  # the second turn of the second pair
            raise KeyboardInterrupt
        return measure(*args, **kwargs)

    monkeypatch.setattr(EnergyMeter, "measure", interrupted)
    later = replace(KERNEL, source=SOURCE + "// later")
    with EmulatedDevice() as device, Station(device) as station:
        sides = [
            [exhibit(device, tmp_path / f"{side}{name}", kernel, name) for name in "abc"]
            for side, kernel in (("base", KERNEL), ("head", later))
        ]
        comparison = compare_pairs(
            station,
            (run_info(device, "base", {}, git_revision="1"), sides[0]),
            (run_info(device, "head", {}, git_revision="2"), sides[1]),
            GateSettings.parse(["edp:5%"], strict=False),
            rounds=2,
            timeout_s=60.0,
            tell=lambda _: None,
        )
    assert comparison.interrupted
    assert [judgement.node_id for judgement in comparison.judgements] == [""]
    assert [one.measurement.node_id for one in comparison.failed] == ["b", "c"]
