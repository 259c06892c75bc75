"""False winners of a search, and true ones that it finds, by simulation."""

from __future__ import annotations

import false_winners as bench
import numpy as np
import pytest

from pytest_gpuenergy.record.metrics import Metric


def claims(
    noise: bench.Noise, *, gain: float = 0.0, candidates: int = 20, runs: int = 400
) -> bench.Claims:
    rng = np.random.default_rng(3)
    return bench.simulate(rng, noise, candidates=candidates, rounds=10, gain=gain, runs=runs)


@pytest.mark.parametrize("metric", [Metric.TIME, Metric.EDP])
def test_rounds_cure_the_luck_of_the_best(metric: Metric) -> None:
    found = claims(bench.Noise.of(metric, drift=0.001))
    assert found.searched > 0.15
    assert found.alternately < 0.05
    assert found.widened < 0.01
    assert found.right == 0


@pytest.mark.parametrize("heavy_tails", [False, True])
def test_only_an_interval_that_allows_for_it_holds_where_deviations_last(
    heavy_tails: bool,
) -> None:
    noise = bench.Noise.of(Metric.TIME, drift=0.001, lasting=True, heavy_tails=heavy_tails)
    found = claims(noise)
    assert found.alternately > 0.1
    assert found.widened < 0.05


@pytest.mark.parametrize(("gain", "least"), [(0.02, 0.4), (0.05, 0.99)])
def test_true_gains_are_found(gain: float, least: float) -> None:
    noise = bench.Noise.of(Metric.EDP, drift=0.001, lasting=True)
    found = claims(noise, gain=gain)
    assert found.right >= least
    assert found.right <= found.widened <= found.alternately + 0.05


def test_without_noise_nothing_false_is_claimed() -> None:
    quiet = bench.Noise(0.0, 1e-9, 0.0, 1e-9, 0.0)
    assert claims(quiet, runs=20).widened <= 0.1
    assert claims(quiet, gain=0.001, runs=20).right == 1


def test_the_command_prints_a_row_for_each_case(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--runs", "5", "--candidates", "3", "--gains", "0,5", "--rounds", "4"]
    assert bench.main(words) == 0
    rows = capsys.readouterr().out.splitlines()[2:]
    assert len(rows) == 2 * 2 * 2
    assert rows[0].startswith("| time | differs between loadings | 3 | 0% | ")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--rounds", "1"], "needs --runs of at least 1 and --rounds of at least 2"),
        (["--candidates", "0"], "--candidates '0' are no numbers from 1 on"),
        (["--gains", "some"], "--gains 'some' are no numbers from 0 on"),
    ],
)
def test_a_wrong_option_is_one_sentence(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench.main(words) == 2
    assert said in capsys.readouterr().err
