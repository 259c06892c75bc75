"""What the search proposes, and the parameters of a search."""

from __future__ import annotations

from dataclasses import asdict

import pytest
from hypothesis import given, strategies as st
from spaces import DrawnSpace, drawn_spaces, grid, run

from pytest_gpuenergy.search import GraphStrategy, Incumbent, Proposal, SearchParameters
from pytest_gpuenergy.support import InputError


@given(space=drawn_spaces(), seed=st.integers(0, 3))
def test_no_state_is_proposed_twice_and_the_root_comes_first(space, seed):
    found = run(GraphStrategy(space, seed=seed), space)
    assert len(found) == len(set(found))
    assert found[0] == space.root


@given(space=drawn_spaces(), seed=st.integers(0, 3))
def test_the_incumbent_is_the_best_and_the_earliest_among_equals(space, seed):
    strategy = GraphStrategy(space, seed=seed)
    costs = [(space.costs[int(s[1:])], place, s) for place, s in enumerate(run(strategy, space))]
    cost, _, state = min((cost, place, s) for cost, place, s in costs if cost is not None)
    assert strategy.incumbent == Incumbent(state, cost)


def test_a_search_is_the_same_for_the_same_seed():
    space = grid(4, 5)
    assert run(GraphStrategy(space, seed=7), space) == run(GraphStrategy(space, seed=7), space)


def test_a_connected_space_is_searched_completely():
    space = grid(4, 5)
    assert sorted(run(GraphStrategy(space, seed=1), space)) == sorted(space.states)


def test_nothing_else_is_proposed_while_the_root_is_running():
    strategy = GraphStrategy(grid(2, 2))
    assert strategy.propose() == Proposal("s0")
    assert strategy.propose() is None
    assert strategy.incumbent is None
    strategy.learn(Proposal("s0"), 1.0)
    assert strategy.propose() is not None


def test_a_root_that_fails_leaves_no_incumbent():
    space = DrawnSpace([[]], [None])
    strategy = GraphStrategy(space)
    run(strategy, space)
    assert strategy.incumbent is None


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
