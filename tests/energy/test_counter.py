"""The energy counter's edges, on a card whose counter does exactly what the test says."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import assume, given, settings, strategies as st

from pytest_gpuenergy.devices import Device
from pytest_gpuenergy.energy import CounterError, Edge, EnergyCounter, regular_times_s
from pytest_gpuenergy.support import DeviceError


class NvmlError(Exception):
    """The error of `pynvml`."""


@dataclass
class Card:
    """A counter that is a function of virtual time; reading it takes ``read_s``."""

    energy_mj: Callable[[float], int]
    read_s: float = 0.0035
    now: float = 0.0
    reads: int = field(default=0)

    def now_s(self) -> float:
        return self.now

    def sleep_s(self, duration_s: float) -> None:
        assert duration_s >= 0
        self.now += duration_s

    def read(self, _handle: object) -> int:
        self.reads += 1
        self.now += self.read_s
        return self.energy_mj(self.now)

    @property
    def device(self) -> Device:
        nvml = SimpleNamespace(nvmlDeviceGetTotalEnergyConsumption=self.read, NVMLError=NvmlError)
        return cast(Device, SimpleNamespace(name="Card", nvml=nvml, handle=0, clock=self))


def stepping(period_s: float, phase_s: float = 0.0, power_w: float = 400.0) -> Callable[..., int]:
    def energy_mj(now_s: float) -> int:
        steps = int((now_s - phase_s) / period_s // 1)
        return round(1000 * power_w * period_s * (steps + 10))

    return energy_mj


PERIODS = st.floats(0.02, 0.2)
PHASES = st.floats(0.0, 0.2)
READS = st.floats(1e-5, 0.004)


@pytest.mark.slow
@given(PERIODS, PHASES, READS)
def test_an_edge_brackets_the_moment_of_the_step(period_s, phase_s, read_s):
    card = Card(stepping(period_s, phase_s), read_s)
    edge = EnergyCounter(card.device).probe()
    steps = (np.array([edge.after_s, edge.before_s]) - phase_s) / period_s
    assert np.floor(steps[1] + 1e-9) == np.floor(steps[0] - 1e-9) + 1


@pytest.mark.slow
@given(PERIODS, PHASES, READS)
def test_probing_finds_the_period(period_s, phase_s, read_s):
    counter = EnergyCounter(Card(stepping(period_s, phase_s), read_s).device)
    counter.probe()
    assert abs(counter.period_s - period_s) <= 2 * read_s + 1e-9


@given(PERIODS, PHASES, st.integers(1, 5))
def test_the_next_edge_is_that_many_periods_later(period_s, phase_s, periods):
    counter = EnergyCounter(Card(stepping(period_s, phase_s), 0.0005).device)
    first = counter.probe()
    later = counter.next_edge(periods)
    passed = (later.time_s - first.time_s) / period_s
    assert round(passed) in (periods, periods + 1)
    assert passed == pytest.approx(round(passed), abs=0.1)


@given(PERIODS, PHASES, st.lists(st.integers(1, 8), min_size=1, max_size=8))
def test_energies_of_edges_are_those_of_the_counter(period_s, phase_s, strides):
    card = Card(stepping(period_s, phase_s))
    counter = EnergyCounter(card.device)
    edges = [counter.probe(), *(counter.next_edge(stride) for stride in strides)]
    for edge in edges:
        assert edge.energy_mj == card.energy_mj(edge.time_s + period_s / 4)


def test_a_period_that_takes_a_few_reads_becomes_precise():
    for phase_s in (0.0, 0.003, 0.007, 0.011, 0.017):
        counter = EnergyCounter(Card(stepping(0.02, phase_s)).device)
        counter.probe()
        assert counter.period_s == pytest.approx(0.02, rel=0.03)
        for _ in range(10):
            counter.next_edge(5)
        assert counter.period_s == pytest.approx(0.02, rel=0.005)


def test_waiting_for_an_edge_takes_few_reads():
    card = Card(stepping(0.1))
    counter = EnergyCounter(card.device)
    counter.probe()
    before = card.reads
    for _ in range(10):
        counter.next_edge(3)
    assert card.reads - before <= 10 * 10


def test_a_counter_that_stands_still_is_stale():
    card = Card(lambda _: 4000)
    with pytest.raises(CounterError, match=r"has not moved for 0\.6 s") as raised:
        EnergyCounter(card.device).probe()
    assert raised.value.flag == "counter_stale"
    assert card.now < 1


def test_a_counter_that_stops_later_is_stale():
    steps = stepping(0.1)
    counter = EnergyCounter(Card(lambda now_s: steps(min(now_s, 0.5))).device)
    counter.probe()
    counter.next_edge(1)
    with pytest.raises(CounterError) as raised:
        counter.next_edge(5)
    assert raised.value.flag == "counter_stale"


def test_a_counter_that_falls_between_two_reads_was_reset():
    steps = stepping(0.1)
    card = Card(lambda now_s: 7 if now_s > 0.05 else steps(now_s))
    with pytest.raises(CounterError, match="Card ran backwards") as raised:
        EnergyCounter(card.device).probe()
    assert raised.value.flag == "counter_reset"


def test_a_counter_that_falls_while_nobody_reads_was_reset():
    steps = stepping(0.1)
    card = Card(lambda now_s: steps(now_s) - (600_000 if now_s > 0.6 else 0))
    counter = EnergyCounter(card.device)
    counter.probe()
    with pytest.raises(CounterError) as raised:
        counter.next_edge(6)
    assert raised.value.flag == "counter_reset"


@pytest.mark.parametrize("error", ["not_supported", "gpu_is_lost", "unknown"])
def test_a_counter_that_cannot_be_read_is_a_device_error(device, error):
    device.inject("energy", error)
    with pytest.raises(DeviceError, match=r"energy counter of NVIDIA H200 cannot be read \("):
        EnergyCounter(device).probe()


def make_edges(times_s: Any, widths_s: Any) -> list[Edge]:
    return [
        Edge(float(time - width / 2), float(time + width / 2), k)
        for k, (time, width) in enumerate(zip(times_s, widths_s, strict=True))
    ]


@given(
    st.floats(0.09, 0.11),
    st.floats(0, 1000),
    st.lists(st.integers(1, 3), min_size=8, max_size=60),
    st.integers(0, 2**32),
    st.floats(-0.03, 0.03),
)
def test_regular_times_recover_the_phase_under_jitter(
    period_s, phase_s, strides, seed, period_error
):
    generator = np.random.default_rng(seed)
    true_s = phase_s + period_s * np.cumsum([0, *strides])
    width_s = 0.007
    found_s = true_s + generator.uniform(-width_s / 2, width_s / 2, len(true_s))
    edges = make_edges(found_s, np.full(len(true_s), width_s))
    times_s, error_s = regular_times_s(edges, period_s * (1 + period_error))
    # A line through n points knows its ends to within twice sigma / sqrt(n); six times that is
    # never exceeded.
    sigma_s = width_s / np.sqrt(12)
    assert np.abs(np.array(times_s) - true_s).max() <= 6 * 2 * sigma_s / np.sqrt(len(true_s))
    # As long as the line: of n points at equal distances, sqrt(12 / n) times what one is off by.
    assert error_s < 2 * np.sqrt(12) * sigma_s / np.sqrt(len(true_s))
    _, half_error_s = regular_times_s(edges, period_s, begin=len(edges) // 2)
    halves = (true_s[-1] - true_s[len(edges) // 2]) / (true_s[-1] - true_s[0])
    assert half_error_s == pytest.approx(halves * error_s, rel=0.01)


def test_irregular_edges_keep_their_own_times():
    middles = [0.0, 0.1, 0.23, 0.3, 0.44, 0.5]
    times_s, error_s = regular_times_s(make_edges(middles, [0.002] * 6), 0.1)
    assert times_s == pytest.approx(middles)
    assert error_s == pytest.approx(0.002 / np.sqrt(6))


@dataclass
class DelayingCard(Card):
    """As an H200: a step that falls into a read waits for its end, and holds the power until then.

    Attributes:
        late_s: by how much the steps from ``late_from_s`` on are late, reads or not.
        hiccups: how much longer the host sleeps than asked for, by the number of the sleep.
    """

    period_s: float = 0.1
    power_w: float = 400.0
    late_s: float = 0.0
    late_from_s: float = float("inf")
    hiccups: dict[int, float] = field(default_factory=dict)
    counted_mj: float = 5e6
    last_step_s: float = 0.0
    next_number: int = 1
    sleeps: int = 0

    def sleep_s(self, duration_s: float) -> None:
        self.sleeps += 1
        super().sleep_s(duration_s + self.hiccups.get(self.sleeps, 0.0))

    def read(self, _handle: object) -> int:
        self.reads += 1
        self._run_to(self.now)
        shown = self.counted_mj
        self.now += self.read_s
        while self._due_s() < self.now:  # while this read was under way
            self._step(self.now)
            shown = self.counted_mj
        return round(shown)

    def _due_s(self) -> float:
        due_s = self.next_number * self.period_s
        return due_s + (self.late_s if due_s >= self.late_from_s else 0.0)

    def _run_to(self, now_s: float) -> None:
        while self._due_s() <= now_s:
            self._step(self._due_s())

    def _step(self, at_s: float) -> None:
        self.counted_mj += 1e3 * self.power_w * (at_s - self.last_step_s)
        self.last_step_s, self.next_number = at_s, self.next_number + 1


def item(counter: EnergyCounter, steps: int = 17, periods: int = 1) -> list[Edge]:
    """Return the edges of one measurement."""
    return [counter.probe(), *(counter.next_edge(periods) for _ in range(steps))]


def powers_w(counter: EnergyCounter, edges: list[Edge]) -> Any:
    """Return the powers of all windows without an edge that `probe` awaited."""
    times_s, _ = counter.times_s(edges)
    return np.diff([edge.energy_mj for edge in edges][1:]) / 1e3 / np.diff(times_s[1:])


@settings(deadline=None)
@given(st.floats(0.09, 0.2), st.floats(0.001, 0.004), st.floats(0.0, 4.0), st.integers(1, 3))
def test_reads_between_the_steps_of_a_known_schedule_delay_none(period_s, read_s, idle_s, periods):
    card = DelayingCard(lambda _: 0, read_s, period_s=period_s)
    counter = EnergyCounter(card.device)
    first = powers_w(counter, item(counter))
    assume(np.ptp(first) > 0)  # awaited steps are late, and mostly by different times
    card.sleep_s(idle_s)
    second = powers_w(counter, item(counter, periods=periods))
    assert second == pytest.approx(second.mean(), rel=1e-4)
    assert second.mean() == pytest.approx(card.power_w, rel=0.002)


def test_a_schedule_that_is_learned_in_a_long_item_is_used_at_once():
    card = DelayingCard(lambda _: 0)
    counter = EnergyCounter(card.device)
    powers = powers_w(counter, item(counter, steps=40))
    assert np.ptp(powers[:10]) > 0.5
    assert powers[20:] == pytest.approx(card.power_w, rel=1e-3)
    assert np.ptp(powers[20:]) < 0.01


@dataclass
class CardThatStalls(Card):
    """One of its reads takes long, as while another process begins to use the card."""

    slow_s: float = 0.0
    number: int = 0

    def read(self, handle: object) -> int:
        if self.reads + 1 == self.number:
            self.now += self.slow_s
        return super().read(handle)


@given(st.floats(0.05, 0.2), PHASES, st.floats(0.05, 0.5), st.integers(1, 40))
def test_a_slow_read_at_the_start_does_not_change_the_period(period_s, phase_s, slow_s, number):
    card = CardThatStalls(stepping(period_s, phase_s), 0.002, slow_s=slow_s, number=number)
    counter = EnergyCounter(card.device)
    for edge in short_run(counter, edges=20):
        assert edge.energy_mj == card.energy_mj(edge.time_s + period_s / 4)
    assert counter.period_s == pytest.approx(period_s, rel=0.02)


def test_a_known_schedule_takes_one_read_for_an_edge():
    card = DelayingCard(lambda _: 0)
    counter = EnergyCounter(card.device)
    item(counter)
    counter.probe()
    before = card.reads
    for _ in range(10):
        counter.next_edge(3)
    assert card.reads == before + 10


def test_the_error_of_a_window_falls_with_every_item():
    card = DelayingCard(lambda _: 0)
    counter = EnergyCounter(card.device)
    errors_s = []
    for _ in range(6):
        edges = item(counter)
        errors_s.append(counter.times_s(edges, begin=10)[1])
        card.sleep_s(1.3)
    assert errors_s == sorted(errors_s, reverse=True)
    assert 0 < errors_s[-1] < errors_s[0] / 5


def test_a_counter_that_keeps_to_another_schedule_is_learned_anew():
    card = DelayingCard(lambda _: 0, late_s=0.04, late_from_s=4.0)
    counter = EnergyCounter(card.device)
    item(counter)
    card.sleep_s(4.0 - card.now)
    for _ in range(2):
        powers = powers_w(counter, item(counter))
        assert powers == pytest.approx(400.0, rel=0.05)
    assert np.ptp(powers) < 0.01


def test_a_counter_that_changes_its_schedule_in_an_item_loses_no_energy():
    card = DelayingCard(lambda _: 0, late_s=0.06, late_from_s=4.5)
    counter = EnergyCounter(card.device)
    item(counter)
    card.sleep_s(3.3 - card.now)
    edges = item(counter)
    assert edges[0].time_s < 4.0
    assert edges[-1].time_s > 4.6
    times_s, _ = counter.times_s(edges)
    rise_mj = edges[-1].energy_mj - edges[1].energy_mj
    assert rise_mj / 1e3 / (times_s[-1] - times_s[1]) == pytest.approx(400.0, rel=0.02)
    assert counter.period_s == pytest.approx(0.1, rel=0.1)


def short_run(counter: EnergyCounter, edges: int = 6) -> list[Edge]:
    """Return the edges of a run that is too short to learn a schedule from."""
    return [counter.probe(), *(counter.next_edge(1) for _ in range(edges - 1))]


@given(
    st.floats(0.05, 0.2), PHASES, st.floats(1e-4, 0.004), st.lists(st.floats(0.1, 3.0), max_size=4)
)
def test_short_runs_learn_a_schedule_together(period_s, phase_s, read_s, pauses_s):
    card = Card(stepping(period_s, phase_s), read_s)
    counter = EnergyCounter(card.device)
    for pause_s in (*pauses_s, 0.5, 0.5, 0.5):
        for edge in short_run(counter):
            assert edge.energy_mj == card.energy_mj(edge.time_s + period_s / 4)
        assert counter.period_s == pytest.approx(period_s, rel=0.05)
        card.now += pause_s
    before = card.reads
    counter.probe()
    counter.next_edge(1)
    assert card.reads - before < 2 + period_s / read_s


def test_a_counter_that_shifts_between_short_runs_loses_no_energy():
    """Its steps begin anew with each load, so that those of several runs have no common period."""
    begin_s = 0.0
    card = Card(lambda now_s: round(4000 * ((now_s - begin_s) // 0.1 + 1e3 * begin_s)))
    counter = EnergyCounter(card.device)
    for shift_s in (0.0, 0.037, 0.061, 0.013, 0.088):
        begin_s = card.now + shift_s
        card.now = begin_s + 0.05
        edges = short_run(counter, edges=9)
        for before, after in itertools.pairwise(edges):
            steps = round((after.time_s - before.time_s) / 0.1)
            assert after.energy_mj - before.energy_mj == 4000 * steps
        assert counter.period_s == pytest.approx(0.1, rel=0.1)
        card.now += 2.0


def test_after_a_long_time_the_schedule_is_learned_anew():
    card = DelayingCard(lambda _: 0)
    counter = EnergyCounter(card.device)
    item(counter)
    card.sleep_s(3600.0)
    powers = powers_w(counter, item(counter))
    assert np.ptp(powers) > 0
    assert powers == pytest.approx(400.0, rel=0.05)


@given(st.dictionaries(st.integers(15, 60), st.floats(0.0, 0.5), max_size=6))
def test_a_host_that_sleeps_too_long_mistakes_no_step_for_another(hiccups):
    card = DelayingCard(lambda _: 0)
    counter = EnergyCounter(card.device)
    item(counter)
    card.hiccups = {card.sleeps + 3 + number - 15: late for number, late in hiccups.items()}
    powers = powers_w(counter, item(counter))
    assert powers == pytest.approx(400.0, rel=0.002)


def test_a_step_that_was_seen_through_a_slow_read_does_not_spoil_the_schedule():
    card = DelayingCard(lambda _: 0)
    counter = EnergyCounter(card.device)
    edges = [counter.probe()]
    for number in range(16):
        card.read_s = 0.045 if number == 9 else 0.0035
        edges.append(counter.next_edge(1))
    assert np.ptp(powers_w(counter, item(counter))) < 0.01


def test_steps_that_are_seen_badly_are_awaited_in_every_item():
    card = DelayingCard(lambda _: 0, read_s=0.03)
    counter = EnergyCounter(card.device)
    for _ in range(3):
        assert np.ptp(powers_w(counter, item(counter))) > 0.5


def test_reads_that_become_slow_end_the_schedule():
    card = DelayingCard(lambda _: 0)
    counter = EnergyCounter(card.device)
    item(counter)
    counter.probe()
    card.read_s = 0.09
    edges = [counter.next_edge(1) for _ in range(5)]
    energies = [edge.energy_mj for edge in edges]
    assert energies == sorted(set(energies))


def test_a_scheduled_counter_that_stops_is_stale():
    card = DelayingCard(lambda _: 0)
    counter = EnergyCounter(card.device)
    item(counter)
    counter.probe()
    card.power_w = 0.0
    with pytest.raises(CounterError) as raised:
        item(counter)
    assert raised.value.flag == "counter_stale"


def test_a_scheduled_counter_that_falls_was_reset():
    card = DelayingCard(lambda _: 0)
    counter = EnergyCounter(card.device)
    item(counter)
    counter.probe()
    card.counted_mj = 7.0
    with pytest.raises(CounterError) as raised:
        counter.next_edge(1)
    assert raised.value.flag == "counter_reset"


def test_two_edges_keep_their_own_times():
    times_s, _ = regular_times_s(make_edges([1.0, 1.1], [0.004, 0.004]), 0.1)
    assert times_s == pytest.approx([1.0, 1.1])
