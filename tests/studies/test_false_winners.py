"""False winners of a search, and true ones that it finds, by simulation."""

from __future__ import annotations

import false_winners as bench
import numpy as np
import pytest
from points import each_once

from pytest_gpuenergy.record import METRICS, Estimate, Metric
from pytest_gpuenergy.search import proven_change


def claims(
    noise: bench.Noise,
    metric: Metric,
    *,
    gain: float = 0.0,
    candidates: int = 20,
    runs: int = 400,
) -> bench.Claims:
    rng = np.random.default_rng(3)
    return bench.simulate(rng, noise, metric, candidates=candidates, rounds=6, gain=gain, runs=runs)


@pytest.mark.slow
@pytest.mark.parametrize("metric", METRICS)
def test_rounds_cure_the_luck_of_the_best(metric):
    found = claims(bench.Noise.of(metric, drift=0.001), metric)
    assert found.searched > 0.15
    assert found.alternately < 0.12
    assert found.claimed == found.false < 0.01


@pytest.mark.slow
@pytest.mark.parametrize(("metric", "heavy_tails"), each_once(METRICS, [False, True]))
def test_claims_hold_where_deviations_last_and_the_search_selects_by_them(metric, heavy_tails):
    noise = bench.Noise.of(metric, drift=0.001, lasting=True, heavy_tails=heavy_tails)
    found = claims(noise, metric, candidates=50)
    assert found.alternately > 0.4
    assert found.false < 0.05
    assert found.holds > 0.95


@pytest.mark.slow
def test_an_interval_that_ignores_the_selection_does_not_hold(monkeypatch):
    def ignoring(ratios: list[float], lasting_sd: float, *, candidates: int) -> Estimate:
        del candidates
        return proven_change(ratios, lasting_sd)

    noise = bench.Noise.of(Metric.EDP, drift=0.001, lasting=True)
    allowing = claims(noise, Metric.EDP, candidates=200)
    monkeypatch.setattr(bench, "proven_change", ignoring)
    assert allowing.holds > claims(noise, Metric.EDP, candidates=200).holds


@pytest.mark.slow
@pytest.mark.parametrize(("gain", "least"), [(0.02, 0.2), (0.05, 0.99)])
def test_true_gains_are_found(gain, least):
    noise = bench.Noise.of(Metric.EDP, drift=0.001, lasting=True)
    found = claims(noise, Metric.EDP, gain=gain)
    assert least <= found.found <= found.claimed <= found.alternately


@pytest.mark.slow
@pytest.mark.parametrize(("gain", "most_lost"), [(0.0, 0.0), (0.03, 0.05)])
def test_ending_early_spares_rounds_and_loses_few_gains(gain, most_lost):
    noise = bench.Noise.of(Metric.EDP, drift=0.001)
    found = claims(noise, Metric.EDP, gain=gain, candidates=50)
    assert found.lost <= most_lost
    assert found.false < 0.01
    assert found.rounds <= found.all_rounds
    if not gain:
        assert found.rounds < 9 < found.all_rounds == 18


def test_the_smallest_gain_that_is_found_is_found_and_less_is_not():
    noise = bench.Noise.of(Metric.TIME, drift=0.001)
    smallest = bench.smallest_gain(3, noise, Metric.TIME, candidates=5, rounds=6, runs=100)
    assert claims(noise, Metric.TIME, gain=smallest, candidates=5, runs=100).found >= bench.FOUND
    less = claims(noise, Metric.TIME, gain=smallest - 0.001, candidates=5, runs=100)
    assert less.found < bench.FOUND


def test_the_command_prints_a_row_for_each_case(capsys):
    words = ["--runs", "5", "--candidates", "3", "--gains", "0,5", "--rounds", "4"]
    assert bench.main(words) == 0
    rows = capsys.readouterr().out.splitlines()[2:]
    assert len(rows) == 3 * 2 * 2
    assert rows[0].startswith("| time | differs between loadings | 3 | 0.0% | ")
