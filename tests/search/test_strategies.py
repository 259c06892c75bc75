"""Search strategies, and the parameters of a search."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict

import pytest
from hypothesis import given, strategies as st
from spaces import DrawnSpace, drawn_spaces, grid, run

from pytest_gpuenergy.search import (
    Exhaustive,
    GraphStrategy,
    HillClimbing,
    Incumbent,
    Proposal,
    RandomExpansion,
    RandomSearch,
    SearchParameters,
    SearchStrategy,
)
from pytest_gpuenergy.support import InputError

Make = Callable[[DrawnSpace, int], SearchStrategy]
MAKERS: dict[str, Make] = {
    "graph": lambda space, seed: GraphStrategy(space, seed=seed),
    "random": lambda space, seed: RandomSearch(space, seed=seed),
    "expansion": lambda space, seed: RandomExpansion(space, seed=seed),
    "first": lambda space, seed: HillClimbing(space, seed=seed),
    "steepest": lambda space, seed: HillClimbing(space, improvement="steepest", seed=seed),
    "list": lambda space, seed: Exhaustive(space, space.states),  # noqa: ARG005
}
each = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS.keys())


@each
@given(space=drawn_spaces(), seed=st.integers(0, 3))
def test_no_state_is_proposed_twice_and_the_root_comes_first(make, space, seed):
    found = run(make(space, seed), space)
    assert len(found) == len(set(found))
    assert found[0] == space.root


@each
@given(space=drawn_spaces(), seed=st.integers(0, 3))
def test_the_incumbent_is_the_best_and_the_earliest_among_equals(make, space, seed):
    strategy = make(space, seed)
    costs = [(space.costs[int(s[1:])], place, s) for place, s in enumerate(run(strategy, space))]
    cost, _, state = min((cost, place, s) for cost, place, s in costs if cost is not None)
    assert strategy.incumbent == Incumbent(state, cost)


@each
def test_a_search_is_the_same_for_the_same_seed(make):
    space = grid(4, 5)
    assert run(make(space, 7), space) == run(make(space, 7), space)


@each
def test_a_connected_space_is_searched_completely(make):
    space = grid(4, 5)
    assert sorted(run(make(space, 1), space)) == sorted(space.states)


@each
def test_nothing_else_is_proposed_while_the_root_is_running(make):
    strategy = make(grid(2, 2), 0)
    assert strategy.propose() == Proposal("s0")
    assert strategy.propose() is None
    assert strategy.incumbent is None
    strategy.learn(Proposal("s0"), 1.0)
    assert strategy.propose() is not None


@each
def test_a_root_that_fails_leaves_no_incumbent(make):
    space = DrawnSpace([[]], [None])
    strategy = make(space, 0)
    run(strategy, space)
    assert strategy.incumbent is None


@pytest.mark.parametrize("make", [MAKERS["random"], MAKERS["first"], MAKERS["steepest"]])
def test_listed_states_are_found_where_no_action_leads(make):
    space = DrawnSpace([[], [], []], [1.0, None, 0.5])
    assert sorted(run(make(space, 0), space)) == ["s0", "s1", "s2"]


def test_steepest_ascent_looks_at_all_neighbours_and_first_at_as_few_as_needed():
    # s1 and s2 are better than s0, s2 is the best neighbour; what is beyond differs.
    space = DrawnSpace([[1, 2], [3], [4], [], []], [1.0, 0.9, 0.8, 0.7, 0.6])
    for seed in range(5):
        steepest = HillClimbing(space, improvement="steepest", seed=seed)
        assert run(steepest, space, 4)[3] == "s4"
        first = run(HillClimbing(space, seed=seed), space, 3)
        assert first in (["s0", "s1", "s3"], ["s0", "s2", "s4"])


def test_hill_climbing_waits_for_what_it_needs_to_know():
    space = DrawnSpace([[1], []], [1.0, 0.5])
    strategy = HillClimbing(space)
    run(strategy, space, 1)
    assert strategy.propose() == Proposal("s1", ("s0",), "to 1")
    assert strategy.propose() is None


def test_a_list_may_be_a_part_of_the_space():
    space = grid(3, 3)
    assert run(Exhaustive(space, ["s3", "s6"]), space) == ["s0", "s3", "s6"]


def test_random_expansion_reaches_only_what_good_states_lead_to():
    space = DrawnSpace([[1, 2], [3], [4], [], []], [1.0, None, 1.0, 1.0, 1.0])
    assert sorted(run(RandomExpansion(space), space)) == ["s0", "s1", "s2", "s4"]


NAMES = sorted(asdict(SearchParameters()))


def test_names_may_be_in_upper_case_and_values_text():
    found = SearchParameters.of([("PUCT_C", "1.5"), ("root_noise_eps", 0)])
    assert (found.puct_c, found.root_noise_eps) == (1.5, 0)
    assert found.min_pred_gain == 0.02


def test_stored_parameters_are_read_back():
    chosen = SearchParameters(puct_c=2, failure_value=-3)
    assert SearchParameters.of(asdict(chosen).items()) == chosen


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"puct": "1"}, "There is no search parameter 'puct': choose from BEST_SHARE, "),
        ({"PUCT_C": "1", "puct_c": "2"}, "PUCT_C is given twice: give it once."),
        ({"PUCT_C": "much"}, "PUCT_C needs a number from 0 to 100, not 'much'."),
        ({"ROOT_NOISE_EPS": "1.1"}, "ROOT_NOISE_EPS needs a number from 0 to 1, not 1.1."),
        ({"FAILURE_VALUE": "1"}, "FAILURE_VALUE needs a number from -20 to 0, not 1.0."),
    ],
)
def test_a_wrong_setting_is_one_sentence(values, said):
    with pytest.raises(InputError) as caught:
        SearchParameters.of(values.items())
    assert said in str(caught.value)
    assert str(caught.value).count(". ") == 0


@given(st.sampled_from(NAMES), st.sampled_from([float("nan"), float("inf"), -1e9, 1e9]))
def test_values_out_of_bounds_are_refused(name, value):
    with pytest.raises(InputError, match=name.upper()):
        SearchParameters.of([(name, value)])


@pytest.mark.parametrize("value", [None, True, "1"])
def test_what_is_no_number_is_refused(value):
    with pytest.raises(InputError, match="PUCT_C"):
        SearchParameters(puct_c=value)  # type: ignore[arg-type]
