"""The regions that time and energy are spent on, and the gains predicted from them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
from counted import cuda_spec
from hypothesis import given, strategies as st
from move_checks import move_named
from msgspec.structs import replace

from pytest_gpuenergy.emulator import DEFAULT_PROFILE, PROFILES, unlimited_power_w
from pytest_gpuenergy.opening import open_device
from pytest_gpuenergy.record import METRICS, Metric
from pytest_gpuenergy.search import (
    REGIONS,
    Application,
    BottleneckPrior,
    CardModel,
    GraphExplorer,
    KernelSpec,
    KernelWork,
    LaunchCosts,
    Result,
    SearchParameters,
    Situation,
    State,
    Tactic,
    improvement,
)

CARD = CardModel(DEFAULT_PROFILE, 700.0)
AMOUNTS = st.floats(0, 1e6)
WORKS = st.builds(
    KernelWork,
    blocks=st.integers(1, 100_000),
    threads=st.integers(1, 1024),
    instructions=AMOUNTS,
    functions=AMOUNTS,
    sectors=AMOUNTS,
    l2_bytes=AMOUNTS,
    wavefronts=AMOUNTS,
    atomics=AMOUNTS,
    rounds=AMOUNTS,
    barriers=AMOUNTS,
)


def costs(work: KernelWork, dram_bytes: float = 0.0) -> LaunchCosts:
    found = CARD.costs(work, dram_bytes)
    assert found is not None
    return found


def situation(work: KernelWork, time_s: float | None = None, card: CardModel = CARD) -> Situation:
    found = costs(work)
    return card.situation(found, time_s or found.time_s)


def busy(**amounts: float) -> KernelWork:
    """Return the work of a launch of 1320 blocks that keeps some units busy."""
    return KernelWork(1320, 256, **amounts)  # type: ignore[arg-type]


@given(st.dictionaries(st.sampled_from(REGIONS), st.floats(0, 2)), st.floats(1e-3, 1))
def test_shares_of_time_add_up_to_one(busy_s, time_s):
    busy_s.pop("overlap", None)
    shares = Situation(time_s, LaunchCosts(busy_s, 0.0, {}, 1), 0.0, False, 0.0).time_shares
    assert set(shares) == set(REGIONS)
    assert all(share >= 0 for share in shares.values())
    assert math.fsum(shares.values()) == pytest.approx(1)


@pytest.mark.parametrize(
    ("amounts", "region"),
    [
        ({"instructions": 1e5}, "compute"),
        ({"tensor_flops": 1e9}, "compute"),
        ({"sectors": 1e5}, "gmem"),
        ({"l2_bytes": 1e6}, "gmem"),
        ({"functions": 1e6}, "sfu"),
        ({"atomics": 1e5, "places": 1e9}, "atomics"),
        ({"atomics": 10.0, "places": 1.0}, "atomics"),
        ({"wavefronts": 1e5}, "smem"),
        ({"rounds": 100.0}, "overlap"),
        ({"barriers": 100.0}, "overlap"),
    ],
)
def test_what_a_kernel_does_most_is_its_bottleneck(amounts, region):
    assert situation(busy(**amounts)).bottleneck == region


def test_device_memory_counts_as_memory():
    found = costs(busy(), dram_bytes=1e9)
    assert CARD.situation(found, found.time_s).bottleneck == "gmem"


def test_what_is_slower_than_the_model_waits():
    work = busy(instructions=1e5)
    assert situation(work, costs(work).time_s).bottleneck == "compute"
    assert situation(work, 10 * costs(work).time_s).bottleneck == "overlap"


def test_a_launch_of_which_no_block_fits_has_no_costs():
    assert CARD.costs(KernelWork(1, 128, shared_bytes=1 << 20), 0.0) is None


def test_energy_goes_to_what_moves_and_computes():
    computes, moves = (
        situation(busy(**some)) for some in ({"instructions": 1e5}, {"l2_bytes": 1e6})
    )
    assert computes.energy_shares["compute"] == 1
    assert moves.energy_shares["gmem"] == 1
    assert situation(busy()).energy_shares == dict.fromkeys(REGIONS, 0.0)


@given(st.floats(0, 100))
def test_power_is_between_that_of_an_idle_card_and_its_limit(activity):
    assert (
        DEFAULT_PROFILE.idle_w
        <= unlimited_power_w(activity, DEFAULT_PROFILE)
        <= DEFAULT_PROFILE.default_limit_w
    )


@given(WORKS, st.floats(1e-7, 1), st.sampled_from(METRICS))
def test_what_does_not_change_gains_nothing(work, time_s, metric):
    same = costs(work)
    assert CARD.situation(same, time_s).predicted_saving(same, same, metric) == pytest.approx(
        0, abs=1e-9
    )
    assert same.changed(same) == frozenset()


@given(WORKS, WORKS, st.sampled_from(METRICS))
def test_gains_are_finite(one, two, metric):
    before = costs(one)
    assert abs(CARD.situation(before, 1e-3).predicted_saving(before, costs(two), metric)) <= 3


def test_work_that_vanishes_gains_no_more_than_is_believed():
    before = busy(instructions=1e5)
    found = costs(before)
    assert situation(before, 1e-5).predicted_saving(found, costs(busy()), Metric.EDP) == 3


def saved_gain(
    before: KernelWork, after: KernelWork, metric: Metric, *, limit_w: float = 700.0
) -> float:
    card = CardModel(DEFAULT_PROFILE, limit_w)
    return situation(before, card=card).predicted_saving(costs(before), costs(after), metric)


def test_only_what_is_the_bottleneck_gains_time():
    before = busy(instructions=1e5, sectors=1e4)
    assert saved_gain(before, busy(instructions=5e4, sectors=1e4), Metric.TIME) > 0.3
    assert saved_gain(before, busy(instructions=1e5, sectors=5e3), Metric.TIME) < 0.01


def test_less_traffic_saves_energy_though_it_saves_no_time():
    before, after = (busy(instructions=1e5, l2_bytes=some) for some in (1e5, 1e4))
    assert saved_gain(before, after, Metric.TIME) < 0.01
    assert saved_gain(before, after, Metric.ENERGY) > 0.05
    assert saved_gain(before, after, Metric.EDP) > 0.05


def test_at_the_power_limit_less_traffic_saves_time():
    before, after = (busy(instructions=1e5, l2_bytes=some) for some in (1e5, 1e4))
    assert situation(before, card=CardModel(DEFAULT_PROFILE, 200.0)).limited
    assert saved_gain(before, after, Metric.TIME, limit_w=200.0) > 0.05
    assert saved_gain(before, after, Metric.EDP, limit_w=200.0) == pytest.approx(
        2 * saved_gain(before, after, Metric.TIME, limit_w=200.0)
    )


def test_at_the_power_limit_waiting_less_saves_nothing():
    before, after = (busy(instructions=1e5, barriers=some) for some in (500.0, 5.0))
    assert saved_gain(before, after, Metric.TIME) > 0.05
    assert saved_gain(before, after, Metric.TIME, limit_w=200.0) == pytest.approx(0, abs=1e-9)


def test_a_measured_power_tells_whether_the_limit_binds():
    found = costs(busy(instructions=1e5))
    assert CARD.situation(found, 1e-3, measured_w=699.0).limited
    assert not CARD.situation(found, 1e-3, measured_w=400.0).limited
    assert not CardModel(DEFAULT_PROFILE).situation(found, 1e-3, measured_w=699.0).limited


def test_a_profile_takes_the_place_of_the_estimate():
    found = costs(busy(instructions=1e5))
    profiled = CARD.situation(found, 1e-3, used={"compute": 0.1, "smem": 0.8})
    assert profiled.bottleneck == "smem"
    assert profiled.time_shares["overlap"] == pytest.approx(0.2)


def test_a_move_can_change_what_it_relieves_and_no_more_than_the_contract_leaves():
    found = situation(busy(instructions=1e5))
    all_of_it = dict.fromkeys(REGIONS, 1.0)
    most = found.involvement(["compute"], all_of_it, Metric.TIME)
    assert most == pytest.approx(found.time_shares["compute"])
    assert found.involvement(["atomics"], all_of_it, Metric.TIME) == 0
    half = {**all_of_it, "compute": 0.5}
    assert found.involvement(["compute"], half, Metric.TIME) == pytest.approx(most / 2)
    assert found.involvement(REGIONS, all_of_it, Metric.EDP) > most


def test_a_move_that_changes_a_unit_is_seen():
    before = costs(busy(instructions=1e5, serial=1e4))
    after = costs(busy(instructions=5e4, serial=5e3, functions=1e6))
    assert before.changed(after) == {"compute", "sfu", "overlap"}


def test_a_card_is_known_by_its_name_or_taken_for_a_similar_one():
    with open_device("emulated:a100") as device:
        assert CardModel.of(device).profile == PROFILES["a100"]
        assert CardModel.of(device).limit_w == 400
        device.name = "NVIDIA A800"
        assert CardModel.of(device).profile.architecture == "sm_80"
        device.architecture = "sm_999"
        assert CardModel.of(device).profile == DEFAULT_PROFILE


MEMORY = cuda_spec("float s = 0; for (int k = 0; k < 8; ++k) s += x[(i * 8 + k) % n]; y[i] = s;")
FUNCTIONS = cuda_spec("float s = x[i]; for (int k = 0; k < 500; ++k) s = expf(s); y[i] = s;")


def prior_of(
    spec: KernelSpec,
    *,
    limit_w: float = 700.0,
    objective: Metric = Metric.TIME,
    tactics: Sequence[Tactic] = (),
    **parameters: Any,
) -> BottleneckPrior:
    card = CardModel(DEFAULT_PROFILE, limit_w)
    return BottleneckPrior(spec, card, objective, SearchParameters(**parameters), tactics)


def result_of(prior: BottleneckPrior, state: State, **fields: Any) -> Result:
    """Return the result of a state as if the model were exact."""
    costs = prior.costs(state)
    assert costs is not None
    figures = {"time_ms": costs.time_s * 1e3, **fields}
    return Result(id=state.id, outcome="correct", emulated=True, objective=Metric.TIME, **figures)


def gain(prior: BottleneckPrior, spec: KernelSpec, move: Any, after: State | None = None) -> float:
    state = spec.baseline
    found = prior.gain(
        state, result_of(prior, state), move, Application(move.name, "", after or state)
    )
    assert found is not None
    return found


def test_a_move_is_worth_what_its_bottleneck_is():
    hint = move_named("cache_policy_cg")
    assert gain(prior_of(MEMORY), MEMORY, hint) > 5 * gain(prior_of(FUNCTIONS), FUNCTIONS, hint)


def test_what_its_result_saves_by_the_text_counts():
    prior, state = prior_of(FUNCTIONS), FUNCTIONS.baseline
    better = replace(state, source=state.source.replace("expf", "__expf"))
    worse = replace(state, source=state.source.replace("500", "900"))
    move = move_named("softmax_math_fusion")
    found = [gain(prior, FUNCTIONS, move, one) for one in (worse, state, better)]
    assert found == sorted(found)
    assert found[2] > found[1] + 0.1


def test_what_cannot_be_counted_is_judged_by_what_the_move_relieves():
    spec = cuda_spec("float s = 0; while (x[i] > s) s += 1; y[i] = s;")
    prior = prior_of(spec)
    wider = replace(spec.baseline, launch=replace(spec.launch, block=(1024,)))
    assert gain(prior, spec, move_named("change_block_sizes"), wider) > 0
    other = replace(spec.baseline, source=spec.source.replace("x[i] > s", "x[i] > 2 * s"))
    assert prior.counted_gain(spec.baseline, result_of(prior, spec.baseline), other) == 0
    unclear = replace(spec.baseline, source="nonsense")
    assert gain(prior, spec, move_named("cache_policy_cg"), unclear) >= 0


def test_nothing_is_expected_where_nothing_is_known():
    spec = cuda_spec("goto end; end: y[i] = x[i];")
    prior, move = prior_of(spec), move_named("cache_policy_cg")
    state = spec.baseline
    result = Result(id=state.id, outcome="correct", emulated=True, objective=Metric.TIME, time_ms=1)
    assert prior.gain(state, result, move, Application(move.name, "", state)) is None
    failed = replace(result_of(prior_of(MEMORY), MEMORY.baseline), time_ms=None)
    application = Application(move.name, "", MEMORY.baseline)
    assert prior_of(MEMORY).gain(MEMORY.baseline, failed, move, application) is None


def test_under_a_power_limit_saving_energy_counts_for_more():
    """A move that makes a kernel wait less, and one that has it move less, under either limit."""
    loop = "for (int k = 0; k < 900; ++k) s = s * s + x[(i + k * 999) % n];"
    barriers = "for (int k = 0; k < 60; ++k) __syncthreads();"
    body = f"float s = x[i]; {loop} {barriers} y[i] = s;"
    spec = cuda_spec(body, block=256, sizes=({"N": 1 << 20},))
    state, move = spec.baseline, move_named("change_block_sizes")
    leaner = replace(state, source=state.source.replace("x[(i + k * 999) % n]", "x[i]"))
    waits_less = replace(state, source=state.source.replace("k < 60", "k < 1"))
    free, held = (prior_of(spec, limit_w=limit_w) for limit_w in (10_000.0, 200.0))
    shares = [
        gain(one, spec, move, leaner) / gain(one, spec, move, waits_less) for one in (free, held)
    ]
    assert shares[1] > 1.2 * shares[0]


def test_a_profile_changes_what_is_expected():
    prior, hint = prior_of(FUNCTIONS), move_named("cache_policy_cg")
    before = gain(prior, FUNCTIONS, hint)
    prior.profiled(FUNCTIONS.baseline, {"gmem": 0.95, "sfu": 0.01})
    assert gain(prior, FUNCTIONS, hint) > before


class TestTactics:
    def with_tactic(self, **fields: Any) -> float:
        tactic = {"count": 50, "mean": 0.4, "spread": 0.1, "failures": 0, **fields}
        known = Tactic("cuda", "cache_policy_cg", "overlap", **tactic)
        return gain(prior_of(MEMORY, tactics=[known]), MEMORY, move_named("cache_policy_cg"))

    def test_moves_that_helped_elsewhere_are_expected_to_help(self):
        alone = gain(prior_of(MEMORY), MEMORY, move_named("cache_policy_cg"))
        assert self.with_tactic(mean=-0.4) < alone < self.with_tactic(mean=0.4)

    def test_more_observations_count_for_more(self):
        assert self.with_tactic(count=2) < self.with_tactic(count=50)

    def test_moves_that_failed_elsewhere_are_expected_to_fail(self):
        assert self.with_tactic(failures=100) < 0.5 * self.with_tactic()

    def test_other_bottlenecks_and_languages_say_nothing(self):
        alone = gain(prior_of(MEMORY), MEMORY, move_named("cache_policy_cg"))
        others = [
            Tactic("cuda", "cache_policy_cg", "sfu", 50, 1.0, 0.1),
            Tactic("triton", "cache_policy_cg", "overlap", 50, 1.0, 0.1),
        ]
        prior = prior_of(MEMORY, tactics=others)
        assert gain(prior, MEMORY, move_named("cache_policy_cg")) == alone


@given(st.floats(-3, 3), st.floats(0, 3))
def test_an_improvement_is_never_less_than_the_mean_or_nothing(mean, spread):
    found = improvement(mean, spread)
    assert found >= max(0.0, mean) - 1e-9
    assert found <= max(0.0, mean) + spread
    assert math.isfinite(found)


def test_what_is_not_unlikely_to_gain_enough_is_tried():
    least = -math.log1p(-0.02)
    source = FUNCTIONS.source.replace("k < 500", "k < 700")
    worse = replace(FUNCTIONS.baseline, source=source)
    found = gain(prior_of(FUNCTIONS), FUNCTIONS, move_named("softmax_math_fusion"), worse)
    assert found == pytest.approx(least)
    assert 1 - math.exp(-found) >= 0.02
    certain = prior_of(FUNCTIONS, pred_gain_spread=0)
    assert gain(certain, FUNCTIONS, move_named("softmax_math_fusion"), worse) == 0


def test_what_is_predicted_to_gain_too_little_is_not_tried():
    prior = prior_of(FUNCTIONS)
    tried = []
    for least in (0.0, 0.02):
        explorer = GraphExplorer(
            FUNCTIONS,
            [move_named("cache_policy_cg")],
            seed=0,
            parameters=SearchParameters(min_pred_gain=least),
            prior=prior,
        )
        explorer.learn(FUNCTIONS.baseline, result_of(prior, FUNCTIONS.baseline))
        tried.append(explorer.propose() is not None)
    assert tried == [True, False]


@pytest.mark.parametrize(("gain", "tried"), [(0.0201, False), (0.0203, True)])
def test_the_least_gain_is_a_fraction_of_the_cost(gain, tried, monkeypatch):
    prior = prior_of(MEMORY)
    monkeypatch.setattr(prior, "gain", lambda *_: gain)
    explorer = GraphExplorer(MEMORY, [move_named("cache_policy_cg")], seed=0, prior=prior)
    explorer.learn(MEMORY.baseline, result_of(prior, MEMORY.baseline))
    assert (explorer.propose() is not None) == tried
