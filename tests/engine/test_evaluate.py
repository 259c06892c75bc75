"""Candidates are timed, the power of promising ones is measured, and kept ones are confirmed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from tuning_fakes import SLOWDOWN, FakeDevice, sustained_at, time_ms, word_kernel

from pytest_gpuenergy.engine import (
    Evaluation,
    Rig,
    arenas_for,
    confirm,
    quick_job,
)
from pytest_gpuenergy.record import Metric
from pytest_gpuenergy.support import DeviceError, KernelFault
from pytest_gpuenergy.workloads import Conv2d

WORKLOAD = Conv2d.of("tiny", 1, 4, 4, 1, 1, 1, 1, 1, 0)
FAULT = KernelFault("compile", "It cannot be lowered.")

Found = list[tuple[int, Evaluation]]
Evaluate = Callable[..., Found]


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> Iterator[Evaluate]:
    """found("x xx", objective, power_w=..., known=..., stop_after=...)"""
    with arenas_for(WORKLOAD, seed=0) as arenas:

        def go(
            words: str,
            objective: Metric = Metric.TIME,
            *,
            power_w: Callable[[str], float | None] = lambda _: 300.0,
            known: Sequence[Evaluation] = (),
            stop_after: int = 99,
        ) -> Found:
            batch = [
                FAULT if word == "bad" else quick_job(word_kernel(word), WORKLOAD)
                for word in words.split()
            ]
            power = sustained_at(time_ms, power_w)
            monkeypatch.setattr("pytest_gpuenergy.engine.candidates.measure_sustained", power)
            rig = Rig(FakeDevice(time_ms), arenas, objective)
            seen: Found = []
            for pair in rig.evaluate(batch, known, lambda: len(seen) >= stop_after):
                seen.append(pair)
            return seen

        yield go


def test_each_candidate_is_timed_in_its_order(found: Evaluate) -> None:
    assert [(place, one.time_ms) for place, one in found("xxx x xx")] == [
        (0, pytest.approx(3.0)),
        (1, pytest.approx(1.0)),
        (2, pytest.approx(2.0)),
    ]


def test_a_candidate_that_fails_has_its_reason(found: Evaluate) -> None:
    evaluations = [one for _, one in found("x hang bad")]
    assert [one.outcome for one in evaluations] == ["timed", "timeout", "compile"]
    assert [one.message for one in evaluations] == [None, "It hangs.", "It cannot be lowered."]
    assert [one.good for one in evaluations] == [True, False, False]


def test_a_lost_gpu_is_not_taken_for_a_bad_kernel(found: Evaluate) -> None:
    with pytest.raises(DeviceError, match=r"The GPU is lost\."):
        found("x gone")


def test_the_promising_are_weighed_after_all_are_timed(found: Evaluate) -> None:
    *timed, (place, weighed) = found("xxxx xxx x xx", Metric.EDP, power_w=lambda _: 250.0)
    assert [place for place, _ in timed] == [0, 1, 2, 3]
    assert all(one.power_w is None for _, one in timed)
    assert (place, weighed.power_w) == (2, 250.0)
    assert weighed.time_ms == pytest.approx(1.0)
    assert weighed.sustained_ms == pytest.approx(SLOWDOWN)
    assert weighed.energy_mj == pytest.approx(SLOWDOWN * 250.0)


def test_what_cannot_become_the_best_is_not_weighed(found: Evaluate) -> None:
    known = [Evaluation(outcome="timed", time_ms=0.5, power_w=100.0)]
    assert len(found("x", Metric.ENERGY, known=known)) == 1


def test_a_kernel_that_fails_under_load_has_failed(found: Evaluate) -> None:
    def fail(_: str) -> float:
        raise KernelFault("runtime", "It crashed.")

    _, (_, weighed) = found("x", Metric.EDP, power_w=fail)
    assert (weighed.outcome, weighed.message, weighed.time_ms) == ("runtime", "It crashed.", None)


def test_a_card_that_tells_no_energy_has_times(found: Evaluate) -> None:
    _, (_, weighed) = found("x", Metric.EDP, power_w=lambda _: None)
    assert (weighed.good, weighed.power_w) == (True, None)


@pytest.mark.parametrize(("stop_after", "count"), [(0, 0), (1, 1), (2, 2), (3, 2)])
def test_what_is_left_when_it_is_stopped_is_left_out(
    found: Evaluate, stop_after: int, count: int
) -> None:
    assert len(found("x xx", stop_after=stop_after)) == count


@dataclass
class CountingHarness:
    """Gives every kernel the same outcome, and counts the calls."""

    outcome: str = "correct"
    verified: int = 0
    measured: int = 0

    def measure_kernel(self, *_: object) -> Any:
        self.measured += 1
        self.verified += 1
        return self

    @property
    def error(self) -> str:
        return "1 of 100 elements is wrong."


def test_a_kernel_that_is_kept_is_verified_once() -> None:
    harness: Any = CountingHarness()
    confirm(FakeDevice(time_ms), harness, word_kernel("x"), WORKLOAD)
    assert (harness.verified, harness.measured) == (1, 1)


def test_a_wrong_kernel_is_not_confirmed() -> None:
    harness: Any = CountingHarness("correctness")
    with pytest.raises(KernelFault, match="1 of 100 elements") as fault:
        confirm(FakeDevice(time_ms), harness, word_kernel("x"), WORKLOAD)
    assert fault.value.outcome == "correctness"
