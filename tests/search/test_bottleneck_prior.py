"""What is expected of a move before it is tried."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from counted import cuda_spec
from hypothesis import given, strategies as st
from msgspec.structs import replace

from pytest_gpuenergy.emulator import DEFAULT_PROFILE
from pytest_gpuenergy.record import Metric
from pytest_gpuenergy.search import (
    Application,
    BottleneckPrior,
    CachePolicyCg,
    CardModel,
    ChangeBlockSizes,
    GraphExplorer,
    Guide,
    KernelSpec,
    Result,
    SearchParameters,
    SoftmaxMathFusion,
    State,
    Tactic,
    improvement,
)

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
    """As measured, if the model were right."""
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


def test_a_move_is_worth_what_its_bottleneck_is() -> None:
    hint = CachePolicyCg()
    assert gain(prior_of(MEMORY), MEMORY, hint) > 5 * gain(prior_of(FUNCTIONS), FUNCTIONS, hint)


def test_what_its_result_saves_by_the_text_counts() -> None:
    prior, state = prior_of(FUNCTIONS), FUNCTIONS.baseline
    better = replace(state, source=state.source.replace("expf", "__expf"))
    worse = replace(state, source=state.source.replace("500", "900"))
    move = SoftmaxMathFusion()
    found = [gain(prior, FUNCTIONS, move, one) for one in (worse, state, better)]
    assert found == sorted(found)
    assert found[2] > found[1] + 0.1


def test_what_cannot_be_counted_is_judged_by_what_the_move_relieves() -> None:
    spec = cuda_spec("float s = 0; while (x[i] > s) s += 1; y[i] = s;")
    prior = prior_of(spec)
    wider = replace(spec.baseline, launch=replace(spec.launch, block=(1024,)))
    assert gain(prior, spec, ChangeBlockSizes(), wider) > 0
    other = replace(spec.baseline, source=spec.source.replace("x[i] > s", "x[i] > 2 * s"))
    assert prior.counted_gain(spec.baseline, result_of(prior, spec.baseline), other) == 0
    unclear = replace(spec.baseline, source="nonsense")
    assert gain(prior, spec, CachePolicyCg(), unclear) >= 0


def test_nothing_is_expected_where_nothing_is_known() -> None:
    spec = cuda_spec("goto end; end: y[i] = x[i];")
    prior, move = prior_of(spec), CachePolicyCg()
    state = spec.baseline
    result = Result(id=state.id, outcome="correct", emulated=True, objective=Metric.TIME, time_ms=1)
    assert prior.gain(state, result, move, Application(move.name, "", state)) is None
    failed = replace(result_of(prior_of(MEMORY), MEMORY.baseline), time_ms=None)
    application = Application(move.name, "", MEMORY.baseline)
    assert prior_of(MEMORY).gain(MEMORY.baseline, failed, move, application) is None


def test_under_a_power_limit_saving_energy_counts_for_more() -> None:
    """A move that makes a kernel wait less, and one that has it move less, under either limit."""
    loop = "for (int k = 0; k < 900; ++k) s = s * s + x[(i + k * 999) % n];"
    barriers = "for (int k = 0; k < 60; ++k) __syncthreads();"
    body = f"float s = x[i]; {loop} {barriers} y[i] = s;"
    spec = cuda_spec(body, block=256, sizes=({"N": 1 << 20},))
    state, move = spec.baseline, ChangeBlockSizes()
    leaner = replace(state, source=state.source.replace("x[(i + k * 999) % n]", "x[i]"))
    waits_less = replace(state, source=state.source.replace("k < 60", "k < 1"))
    free, held = (prior_of(spec, limit_w=limit_w) for limit_w in (10_000.0, 200.0))
    shares = [
        gain(one, spec, move, leaner) / gain(one, spec, move, waits_less) for one in (free, held)
    ]
    assert shares[1] > 1.2 * shares[0]


def test_a_profile_changes_what_is_expected() -> None:
    prior, hint = prior_of(FUNCTIONS), CachePolicyCg()
    before = gain(prior, FUNCTIONS, hint)
    prior.profiled(FUNCTIONS.baseline, {"gmem": 0.95, "sfu": 0.01})
    assert gain(prior, FUNCTIONS, hint) > before


class TestTactics:
    def with_tactic(self, **fields: Any) -> float:
        tactic = {"count": 50, "mean": 0.4, "spread": 0.1, "failures": 0, **fields}
        known = Tactic("cuda", "cache_policy_cg", "overlap", **tactic)
        return gain(prior_of(MEMORY, tactics=[known]), MEMORY, CachePolicyCg())

    def test_moves_that_helped_elsewhere_are_expected_to_help(self) -> None:
        alone = gain(prior_of(MEMORY), MEMORY, CachePolicyCg())
        assert self.with_tactic(mean=-0.4) < alone < self.with_tactic(mean=0.4)

    def test_more_observations_count_for_more(self) -> None:
        assert self.with_tactic(count=2) < self.with_tactic(count=50)

    def test_moves_that_failed_elsewhere_are_expected_to_fail(self) -> None:
        assert self.with_tactic(failures=100) < 0.5 * self.with_tactic()

    def test_other_bottlenecks_and_languages_say_nothing(self) -> None:
        alone = gain(prior_of(MEMORY), MEMORY, CachePolicyCg())
        others = [
            Tactic("cuda", "cache_policy_cg", "sfu", 50, 1.0, 0.1),
            Tactic("triton", "cache_policy_cg", "overlap", 50, 1.0, 0.1),
        ]
        prior = prior_of(MEMORY, tactics=others)
        assert gain(prior, MEMORY, CachePolicyCg()) == alone


@given(st.floats(-3, 3), st.floats(0, 3))
def test_an_improvement_is_never_less_than_the_mean_or_nothing(mean: float, spread: float) -> None:
    found = improvement(mean, spread)
    assert found >= max(0.0, mean) - 1e-9
    assert found <= max(0.0, mean) + spread
    assert math.isfinite(found)


def test_what_is_not_unlikely_to_gain_enough_is_tried() -> None:
    least = -math.log1p(-0.02)
    source = FUNCTIONS.source.replace("k < 500", "k < 700")
    worse = replace(FUNCTIONS.baseline, source=source)
    found = gain(prior_of(FUNCTIONS), FUNCTIONS, SoftmaxMathFusion(), worse)
    assert found == pytest.approx(least)
    assert 1 - math.exp(-found) >= 0.02
    certain = prior_of(FUNCTIONS, pred_gain_spread=0)
    assert gain(certain, FUNCTIONS, SoftmaxMathFusion(), worse) == 0


def test_what_is_predicted_to_gain_too_little_is_not_tried() -> None:
    prior = prior_of(FUNCTIONS)
    tried = []
    for least in (0.0, 0.02):
        explorer = GraphExplorer(
            FUNCTIONS,
            [CachePolicyCg()],
            seed=0,
            parameters=SearchParameters(min_pred_gain=least),
            guide=Guide(prior, Path),
        )
        explorer.learn(FUNCTIONS.baseline, result_of(prior, FUNCTIONS.baseline))
        tried.append(explorer.propose() is not None)
    assert tried == [True, False]


@pytest.mark.parametrize(("gain", "tried"), [(0.0201, False), (0.0203, True)])
def test_the_least_gain_is_a_fraction_of_the_cost(
    gain: float, tried: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    prior = prior_of(MEMORY)
    monkeypatch.setattr(prior, "gain", lambda *_: gain)
    explorer = GraphExplorer(MEMORY, [CachePolicyCg()], seed=0, guide=Guide(prior, Path))
    explorer.learn(MEMORY.baseline, result_of(prior, MEMORY.baseline))
    assert (explorer.propose() is not None) == tried
