"""The emulated card's effective clock, and its states that NVML does not report."""

from __future__ import annotations

import json
from collections.abc import Iterator

import numpy as np
import pytest

from pytest_gpuenergy.devices import CLOCK_SPAN_S, ClockSamples
from pytest_gpuenergy.emulator import DEFAULT_PROFILE, CardState, Demand, Fault, VirtualRepeater

SECOND_NS = 10**9
HOT = Demand(time_s=20e-6, power_w=650.0, memory_time=0.1)
MILD = Demand(time_s=30e-6, power_w=200.0)


@pytest.fixture
def state() -> Iterator[CardState]:
    found = CardState(DEFAULT_PROFILE)
    yield found
    found.close()


def run(state: CardState, demand: Demand, seconds: float) -> ClockSamples:
    repeater = VirtualRepeater(state, demand, timeout_s=10.0, placements=1)
    repeater.start()
    state.spend(round(seconds * SECOND_NS))
    clocks = repeater.stop().clocks
    assert clocks is not None
    return clocks


def levels(clocks: ClockSamples) -> list[float]:
    return sorted(set(np.round(clocks.mhz, 3).tolist()))


def test_a_kernel_has_a_clock_of_its_own_near_that_of_nvml(state: CardState) -> None:
    found = [levels(run(state, Demand(20e-6, watts), 2.0)) for watts in (300.0, 400.0, 500.0)]
    again = levels(run(state, Demand(20e-6, 300.0), 2.0))
    assert [len(clocks) for clocks in found] == [1, 1, 1]
    assert found[0] == again
    assert len({clock for (clock,) in found}) == 3
    assert [clock for (clock,) in found] == pytest.approx([1980] * 3, rel=0.01)


def test_samples_cover_the_run_in_spans_of_50_ms(state: CardState) -> None:
    clocks = run(state, HOT, 3.0)
    assert clocks.end_s - clocks.begin_s == pytest.approx(CLOCK_SPAN_S, rel=0.1)
    assert clocks.begin_s[1:].tolist() == clocks.end_s[:-1].tolist()
    assert clocks.end_s[-1] - clocks.begin_s[0] == pytest.approx(3.0, abs=2 * CLOCK_SPAN_S)


def test_the_clock_follows_the_cap(state: CardState) -> None:
    repeater = VirtualRepeater(state, HOT, timeout_s=10.0, placements=1)
    repeater.start()
    state.spend(SECOND_NS)
    with state.change() as card:
        card.set_limit(450_000)
        reported_mhz = card.point.clock_mhz
    state.spend(SECOND_NS)
    clocks = repeater.stop().clocks
    assert clocks is not None
    assert reported_mhz < 1900
    assert clocks.mhz[0] == pytest.approx(1980, rel=0.01)
    assert clocks.mhz[-1] == pytest.approx(reported_mhz, rel=0.01)


def test_a_run_that_is_too_short_has_no_clock(state: CardState) -> None:
    repeater = VirtualRepeater(state, HOT, timeout_s=10.0, placements=1)
    repeater.start()
    assert repeater.stop().clocks is None


def test_without_the_fault_a_card_stays_in_one_state(state: CardState) -> None:
    assert len(levels(run(state, HOT, 120.0))) == 1


def test_heat_changes_the_state_once(state: CardState) -> None:
    state.inject(Fault.of("clock_states"))
    clocks = run(state, HOT, 30.0)
    steps = np.flatnonzero(np.abs(np.diff(clocks.mhz)) > 0.01)
    assert len(steps) in (1, 2)  # the span in which it happens may be between the two
    assert clocks.mhz[-1] / clocks.mhz[0] == pytest.approx(0.998, abs=1e-4)
    assert state.spend(0).temperature_c > 42


def test_a_step_changes_power_and_time_with_the_clock(state: CardState) -> None:
    repeater = VirtualRepeater(state, HOT, timeout_s=10.0, placements=1)
    repeater.start()
    state.spend(60 * SECOND_NS)
    before_mw = state.spend(SECOND_NS).mean_power_mw(state.spend(0).now_ns, SECOND_NS)
    state.inject(Fault.of("clock_states"))
    state.spend(SECOND_NS)
    after_mw = state.spend(SECOND_NS).mean_power_mw(state.spend(0).now_ns, SECOND_NS)
    assert after_mw / before_mw == pytest.approx(0.99, abs=0.003)
    timeline = repeater.stop()
    times_s = np.diff(timeline.busy_s) / np.diff(timeline.launches)
    longer = times_s[-100:].mean() / times_s[-400:-300].mean()
    assert longer == pytest.approx(1 + 0.9 * 0.002, abs=0.001)


def test_states_also_change_without_heat_but_rarely(state: CardState) -> None:
    state.inject(Fault.of("clock_states"))
    clocks = run(state, MILD, 600.0)
    steps = int((np.abs(np.diff(clocks.mhz)) > 1.5).sum())
    assert len(set(np.round(clocks.mhz / 1.5).tolist())) == 2
    assert 1 <= steps <= 20


def test_the_state_is_kept_with_the_card(state: CardState) -> None:
    fault = state.inject(Fault.of("clock_states"))
    clocks = run(state, HOT, 30.0)
    with CardState(DEFAULT_PROFILE).change() as card:
        assert card.hidden_state == 1
    state.withdraw(fault)
    assert run(state, HOT, 1.0).mhz[-1] > clocks.mhz[-1] * 1.001


def test_a_state_that_does_not_exist_is_damage(state: CardState) -> None:
    state.spend(0)
    content = json.loads(state.path.read_text())
    state.path.write_text(json.dumps({**content, "hidden_state": 9}))
    with pytest.warns(UserWarning, match="was damaged"):
        assert state.spend(0).hidden_state == 0
