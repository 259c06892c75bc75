"""Small search spaces with known results."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from hypothesis import strategies as st

from pytest_gpuenergy.search import Action, GraphStrategy, Proposal, SearchStrategy


@dataclass
class DrawnSpace:
    """States ``s0``, ``s1`` ... with any edges between them, cycles included, and costs.

    Attributes:
        edges: the children of each state, by number.
        costs: of each state; None for one that fails.
        gains: predicted for each edge, by tail and head.
        asked: the states whose actions were asked for.
    """

    edges: Sequence[Sequence[int]]
    costs: Sequence[float | None]
    gains: Mapping[tuple[int, int], float] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    root: str = "s0"

    @property
    def states(self) -> list[str]:
        return [f"s{number}" for number in range(len(self.costs))]

    def actions(self, state: str) -> list[Action]:
        self.asked.append(state)
        tail = int(state[1:])
        return [
            Action(f"to {head}", f"s{head}", self.gains.get((tail, head)), f"k{head % 3}")
            for head in self.edges[tail]
        ]

    def cost(self, proposal: Proposal) -> float | None:
        return self.costs[int(proposal.state[1:])]

    def reachable(self) -> set[str]:
        """Return the states that promising actions reach without passing through a failed state."""
        found, waiting = {0}, [0]
        while waiting:
            tail = waiting.pop()
            if self.costs[tail] is not None:
                heads = self.edges[tail]
                new = {head for head in heads if self.gains.get((tail, head), 1) >= 0.02} - found
                found |= new
                waiting += new
        return {f"s{number}" for number in found}


@st.composite
def drawn_spaces(draw: st.DrawFn, most: int = 12) -> DrawnSpace:
    count = draw(st.integers(1, most))
    heads = st.lists(st.integers(0, count - 1), max_size=5, unique=True)
    edges = draw(st.lists(heads, min_size=count, max_size=count))
    cost = st.none() | st.floats(0.1, 10)
    costs = draw(st.lists(cost, min_size=count, max_size=count))
    pairs = [(tail, head) for tail, heads in enumerate(edges) for head in heads]
    gains = (
        draw(st.dictionaries(st.sampled_from(pairs), st.sampled_from([0.0, 0.01, 0.05, 0.2])))
        if pairs
        else {}
    )
    return DrawnSpace(edges, [draw(st.floats(0.1, 10)), *costs[1:]], gains)


def run(strategy: SearchStrategy, space: DrawnSpace, most: int = 1000) -> list[str]:
    """Run a search one state at a time; return the states in the order of their proposals."""
    found = []
    while len(found) < most and (proposal := strategy.propose()):
        strategy.learn(proposal, space.cost(proposal))
        found.append(proposal.state)
    return found


def run_in_parallel(
    explorer: GraphStrategy, space: DrawnSpace, workers: int, seed: int, most: int = 1000
) -> list[str]:
    """Run a search with several proposals at a time, whose results arrive in any order."""
    order = random.Random(seed)
    running: list[Proposal] = []
    found: list[str] = []
    while True:
        while len(running) < workers and len(found) < most and (new := explorer.propose()):
            running.append(new)
            found.append(new.state)
        if not running:
            return found
        done = running.pop(order.randrange(len(running)))
        explorer.learn(done, space.cost(done))


def grid(width: int, height: int) -> DrawnSpace:
    """Return a space of two parameters that change by one; the cost falls to the far corner."""
    number = {(x, y): x * height + y for x in range(width) for y in range(height)}
    edges = []
    for x, y in number:
        near = [(x + 1, y), (x - 1, y), (x, y + 1), (x, y - 1)]
        edges.append([number[place] for place in near if place in number])
    return DrawnSpace(edges, [10.0 / (1 + x + y) for x, y in number])
