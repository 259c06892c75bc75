"""Monte Carlo Graph Search: what it proposes, what it learns, and what it remembers."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, strategies as st
from spaces import DrawnSpace, drawn_spaces, grid, run, run_in_parallel

from pytest_gpuenergy.search import (
    Experience,
    GraphEdge,
    GraphNode,
    GraphStrategy,
    SearchParameters,
)

SEEDS = st.integers(0, 5)
WORKERS = st.integers(1, 4)


@given(drawn_spaces(), WORKERS, SEEDS)
def test_everything_reachable_is_proposed_once_and_then_the_search_ends(space, workers, seed):
    found = run_in_parallel(GraphStrategy(space, seed=seed), space, workers, seed)
    assert sorted(found) == sorted(space.reachable())
    assert found[0] == space.root


@given(drawn_spaces(), WORKERS, SEEDS)
def test_visits_are_conserved_and_nothing_stays_in_flight(space, workers, seed):
    explorer = GraphStrategy(space, seed=seed)
    proposals = len(run_in_parallel(explorer, space, workers, seed))
    nodes = explorer.graph.nodes
    assert nodes[space.root].visits == proposals
    for state, node in nodes.items():
        edges = node.edges or []
        assert node.running == 0
        assert all(edge.running == 0 for edge in edges)
        assert node.visits == 1 + sum(edge.visits for edge in edges)  # one is its own evaluation
        into = [
            edge.visits
            for other in nodes.values()
            for edge in other.edges or []
            if edge.child == state
        ]
        assert state == space.root or node.visits == sum(into)


@given(drawn_spaces(), WORKERS, SEEDS, st.integers(1, 8))
def test_running_evaluations_are_counted_along_their_paths(space, workers, seed, most):
    explorer = GraphStrategy(space, seed=seed)
    run(explorer, space, most)
    running = [found for _ in range(workers) if (found := explorer.propose())]
    root = explorer.graph.nodes.get(space.root)
    assert (root.running if root else 0) == len(running)


@given(drawn_spaces(), SEEDS, st.integers(0, 6), st.permutations([0, 1, 2]))
def test_results_may_come_in_any_order(space, seed, most, order):
    def learned(places: list[int]) -> list[tuple[str, GraphNode]]:
        explorer = GraphStrategy(space, seed=seed)
        run(explorer, space, most)
        running = [found for _ in places if (found := explorer.propose())]
        for place in places:
            if place < len(running):
                explorer.learn(running[place], space.cost(running[place]))
        run(explorer, space, 3)
        return [*explorer.graph.nodes.items()]

    assert learned(order) == learned([0, 1, 2])


@given(drawn_spaces(), SEEDS)
def test_values_follow_from_results_and_visits(space, seed):
    explorer = GraphStrategy(space, seed=seed)
    run(explorer, space)
    nodes = explorer.graph.nodes
    for state, node in nodes.items():
        below = list(explorer.graph.forward(state))
        assert node.best == max([node.own, *(child.best for _, child in below)])
        weight = 1 + sum(edge.visits for edge, _ in below)
        total = node.own + sum(edge.visits * child.mean for edge, child in below)
        assert node.mean == pytest.approx(total / weight)
    good = [node.own for node in nodes.values() if node.cost is not None]
    assert nodes[space.root].best == max(good + [node.own for node in nodes.values()])


@given(drawn_spaces(), SEEDS)
def test_actions_are_asked_for_once_and_of_good_states_only(space, seed):
    run(GraphStrategy(space, seed=seed), space)
    assert len(space.asked) == len(set(space.asked))
    assert all(space.costs[int(state[1:])] is not None for state in space.asked)


def test_a_result_reaches_the_ancestors_along_all_paths():
    diamond = DrawnSpace([[1, 2], [3], [3], []], [1.0, 1.1, 1.2, 0.5])
    explorer = GraphStrategy(diamond)
    run(explorer, diamond, 4)
    nodes = explorer.graph.nodes
    explorer.propose()  # expands what is left to expand
    assert set(nodes) == {"s0", "s1", "s2", "s3"}
    best = math.log(2)
    assert [nodes[state].best for state in ("s0", "s1", "s2", "s3")] == pytest.approx([best] * 4)
    assert sum(edge.visits for state in ("s1", "s2") for edge in nodes[state].edges or []) == 1


def test_the_search_finds_its_way_to_the_best_state():
    space = grid(10, 10)
    explorer = GraphStrategy(space)
    assert "s99" in run(explorer, space, 60)


def test_the_seed_decides_between_equals():
    star = DrawnSpace([list(range(1, 9)), *[[] for _ in range(8)]], [1.0] * 9)
    orders = {tuple(run(GraphStrategy(star, seed=seed), star)) for seed in range(5)}
    assert len(orders) == 5


def test_predicted_gains_decide_what_is_tried_first():
    gains = {(0, 1): 0.1, (0, 2): 0.5, (0, 3): 0.3}
    star = DrawnSpace([[1, 2, 3], [], [], []], [1.0] * 4, gains)
    quiet = SearchParameters(root_noise_eps=0)
    assert run(GraphStrategy(star, quiet), star, 2) == ["s0", "s2"]


def test_noise_at_the_root_changes_what_is_tried_first():
    gains = {(0, head): 0.5 if head == 1 else 0.4 for head in range(1, 9)}
    star = DrawnSpace([list(range(1, 9)), *[[] for _ in range(8)]], [1.0] * 9, gains)

    def firsts(eps: float) -> set[str]:
        noisy = SearchParameters(root_noise_eps=eps, prog_widen_thresh=1, prior_temperature=1)
        return {run(GraphStrategy(star, noisy, seed=seed), star, 2)[1] for seed in range(20)}

    assert firsts(0) == {"s1"}
    assert len(firsts(0.5)) > 3


def test_noise_is_of_the_root_alone_and_adds_up_to_one():
    space = grid(3, 3)
    explorer = GraphStrategy(space)
    run(explorer, space)
    for state, node in explorer.graph.nodes.items():
        total = sum(edge.noise for edge in node.edges or [])
        assert total == pytest.approx(1 if state == space.root else 0)


def test_actions_of_too_little_predicted_gain_are_pruned():
    gains = {(0, 1): 0.019, (0, 2): 0.021}
    star = DrawnSpace([[1, 2, 3], [], [], []], [1.0] * 4, gains)
    assert set(run(GraphStrategy(star), star)) == {"s0", "s2", "s3"}
    everything = SearchParameters(min_pred_gain=0)
    assert len(run(GraphStrategy(star, everything), star)) == 4


def test_a_pruned_action_does_not_rule_out_another_way_to_its_state():
    gains = {(0, 1): 0.001, (0, 2): 0.5, (2, 1): 0.5}
    space = DrawnSpace([[1, 2], [], [1]], [1.0, 1.0, 1.0], gains)
    assert run(GraphStrategy(space), space) == ["s0", "s2", "s1"]


def test_a_pruned_action_to_a_known_state_may_be_followed():
    gains = {(0, 1): 0.5, (0, 2): 0.4, (1, 2): 0.001}
    space = DrawnSpace([[1, 2], [2], [3, 4], [], []], [1.0, 0.1, 0.9, 0.5, 0.5], gains)
    assert sorted(run(GraphStrategy(space), space)) == space.states


def test_virtual_losses_spread_parallel_proposals():
    chain = [[1, 2], [3, 4, 5, 6, 7, 8], [9, 10, 11, 12, 13, 14], *[[] for _ in range(12)]]
    space = DrawnSpace(chain, [1.0, 0.9, 0.95, *[0.93] * 12])

    def parents(virtual_loss: float) -> set[str]:
        explorer = GraphStrategy(space, SearchParameters(virtual_loss=virtual_loss, best_share=0))
        run(explorer, space, 3)
        proposals = [explorer.propose() for _ in range(5)]
        return {found.path[-1] for found in proposals if found}

    assert parents(0) == {"s1"}
    assert len(parents(3)) > 1


def test_widening_opens_actions_with_visits():
    wide = [list(range(1, 11)), *[[11 + head] for head in range(10)], *[[] for _ in range(10)]]
    space = DrawnSpace(wide, [1.0, *[2.0] * 10, *[2.0] * 10])
    narrow = SearchParameters(prog_widen_thresh=1, prog_widen_exponent=0)
    assert run(GraphStrategy(space, narrow), space, 3)[2] not in {
        f"s{head}" for head in range(1, 11)
    }
    broad = SearchParameters(prog_widen_thresh=100)
    assert set(run(GraphStrategy(space, broad), space, 11)) == {f"s{head}" for head in range(11)}


def test_failures_have_the_stated_value_and_lead_nowhere():
    space = DrawnSpace([[1], [2], []], [1.0, None, 0.1])
    explorer = GraphStrategy(space, SearchParameters(failure_value=-0.7))
    assert run(explorer, space) == ["s0", "s1"]
    failed = explorer.graph.nodes["s1"]
    assert (failed.standing, failed.own, failed.cost) == ("failed", -0.7, None)
    assert explorer.graph.nodes["s0"].mean == pytest.approx(-0.35)


def test_a_baseline_that_fails_ends_the_search():
    space = DrawnSpace([[1], []], [None, 1.0])
    explorer = GraphStrategy(space)
    assert run(explorer, space) == ["s0"]
    assert explorer.incumbent is None


def test_a_result_is_learned_once():
    space = grid(1, 2)
    explorer = GraphStrategy(space)
    proposal = explorer.propose()
    assert proposal is not None
    with pytest.raises(ValueError, match="positive number"):
        explorer.learn(proposal, math.nan)
    explorer.learn(proposal, 1.0)
    with pytest.raises(ValueError, match="'s0' is outstanding"):
        explorer.learn(proposal, 1.0)


def test_experience_with_a_kind_of_action_decides_what_is_tried_next():
    # Actions to states whose number is divisible by three are of one kind, which helps.
    costs = [1.0, *(0.5 if head % 3 == 0 else 2.0 for head in range(1, 13))]
    star = DrawnSpace([list(range(1, 13)), *[[] for _ in range(12)]], costs)
    for seed in range(5):
        found = run(GraphStrategy(star, SearchParameters(root_noise_eps=0), seed=seed), star)
        places = [place for place, state in enumerate(found) if int(state[1:]) % 3 == 0 and place]
        assert places == list(range(places[0], places[0] + 4))


def test_nothing_is_worth_less_than_a_failure():
    space = DrawnSpace([[1], []], [1.0, 100.0])
    explorer = GraphStrategy(space, SearchParameters(failure_value=-0.5))
    run(explorer, space)
    assert explorer.graph.nodes["s1"].own == -0.5


def test_the_share_of_the_best_decides_between_one_good_state_and_a_good_mean():
    # Below s1 are one very good state and bad ones; below s2 all are fairly good.
    edges = [[1, 2], [3, 4, 5, 6, 11], [7, 8, 9, 10, 12], *[[] for _ in range(10)]]
    costs = [1.0, 1.0, 1.0, 0.2, 3.0, 3.0, 3.0, 0.8, 0.8, 0.8, 0.8, 1.0, 1.0]
    space = DrawnSpace(edges, costs)
    found = {}
    for share in (0.0, 1.0):
        explorer = GraphStrategy(space, SearchParameters(best_share=share, puct_c=0))
        order = run(explorer, space)
        found[share] = next(state for state in order if state in ("s11", "s12"))
    assert found[1.0] != found[0.0]


@given(st.floats(0, 5), st.floats(0, 1), st.floats(0, 1), SEEDS)
def test_no_setting_makes_the_search_miss_or_repeat_a_state(puct_c, best_share, eps, seed):
    space = grid(4, 4)
    chosen = SearchParameters(puct_c=puct_c, best_share=best_share, root_noise_eps=eps)
    assert sorted(run(GraphStrategy(space, chosen, seed=seed), space)) == sorted(space.states)


def test_what_predictions_for_a_move_missed_is_expected_of_its_other_actions():
    experience = Experience(10, 5)
    tail, head = GraphNode(0, "good"), GraphNode(1, "good", own=-0.5)
    one, other, alone = (
        GraphEdge(label, label, 0.5, label, 0.0, family=family)
        for label, family in (("one", "move"), ("other", "move"), ("alone", "another"))
    )
    experience.observe([(tail, one, head)] * 5)
    assert experience.gain(other) == pytest.approx(0.5 - 5 / 10)
    assert experience.gain(one) == pytest.approx((10 * 0 - 5 * 0.5) / 15)
    assert experience.gain(alone) == 0.5
    assert experience.gain(GraphEdge("none", "none", None, "none", 0.0, family="move")) == 0
