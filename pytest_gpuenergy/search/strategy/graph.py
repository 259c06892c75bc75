"""The graph of a search: states, actions between them, visits and values.

Actions of a kernel commute and can be undone, so that states are reached in several ways, and paths
return to where they began. Two questions follow.

*What may a value depend on?* In a tree, on everything below. Here an edge counts only if it leads
from a state to one that was proposed later; call it forward. Forward edges cannot form a cycle.
Every state but the root was proposed through one, so all that is reachable at all is reachable
along them, and nothing is lost by following no others. (Depth would do too, but a better way to a
state would turn edges round, and no state could try what lies as deep as itself.)

*How is a result passed on?* A tree adds it to every ancestor. With several paths that counts it
several times, or not at all along paths that were not taken (A. Saffidine et al., "UCD: Upper
Confidence bound for rooted Directed acyclic graphs", Knowledge-Based Systems 34, 2012; J. Czech et
al., "Improving AlphaZero Using Monte-Carlo Graph Search", ICAPS 2021). Here nothing is added: the
value of a state is computed from its own result, the values of its children, and the visits of the
edges to them, as D. Wu describes in KataGo's "Monte-Carlo Graph Search from First Principles". When
a state changes, all its ancestors are computed again, from the latest proposal to the root, each
once. So a result arrives along all paths, and the values depend on the results and visits alone,
not on the order in which they came.

Visits are of edges: those of the path that a proposal took. A state's visits are those of the edges
into it, and, but for its own evaluation, of the edges out of it.
"""

from __future__ import annotations

import heapq
import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Literal

from msgspec import Struct

from pytest_gpuenergy.search.strategy.action_space import Action, Incumbent, Proposal
from pytest_gpuenergy.support import FormError, shown

_LARGEST_GAIN = 1000.0
_LEAST_COST = 1e-150

Standing = Literal["running", "good", "failed"]


class Edge(Struct):
    """An action of a state.

    Attributes:
        label, child, gain, kind, family: as of an `Action`; ``gain`` is the predicted one, and
            ``kind`` is not empty.
        draw: decides between actions that are otherwise equal, from 0 to 1.
        noise: share of the root's noise, if it is an edge of the root.
        prior: as of the last visit to its state.
        visits: results that came back along it.
        running: proposals along it whose results are outstanding.
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
        number: in the order of the proposals.
        standing: what became of it.
        cost: as evaluated; None if it failed or is not known yet.
        own: value of its own result.
        mean: of the values of the visits to it.
        best: the largest value at it or below.
        visits: results of proposals that led through it or to it.
        running: proposals likewise whose results are outstanding.
        edges: its actions; None before they were asked for.
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
    edges: list[Edge] | None = None
    open: bool = False


class GraphRecord(Struct, frozen=True, forbid_unknown_fields=True):
    """A graph as it is stored.

    Attributes:
        nodes: by the id of the state, in the order of the proposals.
        proposed: number of proposals so far, with those that were abandoned.
    """

    nodes: dict[str, GraphNode]
    proposed: int


def is_cost(value: float | None) -> bool:
    """Whether a value may be a cost: the ratio of two is finite and above zero."""
    return value is not None and _LEAST_COST <= value <= 1 / _LEAST_COST


def check(record: GraphRecord, root: str) -> None:
    """Refuse what no search that began at ``root`` can have stored.

    Raises:
        FormError: it names the state.
    """
    reached, last = {root}, -1
    for state, node in record.nodes.items():
        if state not in reached or not last < node.number < record.proposed:
            raise FormError(f"no way leads to {shown(state)}")
        last = node.number
        if node.standing != "running":
            _check_result(state, node, record.proposed)
            reached.update(edge.child for edge in node.edges or ())


def _check_result(state: str, node: GraphNode, proposed: int) -> None:
    good = node.standing == "good"
    if not (is_cost(node.cost) if good else node.cost is None):
        raise FormError(f"{shown(state)} has the cost {shown(node.cost)}")
    edges = node.edges or []
    if (edges and not good) or not all(_is_possible(edge, proposed) for edge in edges):
        raise FormError(f"{shown(state)} has actions that it cannot have")
    if not 0 < node.visits <= proposed:
        raise FormError(f"{shown(state)} has {shown(node.visits)} visits")


def _is_possible(edge: Edge, proposed: int) -> bool:
    return (
        0 <= edge.visits <= proposed
        and 0 <= edge.noise <= 1
        and abs(edge.gain or 0.0) <= _LARGEST_GAIN
    )


class SearchGraph:
    """A graph that grows.

    Attributes:
        root: id of the state where the search begins.
        nodes: by the id of the state, in the order of the proposals.
    """

    def __init__(self, root: str, prunes: Callable[[Edge], bool]) -> None:
        self.root = root
        self.nodes: dict[str, GraphNode] = {}
        self._prunes = prunes
        self._proposed = 0
        self._into: defaultdict[str, list[tuple[str, Edge]]] = defaultdict(list)

    @property
    def incumbent(self) -> Incumbent | None:
        """The good state of least cost; the one proposed first among equals."""
        known = [
            (node.cost, node.number, state)
            for state, node in self.nodes.items()
            if node.cost is not None
        ]
        if not known:
            return None
        cost, _, state = min(known)
        return Incumbent(state, cost)

    def forward(self, state: str) -> Iterator[tuple[Edge, GraphNode]]:
        """The edges of a state that lead to one proposed later, with that one."""
        node = self.nodes[state]
        for edge in node.edges or ():
            child = self.nodes.get(edge.child)
            if child is not None and child.number > node.number:
                yield edge, child

    def untried(self, state: str) -> list[Edge]:
        """The edges of a state that lead to one never proposed, without the pruned ones."""
        edges = self.nodes[state].edges or ()
        return [edge for edge in edges if edge.child not in self.nodes and not self._prunes(edge)]

    def known_edges_to(self, state: str) -> Iterator[tuple[GraphNode, Edge, GraphNode]]:
        """The edges to a state that has a result, as tail, edge and head."""
        node = self.nodes[state]
        for tail, edge in self._into[state]:
            yield self.nodes[tail], edge, node

    def known_edges_from(self, state: str) -> Iterator[tuple[GraphNode, Edge, GraphNode]]:
        """The edges from a state to those that have results, likewise."""
        node = self.nodes[state]
        for edge in node.edges or ():
            head = self.nodes.get(edge.child)
            if head is not None and head.standing != "running":
                yield node, edge, head

    def expand(self, state: str, actions: Sequence[Action], draws: Sequence[float]) -> None:
        """Give a good state its edges; an action that leads nowhere else is left out."""
        node = self.nodes[state]
        node.edges = [
            Edge(
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
        self._enter(state, node)
        self._update_values(state)
        self._update_open(state)

    def add(self, proposal: Proposal) -> None:
        """Begin the evaluation of a new state, or of an abandoned one."""
        self.nodes[proposal.state] = GraphNode(self._proposed)
        self._proposed += 1
        for node, edge in self._along(proposal):
            node.running += 1
            if edge is not None:
                edge.running += 1
        self._update_parents_open(proposal.state)

    def finish(self, proposal: Proposal, own: float, cost: float | None) -> None:
        """Enter a result, and pass it on along all paths; ``cost`` is None for a failure."""
        node = self.nodes[proposal.state]
        node.standing, node.cost, node.own = "failed" if cost is None else "good", cost, own
        for passed, edge in self._along(proposal):
            passed.running -= 1
            passed.visits += 1
            if edge is not None:
                edge.running -= 1
                edge.visits += 1
        # Visits have changed along the path, which is among the ancestors.
        self._update_values(proposal.state)
        self._update_open(proposal.state)

    def abandon(self, proposal: Proposal) -> None:
        """Undo `add`; the state may be proposed again."""
        for node, edge in self._along(proposal):
            node.running -= 1
            if edge is not None:
                edge.running -= 1
        del self.nodes[proposal.state]
        self._update_parents_open(proposal.state)

    def record(self) -> GraphRecord:
        """The graph as it is stored, which shares its nodes."""
        return GraphRecord(self.nodes, self._proposed)

    def restore(self, record: GraphRecord, own: Callable[[float | None], float]) -> None:
        """Take over a stored graph; evaluations that were running then are abandoned.

        ``own`` gives the value of a cost.

        Raises:
            FormError: it is no graph that a search from this root can have.
        """
        check(record, self.root)
        self.nodes = {s: node for s, node in record.nodes.items() if node.standing != "running"}
        self._proposed = record.proposed
        for state, node in self.nodes.items():
            node.running = 0
            node.own = own(node.cost)
            for edge in node.edges or ():
                edge.running = 0
            self._enter(state, node)
        for state, node in reversed(self.nodes.items()):
            self._evaluate(state, node)
            node.open = self._is_open(state, node)

    def _enter(self, state: str, node: GraphNode) -> None:
        for edge in node.edges or ():
            self._into[edge.child].append((state, edge))

    def _along(self, proposal: Proposal) -> Iterator[tuple[GraphNode, Edge | None]]:
        """The nodes of a path and of its end, each with the edge that leads on."""
        for state, after in itertools.pairwise((*proposal.path, proposal.state)):
            node = self.nodes[state]
            yield (
                node,
                next(edge for edge in node.edges or () if self._leads(edge, after, proposal)),
            )
        yield self.nodes[proposal.state], None

    @staticmethod
    def _leads(edge: Edge, after: str, proposal: Proposal) -> bool:
        return edge.child == after and (after != proposal.state or edge.label == proposal.label)

    def _parents(self, state: str) -> Iterator[str]:
        """The states with a forward edge to a state; one may come several times."""
        number = self.nodes[state].number
        for parent, _ in self._into[state]:
            if self.nodes[parent].number < number:
                yield parent

    def _update_values(self, state: str) -> None:
        """Compute a state and all its ancestors again, later ones first."""
        waiting = [(-self.nodes[state].number, state)]
        seen = {state}
        while waiting:
            _, current = heapq.heappop(waiting)
            self._evaluate(current, self.nodes[current])
            for parent in self._parents(current):
                if parent not in seen:
                    seen.add(parent)
                    heapq.heappush(waiting, (-self.nodes[parent].number, parent))

    def _evaluate(self, state: str, node: GraphNode) -> None:
        total, weight, best = node.own, 1, node.own
        for edge, child in self.forward(state):
            if child.standing != "running":
                total += edge.visits * child.mean
                weight += edge.visits
                best = max(best, child.best)
        node.mean, node.best = total / weight, best

    def _update_open(self, state: str) -> None:
        waiting = [state]
        while waiting:
            current = waiting.pop()
            node = self.nodes[current]
            found = self._is_open(current, node)
            if found != node.open:
                node.open = found
                waiting += self._parents(current)

    def _update_parents_open(self, state: str) -> None:
        for parent, _ in self._into[state]:
            self._update_open(parent)

    def _is_open(self, state: str, node: GraphNode) -> bool:
        if node.standing != "good" or node.edges is None:
            return node.standing == "good"
        return any(child.open for _, child in self.forward(state)) or bool(self.untried(state))
