"""Choosing an option per layer for sums, against trying all choices."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence

import pytest
from hypothesis import given, strategies as st

from pytest_gpuenergy.advice import Cost, fastest, least_energy, least_product, solve, sweep, total

# Small integers make ties and points in a line.
FIGURES = st.one_of(st.integers(1, 6).map(float), st.floats(0.01, 100.0))
LAYERS = st.lists(
    st.lists(st.builds(Cost, FIGURES, FIGURES), min_size=1, max_size=5), min_size=1, max_size=4
)


def all_totals(layers: Sequence[Sequence[Cost]]) -> list[Cost]:
    return [total(layers, choice) for choice in itertools.product(*(range(len(x)) for x in layers))]


@pytest.mark.slow
@given(LAYERS)
def test_the_least_product_of_sums_is_the_least_of_all_choices(layers):
    found = least_product(layers)
    least = min(one.product for one in all_totals(layers))
    assert total(layers, found.choice).product == pytest.approx(least, rel=1e-12)
    assert found.exact


@given(LAYERS, st.floats(0.9, 3.0))
def test_the_least_energy_within_a_time_is_the_least_of_all_that_are_as_fast(layers, factor):
    totals = all_totals(layers)
    most_time = factor * min(one.time for one in totals)
    found = least_energy(layers, most_time)
    # Sums within rounding of the limit may count as either.
    within = [one.energy for one in totals if one.time <= most_time * (1 - 1e-8)]
    allowed = [one.energy for one in totals if one.time <= most_time * (1 + 1e-8)]
    if found is None:
        assert not within
        return
    assert found.exact
    cost = total(layers, found.choice)
    assert cost.time <= most_time * (1 + 1e-8)
    assert min(allowed) * (1 - 1e-12) <= cost.energy
    if within:
        assert cost.energy <= min(within) * (1 + 1e-12)


@pytest.mark.slow
@given(LAYERS)
def test_the_fastest_and_the_most_frugal_choice_are_the_ends_of_the_sweep(layers):
    first, *_, last = [*sweep(layers), *list(sweep(layers))[-1:]]
    quick = total(layers, fastest(layers).choice)
    assert total(layers, first) == quick
    frugal = least_energy(layers)
    assert frugal is not None
    assert total(layers, last).energy == pytest.approx(total(layers, frugal.choice).energy)
    totals = all_totals(layers)
    assert quick.time == pytest.approx(min(one.time for one in totals))
    assert frugal.bound == pytest.approx(min(one.energy for one in totals))


def test_the_product_of_sums_is_no_sum_of_products():
    """Layer by layer, the second one would take its own least product."""
    layers = [[Cost(10.0, 1.0)], [Cost(1.0, 4.0), Cost(3.0, 1.0)]]
    assert least_product(layers).choice == (0, 1)
    assert layers[1][0].product > layers[1][1].product
    heavy = [[Cost(1.0, 10.0)], [Cost(1.0, 4.0), Cost(3.0, 1.0)]]
    assert least_product(heavy).choice == (0, 0)


def test_equal_sums_in_another_order_are_as_fast():
    layers = [[Cost(0.1, 1.0)], [Cost(0.2, 1.0)], [Cost(0.3, 1.0)]]
    assert 0.1 + 0.2 + 0.3 != 0.3 + 0.2 + 0.1
    assert least_energy(layers, 0.3 + 0.2 + 0.1) is not None


def test_a_search_that_is_cut_short_says_how_far_off_it_may_be(monkeypatch):
    rng = random.Random(5)
    layers = [[Cost(rng.uniform(1, 1.5), rng.uniform(1, 2)) for _ in range(12)] for _ in range(12)]
    most_time = 1.05 * total(layers, fastest(layers).choice).time
    exact = least_energy(layers, most_time)
    monkeypatch.setattr(solve, "MAX_STATES", 1)
    short = least_energy(layers, most_time)
    assert exact is not None
    assert short is not None
    assert (exact.exact, short.exact) == (True, False)
    best = total(layers, exact.choice).energy
    assert short.bound <= best <= total(layers, short.choice).energy
    assert total(layers, short.choice).time <= most_time * (1 + 1e-8)
