"""States are compiled ahead, which changes nothing but the time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, strategies as st
from kernel_specs import SOURCE, launch_with, optimize, spec_with, state_of, write
from spaces import drawn_spaces, run

from pytest_gpuenergy.emulator import EmulatedDevice
from pytest_gpuenergy.search import GraphExplorer, GraphStrategy, Result, SearchBench, State
from pytest_gpuenergy.search.running import kernel_search


@given(space=drawn_spaces(), seed=st.integers(0, 9), count=st.integers(1, 3))
def test_looking_ahead_changes_nothing(space, seed, count):
    expected = run(GraphStrategy(space, seed=seed), space)
    strategy = GraphStrategy(space, seed=seed)
    found = []
    while proposal := strategy.propose():
        strategy.likely_next(lambda _: (), count)
        strategy.learn(proposal, space.cost(proposal))
        strategy.likely_next(space.actions, count)
        found.append(proposal.state)
    assert found == expected


@given(space=drawn_spaces(), seed=st.integers(0, 9))
def test_when_no_result_is_outstanding_the_next_state_is_foreseen(space, seed):
    strategy = GraphStrategy(space, seed=seed)
    while True:
        ahead = strategy.likely_next(space.actions, 1)
        proposal = strategy.propose()
        assert [one.state for one in ahead] == ([] if proposal is None else [proposal.state])
        if proposal is None:
            return
        strategy.learn(proposal, space.cost(proposal))


@given(space=drawn_spaces(), seed=st.integers(0, 9), count=st.integers(1, 4))
def test_only_states_that_were_never_proposed_are_foreseen(space, seed, count):
    strategy = GraphStrategy(space, seed=seed)
    while proposal := strategy.propose():
        ahead = [one.state for one in strategy.likely_next(space.actions, count)]
        assert len(ahead) == len(set(ahead)) <= count
        assert not set(ahead) & set(strategy.graph.nodes)
        strategy.learn(proposal, space.cost(proposal))


@given(space=drawn_spaces(), seed=st.integers(0, 9))
def test_unknown_actions_need_not_be_asked_for(space, seed):
    strategy = GraphStrategy(space, seed=seed)
    while proposal := strategy.propose():
        asked = len(space.asked)
        strategy.likely_next(lambda _: (), 3)
        assert len(space.asked) == asked
        strategy.learn(proposal, space.cost(proposal))


@pytest.mark.slow
def test_states_are_compiled_before_their_turn_and_the_result_is_the_same(tmp_path, monkeypatch):
    spec = write(tmp_path)
    monkeypatch.setattr(kernel_search, "_COMPILED_AHEAD", 0)
    assert optimize(spec, tmp_path / "one", "--budget-builds", "2") == 0
    monkeypatch.undo()

    prepared: list[str] = []
    early: list[bool] = []
    prepare, evaluate = EmulatedDevice.prepare, SearchBench.evaluate

    def noted(device: EmulatedDevice, kernels: Sequence[Any]) -> None:
        prepared.extend(kernel.origin.details["state"] for kernel in kernels)
        prepare(device, kernels)

    def timed(bench: SearchBench, state: State, *rest: Any) -> Result:
        early.append(state.id in prepared)  # what is evaluated is compiled in it
        return evaluate(bench, state, *rest)

    monkeypatch.setattr(EmulatedDevice, "prepare", noted)
    monkeypatch.setattr(SearchBench, "evaluate", timed)
    assert optimize(spec, tmp_path / "other", "--budget-builds", "2") == 0
    assert sum(early) >= 1
    assert state_of(tmp_path / "one") == state_of(tmp_path / "other")


@pytest.mark.slow
def test_what_does_not_compile_ahead_is_told_in_its_turn(tmp_path, monkeypatch):
    source = "#if ITEMS != 4\n#error no\n#endif\n" + SOURCE.replace("blockDim.x", "32")
    launch = launch_with(grid=["ceil_div(N, 32 * ITEMS)"])  # nothing else can be changed
    spec = write(tmp_path, spec_with(source=source, launch=launch))
    every = GraphExplorer.likely_next
    monkeypatch.setattr(GraphExplorer, "likely_next", lambda one, _: every(one, 20))
    assert optimize(spec, tmp_path / "out", "--budget-builds", "3") == 0
    nodes = state_of(tmp_path / "out")["nodes"]
    assert [node["outcome"] for node in nodes] == ["correct", *["compile"] * 3]
