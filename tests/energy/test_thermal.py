"""What a card's temperature tells of the power at which it settles."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, strategies as st
from msgspec import structs

from pytest_gpuenergy.energy import (
    KnownCooling,
    Leakage,
    Settling,
    ThermalModel,
    ThermalSample,
    step_error,
)

STEP_S = 0.1


@dataclass
class Card:
    """A die on a heat sink, read in whole kelvins, whose power grows with its temperature."""

    air_c: float = 35.0
    die_k_per_w: float = 0.033
    sink_k_per_w: float = 0.022
    sink_s: float = 12.0
    per_k: float = 0.0044
    idle_w: float = 120.0
    noise: float = 0.0004
    time_s: float = 100.0
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(5))

    def __post_init__(self) -> None:
        self.die_w = self.sink_w = self.idle_w

    def temperature_c(self, die_w: float, sink_w: float) -> float:
        return self.air_c + self.die_k_per_w * die_w + self.sink_k_per_w * sink_w

    def step(self, settled_w: float, share: float = 1.0) -> ThermalSample:
        """Let a tenth of a second pass, in which ``share`` of the power heats the die."""
        heat_w = share * settled_w
        away_k = self.temperature_c(self.die_w, self.sink_w) - self.temperature_c(heat_w, heat_w)
        power_w = settled_w * (1 + self.per_k * away_k) * (1 + self.noise * self.rng.normal())
        for name, constant_s in (("die_w", 0.3), ("sink_w", self.sink_s)):
            before_w = getattr(self, name)
            kept = math.exp(-STEP_S / constant_s)
            setattr(self, name, kept * before_w + (1 - kept) * share * power_w)
        self.time_s += STEP_S
        return ThermalSample(
            self.time_s, power_w, round(self.temperature_c(self.die_w, self.sink_w))
        )

    def run(self, settled_w: float, seconds: float, share: float = 1.0) -> list[ThermalSample]:
        return [self.step(settled_w, share) for _ in range(round(seconds / STEP_S))]

    def rest(self, seconds: float = 1.0) -> ThermalSample:
        run = self.run(self.idle_w, seconds)
        return run[-1]._replace(power_w=float(np.mean([one.power_w for one in run])))


def settled_power_w(run: list[ThermalSample], settling: Settling) -> float:
    return float(np.mean([one.power_w for one in run[-8:]])) * (1 + settling.gain)


@pytest.mark.parametrize("sink_k_per_w", [0.002, 0.010, 0.022])
def test_a_card_that_had_rested_is_corrected_to_what_it_settles_at(sink_k_per_w):
    card = Card(sink_k_per_w=sink_k_per_w)
    model = ThermalModel(card.rest())
    run = card.run(540.0, 7.0)
    settling = model.settling(run, trials=8)
    assert settled_power_w(run, settling) == pytest.approx(540.0, rel=0.01)
    end_c = card.temperature_c(540.0, 540.0)
    assert settling.settled_c == pytest.approx(end_c, abs=2.5)


@pytest.mark.slow
@given(
    air_c=st.floats(20, 45),
    die_k=st.floats(15, 30),
    sink_k=st.floats(0, 18),
    sink_s=st.floats(6, 25),
    per_k=st.floats(0.002, 0.006),
    loads=st.lists(st.floats(0.3, 1.0), min_size=2, max_size=8),
)
def test_after_a_preheating_each_kernel_is_within_its_interval(
    air_c, die_k, sink_k, sink_s, per_k, loads
):
    card = Card(air_c, die_k / 700, sink_k / 700, sink_s, per_k)
    model = ThermalModel(card.rest())
    model.add_run(card.run(500.0, 30.0))
    for load in loads:
        model.add_pause(card.rest(0.3))
        run = card.run(700 * load, 2.0)
        settling = model.settling(run, trials=8)
        off = settled_power_w(run, settling) / (700 * load) - 1
        assert abs(off) < 0.006 + 3 * settling.gain_error
        assert abs(off) < 0.02
        model.add_run(run)


def test_a_kernel_that_heats_mostly_the_memory_is_told_from_others():
    card = Card()
    model = ThermalModel(card.rest())
    model.add_run(card.run(540.0, 30.0))
    model.add_pause(card.rest(0.3))
    run = card.run(500.0, 2.0, share=0.55)
    settling = model.settling(run, trials=8)
    end_c = card.temperature_c(0.55 * 500, 0.55 * 500)
    assert settling.settled_c == pytest.approx(end_c, abs=3.0)
    assert settled_power_w(run, settling) == pytest.approx(500.0, rel=0.015)


def test_the_power_per_kelvin_is_learned_from_a_long_heat_up():
    card = Card(per_k=0.0065)
    model = ThermalModel(card.rest())
    before = model.settling(card.run(200.0, 1.0), trials=8)
    card = Card(per_k=0.0065)
    model = ThermalModel(card.rest())
    model.add_run(card.run(600.0, 40.0))
    after = model.settling(card.run(600.0, 1.0), trials=8)
    assert before.per_k == pytest.approx(0.0042)
    assert after.per_k > 0.0052
    assert after.per_k_error < before.per_k_error


def test_a_step_of_the_power_is_not_taken_for_an_effect_of_the_temperature():
    card = Card(per_k=0.0044)
    model = ThermalModel(card.rest())
    run = card.run(500.0, 40.0)
    stepped = [
        one._replace(power_w=one.power_w * (0.987 if 80 < number < 300 else 1.0))
        for number, one in enumerate(run)
    ]
    model.add_run(stepped)
    assert model.settling(card.run(500.0, 1.0), trials=8).per_k == pytest.approx(0.0044, abs=0.0012)


def test_a_settled_card_needs_no_correction():
    card = Card()
    model = ThermalModel(card.rest())
    model.add_run(card.run(450.0, 90.0))
    settling = model.settling(card.run(450.0, 2.0), trials=8)
    assert settling.gain == pytest.approx(0.0, abs=0.002)


def test_a_few_seconds_do_not_exclude_that_the_temperature_rises_further():
    """Cards that hardly differ within seconds may differ within minutes."""
    ends_k, settlings = [], []
    for sink_k_per_w, sink_s in ((0.001, 20.0), (0.008, 60.0)):
        card = Card(sink_k_per_w=sink_k_per_w, sink_s=sink_s)
        model = ThermalModel(card.rest())
        run = card.run(500.0, 5.0)
        settlings.append(model.settling(run, trials=8))
        ends_k.append(card.temperature_c(500.0, 500.0))
    for end_k, settling in zip(ends_k, settlings, strict=True):
        assert abs(settling.settled_c - end_k) < 2 * settling.error_k
        assert settling.open_k > 1.5


@given(sink_k=st.floats(0, 15), sink_s=st.floats(6, 60), power_w=st.floats(200, 700))
def test_a_longer_run_leaves_less_open(sink_k, sink_s, power_w):
    card = Card(sink_k_per_w=sink_k / 700, sink_s=sink_s)
    model = ThermalModel(card.rest())
    run = card.run(power_w, 60.0)
    short, long = (model.settling(run[:count], trials=8) for count in (20, 600))
    assert long.open_k < short.open_k
    assert abs(long.settled_c - card.temperature_c(power_w, power_w)) < 3 * long.error_k


def test_what_takes_minutes_to_change_is_an_error_of_a_load_that_is_new():
    """The same kernel runs half a minute after a rest and some minutes later."""
    card = Card()
    model = ThermalModel(card.rest())
    model.add_run(card.run(500.0, 30.0))
    model.add_pause(card.rest(0.3))
    new = model.settling(card.run(500.0, 2.0), trials=8)
    model.add_run(card.run(500.0, 300.0))
    model.add_pause(card.rest(0.3))
    old = model.settling(card.run(500.0, 2.0), trials=8)
    assert new.error_k > 1.5
    assert old.error_k < 1.2
    assert new.gain_error > 1.5 * old.gain_error


def test_a_card_with_a_small_heat_sink_has_little_that_takes_minutes():
    card = Card(sink_k_per_w=0.002)
    model = ThermalModel(card.rest())
    model.add_run(card.run(500.0, 30.0))
    model.add_pause(card.rest(0.3))
    assert model.settling(card.run(500.0, 2.0), trials=8).error_k < 1.0


@pytest.mark.slow
def test_short_runs_do_not_make_the_heat_sink_of_a_warm_card_small():
    """Another process has warmed the card, so its heat sink warms little at first."""
    rng = np.random.default_rng(3)
    held = []
    for sink_k in np.linspace(9, 17, 8):
        card = Card(sink_k_per_w=sink_k / 600, sink_s=14.0)
        card.run(rng.uniform(300, 650), 60.0)
        model = ThermalModel(card.rest(4.0))
        model.add_run(card.run(rng.uniform(300, 650), 30.0))
        for load_w in rng.uniform(220, 650, 12):
            model.add_pause(card.rest(0.5))
            run = card.run(load_w, 2.0)
            settling = model.settling(run, trials=8)
            off = settled_power_w(run, settling) / load_w - 1
            held.append(abs(off) < 2 * settling.gain_error)
            model.add_run(run)
    assert np.mean(held) > 0.85


def test_a_run_of_one_sample_gives_a_settling():
    card = Card()
    model = ThermalModel(card.rest())
    settling = model.settling(card.run(450.0, 0.1), trials=8)
    assert math.isfinite(settling.gain)
    assert math.isfinite(settling.gain_error)


@given(nearer=st.floats(0, 100), farther=st.floats(0, 100))
def test_the_farther_a_temperature_the_less_is_known_of_the_steps_on_the_way(nearer, farther):
    nearer, farther = sorted((nearer, farther))
    assert 0 <= step_error(nearer) <= step_error(farther)


def test_at_the_present_temperature_there_is_no_step():
    assert step_error(0.0) == 0.0


@given(away_k=st.floats(0.1, 4))
def test_the_error_is_that_of_a_staircase_of_unknown_phase(away_k):
    step, spacing_k = 0.012, 8.0
    starts_k = np.linspace(0, spacing_k, 4001)
    crossed = np.floor((starts_k + away_k) / spacing_k)
    error = np.std(step * (crossed - away_k / spacing_k))
    assert step_error(away_k) == pytest.approx(error, rel=0.02)


@given(to_go_k=st.floats(2, 10), error_k=st.floats(0.1, 5))
def test_a_gain_counts_both_the_slope_and_the_steps(to_go_k, error_k):
    steady, stepping = (
        Settling(50.0, 50.0 + to_go_k, error_k, 0.0, per_k, 0.0) for per_k in (0.0, 0.004)
    )
    assert steady.gain_error > 0.9 * step_error(to_go_k - 0.3)
    assert stepping.gain_error == pytest.approx(math.hypot(steady.gain_error, 0.004 * error_k))


@given(per_k=st.floats(0.001, 0.008), drift=st.floats(-0.002, 0.002))
def test_a_run_that_warms_the_card_by_far_shows_the_slope(per_k, drift):
    temperatures_c = np.linspace(50, 65, 300)
    powers_w = 500 * (1 + per_k * (temperatures_c - 50) + np.linspace(0, drift, 300))
    found = Leakage().plus(powers_w, temperatures_c)
    assert found.per_k == pytest.approx(per_k, rel=0.1, abs=5e-4)


@given(drift=st.floats(-0.003, 0.003), count=st.integers(30, 3000))
def test_a_drift_at_almost_one_temperature_is_not_taken_for_the_slope(drift, count):
    found = Leakage().plus(500 * (1 + np.linspace(0, drift, count)), np.linspace(50, 50.3, count))
    assert abs(found.per_k - Leakage().per_k) < Leakage().error / 2


def test_an_h200_is_expected_to_be_cooled_as_those_before():
    card = Card(sink_k_per_w=0.003)
    rest, run = card.rest(), card.run(540.0, 5.0)
    settlings = [ThermalModel(rest, gpu=name).settling(run, 8) for name in ("GPU", "NVIDIA H200")]
    off_k = [abs(one.settled_c - card.temperature_c(540.0, 540.0)) for one in settlings]
    assert settlings[1].error_k < 0.8 * settlings[0].error_k
    assert off_k[1] < off_k[0]


@given(sink_k=st.floats(0.0, 18.0), sink_s=st.floats(6, 25))
def test_an_h200_that_is_cooled_otherwise_settles_within_the_error(sink_k, sink_s):
    card = Card(sink_k_per_w=sink_k / 700, sink_s=sink_s, air_c=28.0)
    model = ThermalModel(card.rest(), gpu="NVIDIA H200")
    settling = model.settling(card.run(540.0, 14.0), trials=8)
    off_k = settling.settled_c - card.temperature_c(540.0, 540.0)
    assert abs(off_k) < 3 * settling.error_k


@functools.cache
def remembered(sink_k_per_w: float) -> KnownCooling:
    """What is known about a card after a session of a minute."""
    card = Card(sink_k_per_w=sink_k_per_w)
    model = ThermalModel(card.rest())
    model.add_run(card.run(500.0, 60.0))
    return model.cooling


@pytest.mark.parametrize("sink_k_per_w", [0.003, 0.010, 0.022])
def test_a_second_session_knows_sooner_where_a_card_settles(sink_k_per_w):
    known = remembered(sink_k_per_w)
    card = Card(sink_k_per_w=sink_k_per_w, rng=np.random.default_rng(6))
    rest = card.rest()
    run = card.run(540.0, 3.0)
    first, second = (ThermalModel(rest, each).settling(run, 8) for each in (None, known))
    end_c = card.temperature_c(540.0, 540.0)
    assert abs(second.settled_c - end_c) < max(1.0, abs(first.settled_c - end_c))
    assert abs(second.settled_c - end_c) < 2 * second.error_k


def test_kernels_that_are_verified_in_a_pause_do_not_make_the_heat_sink_large():
    """The die is warm at the end of such a pause, whose mean power is low."""
    card = Card(sink_k_per_w=0.003, sink_s=25.0)
    model = ThermalModel(card.rest(), gpu="NVIDIA H200")
    for load_w in (540.0, 600.0, 480.0):
        model.add_run(card.run(load_w, 4.0))
        pause = [*card.run(card.idle_w, 1.2), *card.run(500.0, 0.4)]
        mean_w = float(np.mean([one.power_w for one in pause]))
        model.add_pause(pause[-1]._replace(power_w=mean_w))
    run = card.run(540.0, 2.0)
    settling = model.settling(run, 8)
    assert abs(settling.settled_c - card.temperature_c(540.0, 540.0)) < 1.0
    assert settling.gain_error < 0.007


@pytest.mark.parametrize(
    ("sink_k", "sink_s"), [(1.5, 25.0), (5.0, 25.0), (9.0, 25.0), (13.0, 14.0)]
)
def test_a_card_that_is_cooled_worse_than_others_of_its_name_shows_it_in_time(sink_k, sink_s):
    card = Card(sink_k_per_w=sink_k / 540, sink_s=sink_s, air_c=28.0)
    model = ThermalModel(card.rest(), gpu="NVIDIA H200")
    run = card.run(540.0, 1.0)
    while (settling := model.settling(run, 6)).gain_error > 0.007 and len(run) < 300:
        run += card.run(540.0, 0.2)
    off_k = settling.settled_c - card.temperature_c(540.0, 540.0)
    assert abs(off_k) < 2 * settling.error_k


def test_a_short_session_leaves_no_less_than_the_name_of_the_gpu_tells():
    """Two kernels of some seconds leave another kind of heat sink possible."""
    card = Card(sink_k_per_w=0.003, sink_s=25.0)
    model = ThermalModel(card.rest(), gpu="NVIDIA H200")
    for load_w, seconds in ((400.0, 5.0), (540.0, 8.0)):
        model.add_run(card.run(load_w, seconds))
    card = Card(sink_k_per_w=0.003, sink_s=25.0, rng=np.random.default_rng(6))
    rest, run = card.rest(), card.run(540.0, 3.0)
    first, second = (
        ThermalModel(rest, known, "NVIDIA H200").settling(run, 8) for known in (None, model.cooling)
    )
    assert second.error_k < 0.8 * first.error_k


@given(
    before_k=st.sampled_from([0.0, 2.0, 13.0]), now_k=st.floats(0.0, 18.0), sink_s=st.floats(6, 25)
)
def test_a_card_that_is_cooled_differently_now_settles_within_the_error(before_k, now_k, sink_s):
    known = remembered(before_k / 700)
    assert known.is_sound
    card = Card(sink_k_per_w=now_k / 700, sink_s=sink_s, air_c=28.0)
    model = ThermalModel(card.rest(), known)
    settling = model.settling(card.run(540.0, 12.0), trials=8)
    off_k = settling.settled_c - card.temperature_c(540.0, 540.0)
    assert abs(off_k) < 3 * settling.error_k


@pytest.mark.parametrize(
    ("name", "begin"),
    [
        ("weights", (-1.0, 2.0)),
        ("means", ((math.nan, 0.0),)),
        ("covariances", ((1.0, 2.0, 1.0),)),
        ("covariances", ((0.0, 0.0, 1.0),)),
    ],
    ids=["negative", "nan", "indefinite", "zero"],
)
def test_what_describes_no_distributions_is_not_sound(name, begin):
    known = remembered(0.022)
    assert known.is_sound
    values = getattr(known, name)
    assert not structs.replace(known, **{name: (*begin, *values[len(begin) :])}).is_sound


def test_what_describes_other_models_is_not_sound():
    known = remembered(0.022)
    assert not structs.replace(known, weights=known.weights[:7]).is_sound
