"""The graph of a search: states, the actions between them, visits and values.

Actions of a kernel commute and can be undone, so a state can be reached in several ways, and a path
can return to its beginning. This raises two questions.

*What may a value depend on?* In a tree, on everything below. Here, only the edges count that lead
from a state to one that was proposed later; they are called forward edges. Forward edges cannot
form a cycle. Every state except the root was proposed through one, so every reachable state can be
reached along forward edges, and nothing is lost by ignoring the others. (Depth would work too, but
a shorter path to a state would reverse edges, and no state could try one of its own depth.)

*How is a result passed on?* A tree adds it to every ancestor. With several paths, that counts a
result several times, or not at all along paths that were not taken (A. Saffidine et al., "UCD:
Upper Confidence bound for rooted Directed acyclic graphs", Knowledge-Based Systems 34, 2012; J.
Czech et al., "Improving AlphaZero Using Monte-Carlo Graph Search", ICAPS 2021). Here nothing is
added: the value of a state is computed from its own result, the values of its children, and the
visits of the edges to them, as D. Wu describes in KataGo's "Monte-Carlo Graph Search from First
Principles". When a state changes, each of its ancestors is computed again, from the latest proposal
to the root. So a result arrives along all paths, and the values depend on the results and visits
alone, not on their order.

Visits belong to the edges of the path that a proposal took. A state has the visits of the edges
into it, which are those of the edges out of it and one for its own evaluation.
"""

from __future__ import annotations

import heapq
import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from pytest_gpuenergy.search.strategy.action_space import Action, Proposal

Standing = Literal["running", "good", "failed"]


class GraphEdge(Struct):
    """An action of a state.

    Attributes:
        label, child, kind, family: the fields of its `Action`; ``kind`` is not empty.
        gain: the predicted gain; None if nothing is known.
        draw: a random number from 0 to 1 that decides between otherwise equal actions.
        noise: the edge's share of the root's noise, if it is an edge of the root.
        prior: the edge's prior probability at the last visit to its state.
        visits: the number of results that came back along it.
        running: the number of proposals along it whose results are outstanding.
    """

    label: str
    child: str
    gain: float | None
    kind: str
    draw: float
    noise: float = 0.0
    prior: float = 0.0
    visits: int = 0
    running: int = 0
    family: str = ""


class GraphNode(Struct):
    """A state that was proposed.

    Attributes:
        number: the state's place in the order of the proposals.
        standing: whether the evaluation is running, has succeeded or has failed.
        cost: the cost of the state; None if it failed or is not evaluated yet.
        own: the value of the state's own result.
        mean: the mean value of the visits to the state.
        best: the largest value of the state and of those below it.
        visits: the number of results of proposals that led to it or through it.
        running: the number of such proposals whose results are outstanding.
        edges: the actions of the state; None until it is expanded.
        open: whether anything is left to try at it or below.
    """

    number: int
    standing: Standing = "running"
    cost: float | None = None
    own: float = 0.0
    mean: float = 0.0
    best: float = 0.0
    visits: int = 0
    running: int = 0
    edges: list[GraphEdge] | None = None
    open: bool = False


class GraphRecord(Struct, frozen=True, forbid_unknown_fields=True):
    """A graph as it is stored.

    Attributes:
        nodes: the nodes by the id of the state, in the order of the proposals.
        proposed: the number of proposals so far.
    """

    nodes: dict[str, GraphNode]
    proposed: int


class SearchGraph:
    """The graph of a search, to which proposals, results and edges are added.

    Args:
        root: the id of the state where the search begins.
        prunes: returns whether an edge is never tried.

    Attributes:
        root: the id of the state where the search begins.
        nodes: the nodes by the id of the state, in the order of the proposals.
    """

    def __init__(self, root: str, prunes: Callable[[GraphEdge], bool]) -> None:
        self.root = root
        self.nodes: dict[str, GraphNode] = {}
        self._prunes = prunes
        self._incoming: defaultdict[str, list[tuple[str, GraphEdge]]] = defaultdict(list)
        """The edges into each state, with the states where they begin."""

    def forward(self, state: str) -> Iterator[tuple[GraphEdge, GraphNode]]:
        """Yield the forward edges of a state, each with the node to which it leads."""
        node = self.nodes[state]
        for edge in node.edges or ():
            child = self.nodes.get(edge.child)
            if child is not None and child.number > node.number:
                yield edge, child

    def untried(self, state: str) -> list[GraphEdge]:
        """Return the edges of a state to states that were never proposed, without pruned edges."""
        edges = self.nodes[state].edges or ()
        return [edge for edge in edges if edge.child not in self.nodes and not self._prunes(edge)]

    def known_edges_to(self, state: str) -> Iterator[tuple[GraphNode, GraphEdge, GraphNode]]:
        """Yield the edges to a state, each as tail, edge and head.

        The caller ensures that the state has a result; each tail has one, because it has edges.
        """
        node = self.nodes[state]
        for tail, edge in self._incoming[state]:
            yield self.nodes[tail], edge, node

    def known_edges_from(self, state: str) -> Iterator[tuple[GraphNode, GraphEdge, GraphNode]]:
        """Yield the edges from a state to states with results, each as tail, edge and head."""
        node = self.nodes[state]
        for edge in node.edges or ():
            head = self.nodes.get(edge.child)
            if head is not None and head.standing != "running":
                yield node, edge, head

    def expand(self, state: str, actions: Sequence[Action], draws: Sequence[float]) -> None:
        """Give a good state its edges; an action that does not change the state is left out."""
        node = self.nodes[state]
        node.edges = [
            GraphEdge(
                action.label,
                action.child,
                action.predicted_gain,
                action.kind or action.label,
                draw,
                family=action.family,
            )
            for action, draw in zip(actions, draws, strict=True)
            if action.child != state
        ]
        self._index_edges(state)
        self._update_values(state)
        self._update_open(state)

    def add(self, proposal: Proposal) -> None:
        """Add a new state, whose evaluation begins."""
        self.nodes[proposal.state] = GraphNode(number=len(self.nodes))
        for node, edge in self._edges_on_path(proposal):
            node.running += 1
            if edge is not None:
                edge.running += 1
        for parent, _ in self._incoming[proposal.state]:
            self._update_open(parent)

    def finish(self, proposal: Proposal, own_value: float, cost: float | None) -> None:
        """Add a result and pass it on along all paths; ``cost`` is None for a failure."""
        finished = self.nodes[proposal.state]
        finished.standing = "failed" if cost is None else "good"
        finished.cost, finished.own = cost, own_value
        for node, edge in self._edges_on_path(proposal):
            node.running -= 1
            node.visits += 1
            if edge is not None:
                edge.running -= 1
                edge.visits += 1
        # This also updates the path, whose visits have changed: it consists of ancestors.
        self._update_values(proposal.state)
        self._update_open(proposal.state)

    def record(self) -> GraphRecord:
        """Return the graph as it is stored; the record shares the nodes."""
        return GraphRecord(self.nodes, len(self.nodes))

    def copy(self) -> SearchGraph:
        """Return a graph that grows independently of this one."""
        twin = SearchGraph(self.root, self._prunes)
        for state, node in self.nodes.items():
            edges = None if node.edges is None else [replace(edge) for edge in node.edges]
            twin.nodes[state] = replace(node, edges=edges)
            twin._index_edges(state)
        return twin

    def _index_edges(self, state: str) -> None:
        """Add the edges of a state to the incoming edges of the states to which they lead."""
        for edge in self.nodes[state].edges or ():
            self._incoming[edge.child].append((state, edge))

    def _edges_on_path(self, proposal: Proposal) -> Iterator[tuple[GraphNode, GraphEdge | None]]:
        """Yield the nodes of a proposal's path, each with the edge that the path takes from it.

        The last node is that of the proposed state, with None.
        """
        for state, next_state in itertools.pairwise((*proposal.path, proposal.state)):
            node = self.nodes[state]
            edges = [edge for edge in node.edges or () if edge.child == next_state]
            if next_state == proposal.state:  # to which several actions may lead
                edges = [edge for edge in edges if edge.label == proposal.label]
            yield node, edges[0]
        yield self.nodes[proposal.state], None

    def _parents(self, state: str) -> Iterator[str]:
        """Yield the states with a forward edge to a state, once for each such edge."""
        number = self.nodes[state].number
        for parent, _ in self._incoming[state]:
            if self.nodes[parent].number < number:
                yield parent

    def _update_values(self, state: str) -> None:
        """Compute the values of a state and all its ancestors again, later ones first."""
        waiting = [(-self.nodes[state].number, state)]
        seen = {state}
        while waiting:
            _, current = heapq.heappop(waiting)
            node = self.nodes[current]
            total, weight, best_value = node.own, 1, node.own
            for edge, child in self.forward(current):
                if child.standing != "running":
                    total += edge.visits * child.mean
                    weight += edge.visits
                    best_value = max(best_value, child.best)
            node.mean, node.best = total / weight, best_value
            for parent in self._parents(current):
                if parent not in seen:
                    seen.add(parent)
                    heapq.heappush(waiting, (-self.nodes[parent].number, parent))

    def _update_open(self, state: str) -> None:
        """Decide again whether a state is open, and its ancestors as far as this changes them."""
        waiting = [state]
        while waiting:
            current = waiting.pop()
            node = self.nodes[current]
            is_open = self._is_open(current, node)
            if is_open != node.open:
                node.open = is_open
                waiting += self._parents(current)

    def _is_open(self, state: str, node: GraphNode) -> bool:
        if node.standing != "good":
            return False
        if node.edges is None:
            return True
        return any(child.open for _, child in self.forward(state)) or bool(self.untried(state))
