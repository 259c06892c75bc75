"""Candidates are timed, the power of promising ones is measured, and kept ones are confirmed."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, strategies as st
from jobs import job_of
from msgspec.structs import replace
from tuning_fakes import SLOWDOWN, FakeDevice, sustained_at, time_ms, word_kernel

from pytest_gpuenergy.devices import Timeline
from pytest_gpuenergy.emulator import VirtualRepeater
from pytest_gpuenergy.engine import (
    Evaluation,
    Rig,
    Typical,
    confirm,
    cost_ms,
    measure_sustained,
    measure_time_ms,
    median_time_ms,
    promising,
    quick_job,
    seeded_arenas,
    verify_timed,
)
from pytest_gpuenergy.kernels import Kernel, Launch, RecordedFigures
from pytest_gpuenergy.opening import open_device
from pytest_gpuenergy.record import METRICS, Metric
from pytest_gpuenergy.support import DeviceError, KernelFault
from pytest_gpuenergy.workloads import Contract, Conv2d, Tensor

WORKLOAD = Conv2d.of("tiny", 1, 4, 4, 1, 1, 1, 1, 1, 0)
FAULT = KernelFault("compile", "It cannot be lowered.")

Found = list[tuple[int, Evaluation]]
Evaluate = Callable[..., Found]


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> Iterator[Evaluate]:
    """found("x xx", objective, power_w=..., known=..., stop_after=...)"""
    with seeded_arenas(WORKLOAD, seed=0) as arenas:

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


def test_each_candidate_is_timed_in_its_order(found):
    assert [(place, one.time_ms) for place, one in found("xxx x xx")] == [
        (0, pytest.approx(3.0)),
        (1, pytest.approx(1.0)),
        (2, pytest.approx(2.0)),
    ]


def test_a_candidate_that_fails_has_its_reason(found):
    evaluations = [one for _, one in found("x hang bad")]
    assert [one.outcome for one in evaluations] == ["timed", "timeout", "compile"]
    assert [one.message for one in evaluations] == [None, "It hangs.", "It cannot be lowered."]
    assert [one.good for one in evaluations] == [True, False, False]


def test_a_lost_gpu_is_not_taken_for_a_bad_kernel(found):
    with pytest.raises(DeviceError, match=r"The GPU is lost\."):
        found("x gone")


def test_the_promising_are_weighed_after_all_are_timed(found):
    *timed, (place, weighed) = found("xxxx xxx x xx", Metric.EDP, power_w=lambda _: 250.0)
    assert [place for place, _ in timed] == [0, 1, 2, 3]
    assert all(one.power_w is None for _, one in timed)
    assert (place, weighed.power_w) == (2, 250.0)
    assert weighed.time_ms == pytest.approx(1.0)
    assert weighed.sustained_ms == pytest.approx(SLOWDOWN)
    assert weighed.energy_mj == pytest.approx(SLOWDOWN * 250.0)


def test_what_cannot_become_the_best_is_not_weighed(found):
    known = [Evaluation(outcome="timed", time_ms=0.5, power_w=100.0)]
    assert len(found("x", Metric.ENERGY, known=known)) == 1


def test_a_kernel_that_fails_under_load_has_failed(found):
    def fail(_: str) -> float:
        raise KernelFault("runtime", "It crashed.")

    _, (_, weighed) = found("x", Metric.EDP, power_w=fail)
    assert (weighed.outcome, weighed.message, weighed.time_ms) == ("runtime", "It crashed.", None)


def test_a_card_that_tells_no_energy_has_times(found):
    _, (_, weighed) = found("x", Metric.EDP, power_w=lambda _: None)
    assert (weighed.good, weighed.power_w) == (True, None)


@pytest.mark.parametrize(("stop_after", "count"), [(0, 0), (1, 1), (2, 2), (3, 2)])
def test_what_is_left_when_it_is_stopped_is_left_out(found, stop_after, count):
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


def test_a_kernel_that_is_kept_is_verified_once():
    harness: Any = CountingHarness()
    confirm(FakeDevice(time_ms), harness, word_kernel("x"), WORKLOAD)
    assert (harness.verified, harness.measured) == (1, 1)


def test_a_wrong_kernel_is_not_confirmed():
    harness: Any = CountingHarness("correctness")
    with pytest.raises(KernelFault, match="1 of 100 elements") as fault:
        confirm(FakeDevice(time_ms), harness, word_kernel("x"), WORKLOAD)
    assert fault.value.outcome == "correctness"


TIMES = st.floats(min_value=1e-3, max_value=1e3)
POWERS = st.floats(min_value=50.0, max_value=700.0)
objectives = st.sampled_from(METRICS)


def cost(objective: Metric, trial: Evaluation) -> float:
    assert trial.time_ms is not None
    assert trial.power_w is not None
    return {
        "time": trial.time_ms,
        "energy": trial.power_w * trial.time_ms,
        "edp": trial.power_w * trial.time_ms**2,
    }[objective]


@st.composite
def measured(draw: st.DrawFn) -> Evaluation:
    return Evaluation(outcome="timed", time_ms=draw(TIMES), power_w=draw(POWERS))


@given(objectives, measured(), measured(), POWERS)
def test_it_ranks_as_the_cost_does(objective, one, other, typical_w):
    costs = [cost(objective, trial) for trial in (one, other)]
    times = [cost_ms(objective, trial, Typical(typical_w)) for trial in (one, other)]
    if costs[0] < costs[1] * (1 - 1e-9):
        assert times[0] < times[1]


@given(objectives, TIMES, POWERS)
def test_a_kernel_of_typical_power_counts_by_its_time(objective, time_ms, typical_w):
    trial = Evaluation(outcome="timed", time_ms=time_ms, power_w=typical_w)
    assert cost_ms(objective, trial, Typical(typical_w)) == pytest.approx(time_ms)
    unknown = Evaluation(outcome="timed", time_ms=time_ms)
    assert cost_ms(objective, unknown, Typical(typical_w, 1.3)) == time_ms


@given(objectives)
def test_a_failed_trial_is_the_worst(objective):
    assert cost_ms(objective, Evaluation(outcome="timeout"), Typical(300.0)) == math.inf


@given(st.lists(measured(), max_size=9))
def test_the_typical_power_is_between_the_known_ones(trials):
    typical = Typical.of(
        [*trials, Evaluation(outcome="timeout"), Evaluation(outcome="timed", time_ms=1.0)]
    )
    powers = [trial.power_w for trial in trials if trial.power_w]
    assert typical is None if not powers else min(powers) <= typical.power_w <= max(powers)


def slowed(time_ms: float, slowdown: float, power_w: float = 300.0) -> Evaluation:
    """A candidate that the power limit slows while its power is measured."""
    found = Evaluation(outcome="timed", time_ms=time_ms, power_w=power_w)
    return replace(found, sustained_ms=time_ms * slowdown)


@given(st.sampled_from(["energy", "edp"]), TIMES, st.floats(1, 3))
def test_a_kernel_that_is_slowed_as_usual_counts_as_one_that_was_not_measured(
    objective, time_ms, slowdown
):
    found = slowed(time_ms, slowdown)
    typical = Typical.of([found])
    assert typical == (300.0, pytest.approx(slowdown))
    assert cost_ms(objective, found, typical) == pytest.approx(time_ms)
    more = slowed(time_ms, 1.1 * slowdown)
    assert cost_ms(objective, more, typical) == pytest.approx(1.1 * time_ms)


def test_what_may_be_slowed_less_than_the_best_is_promising():
    known = [slowed(1.0, 1.5), slowed(1.2, 1.0)]
    assert promising("energy", batch(1.1), known) == [0]
    assert promising("energy", batch(1.3), known) == []


def batch(*times_ms: float) -> list[Evaluation]:
    return [Evaluation(outcome="timed", time_ms=time_ms) for time_ms in times_ms]


def test_no_power_is_measured_for_the_objective_time():
    assert promising("time", batch(1.0, 2.0), batch(1.0, 2.0)) == []


def test_the_fastest_quarter_is_promising():
    trials = batch(8.0, 1.0, 3.0, 2.0, 5.0, 4.0, 7.0, 6.0)
    assert promising("edp", trials, trials) == [1, 3]


def test_failed_trials_are_not_promising():
    trials = [Evaluation(outcome="timeout"), *batch(1.0)]
    assert promising("energy", trials, trials) == [1]


def test_what_cannot_become_the_best_is_not_measured():
    known = [
        Evaluation(outcome="timed", time_ms=1.0, power_w=400.0),
        Evaluation(outcome="timed", time_ms=9.0, power_w=100.0),
    ]
    # At the least power known, a quarter of the best's: twice its time costs the same product.
    assert promising("edp", batch(1.9), known)
    assert not promising("edp", batch(2.1), known)


@given(objectives, st.lists(TIMES, min_size=1, max_size=64), st.lists(measured(), max_size=9))
def test_the_fastest_of_a_batch_comes_first(objective, times_ms, known):
    chosen = [times_ms[place] for place in promising(objective, batch(*times_ms), known)]
    assert chosen == sorted(times_ms)[: len(chosen)]
    assert len(chosen) <= math.ceil(len(times_ms) / 4)


KERNEL = Kernel("text", (Launch("k", (1, 1, 1), (1, 1, 1), ("data", "weight", "output")),))
JOB = quick_job(KERNEL, WORKLOAD)


def timeline(launches: list[float], busy_s: list[float]) -> Timeline:
    return Timeline(np.array(busy_s), np.array(launches), np.array(busy_s))


def test_it_is_the_gpu_time_of_a_launch():
    device = FakeDevice(lambda _: 0.25)
    with seeded_arenas(WORKLOAD, seed=0) as arenas:
        assert measure_time_ms(device, JOB, arenas) == pytest.approx(0.25)


def test_it_runs_for_as_long_as_told_by_the_devices_clock():
    device = FakeDevice(lambda _: 0.25)
    began_s = device.clock.now_s()
    with seeded_arenas(WORKLOAD, seed=0) as arenas:
        measure_time_ms(device, JOB, arenas, duration_s=0.04)
    assert device.clock.now_s() - began_s == pytest.approx(0.04)


def test_a_disturbed_batch_does_not_count():
    busy_s = [0.0, 0.01, 0.02, 0.12, 0.13, 0.14]
    assert median_time_ms(timeline([0, 10, 20, 30, 40, 50], busy_s)) == pytest.approx(1.0)


def test_the_first_batch_does_not_count_when_there_are_others():
    assert median_time_ms(timeline([0, 10, 20, 30], [0, 0.5, 0.51, 0.52])) == pytest.approx(1.0)


def test_a_single_batch_is_enough():
    assert median_time_ms(timeline([0, 1], [0, 0.5])) == pytest.approx(500.0)


@pytest.mark.parametrize("launches", [[], [0], [0, 0], [5, 5]])
def test_no_finished_launch_is_a_fault(launches):
    with pytest.raises(KernelFault) as fault:
        median_time_ms(timeline(launches, [0.1] * len(launches)))
    assert fault.value.outcome == "runtime"


def test_sustained_figures_are_those_of_a_card_held_back_by_its_limit(device):
    launch = Launch("f", (1, 1, 1), (32, 1, 1), ())
    figures = RecordedFigures(device.name, 700.0, 0.02, 400.0, 8.0)
    kernel = Kernel("text", (launch,), recorded=(figures,))
    job = job_of(kernel, flops=10**8, bytes_moved=10**6)
    device.inject("enforced_limit", {"power_w": 250.0, "after_s": 0.1})
    time_ms = measure_time_ms(device, job, {})
    found = measure_sustained(device, job, {})
    assert found is not None
    assert time_ms == pytest.approx(0.02, rel=0.01)
    assert found.time_ms > 1.1 * time_ms
    assert found.energy_mj == pytest.approx(found.power_w * found.time_ms, rel=0.01)
    assert found.power_w == pytest.approx(250.0, rel=0.03)


def test_a_fault_of_the_kernel_passes_through():
    def hang(kernel: Kernel) -> float:
        raise KernelFault("timeout", f"{kernel.short_digest} hangs.")

    with seeded_arenas(WORKLOAD, seed=0) as arenas, pytest.raises(KernelFault) as fault:
        measure_time_ms(FakeDevice(hang), JOB, arenas)
    assert fault.value.outcome == "timeout"


@pytest.mark.slow
def test_a_kernel_that_is_right_only_at_first_is_found(monkeypatch):
    """A kernel that leaves the poison in place when it is run back to back."""

    def relaunch(_: VirtualRepeater, *, once: bool) -> Iterator[int]:
        assert not once
        yield 2001

    source = 'extern "C" __global__ void k(float* y) { y[threadIdx.x] = 1; }'
    kernel = Kernel(source, (Launch("k", (1, 1, 1), (8, 1, 1), ("y",)),))
    workload = Contract("one", (Tensor("y", (8,), "float32", "output"),), all_ones)
    with open_device("emulated") as device:
        verify_timed(device, kernel, workload)
        monkeypatch.setattr(VirtualRepeater, "relaunch", relaunch)
        with pytest.raises(KernelFault, match=r"^Correct at first, wrong after 2001 launches: 8 "):
            verify_timed(device, kernel, workload)


def all_ones(_: object) -> dict[str, npt.NDArray[np.float64]]:
    return {"y": np.ones(8)}
