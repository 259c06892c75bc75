"""The graph of a search as it is stored, and what it has to fulfil."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

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
