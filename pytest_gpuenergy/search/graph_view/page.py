"""``graph.html``: the states of a search and how they were reached, with all that it needs inside.

It has no script, and its content security policy allows none, so no name can become code.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from html import escape
from importlib import resources
from string import Template
from urllib.parse import quote
from xml.etree.ElementTree import Element

from pytest_gpuenergy.record.metrics import METRICS
from pytest_gpuenergy.report.html.parts import script_hash
from pytest_gpuenergy.search.graph_record import GraphRecord
from pytest_gpuenergy.search.graph_view.drawing import Shape, drawing, interval_drawing
from pytest_gpuenergy.search.graph_view.elements import element, html, table
from pytest_gpuenergy.search.search_state import Gain, Node, SearchState
from pytest_gpuenergy.search.spec import KernelSpec

_COLUMNS = ("variant", "from", "move", "outcome")


def graph_page(spec: KernelSpec, state: SearchState, record: GraphRecord | None = None) -> str:
    """The page of a search that has evaluated its baseline.

    Args:
        spec: of the kernel.
        state: of the search.
        record: what its strategy knows of the states: their visits, and other moves between them.
    """
    style = _read("page.css")
    parts = [
        _heading(spec, state),
        element("h2", "States"),
        _legend(),
        element("div", _drawing(state, record), class_="scroll", tabindex="0"),
        element("h2", "Measured alternately with the baseline"),
        _gains(state),
        element("h2", "All variants"),
        _table(state, record),
    ]
    return Template(_read("page.html")).substitute(
        title=escape(f"Search of {spec.name}"),
        hash=script_hash(style),
        style=style,
        content=html(parts),
    )


def _heading(spec: KernelSpec, state: SearchState) -> Element:
    identity = state.identity
    emulated = element("span", "emulated: no figure here is measured", class_="badge")
    correct = sum(node.cost is not None for node in state.nodes) - 1
    return element(
        "header",
        element("h1", f"Search of {spec.name} ", *([emulated] if identity.emulated else [])),
        element(
            "p",
            f"{identity.gpu}{identity.settings}, minimizing {identity.objective.label}, "
            f"seed {identity.seed}: "
            f"{state.builds} variants, {correct} correct"
            f"{'' if state.finished else '; not finished'}.",
        ),
        element("p", _outcome(spec, state)),
    )


def _outcome(spec: KernelSpec, state: SearchState) -> str:
    if not state.finished:
        return f"The best figure so far is that of {state.incumbent}."
    if state.incumbent == spec.baseline.id:
        return "The baseline remains the best."
    return f"The best is {state.incumbent}."


def _legend() -> Element:
    kinds = (
        ("baseline", "baseline (square)"),
        ("better", "better than the baseline"),
        ("other", "not better"),
        ("failed", "failed (cross)"),
        ("best", "best (ring)"),
    )
    items = [element("li", name, class_=kind) for kind, name in kinds]
    note = (
        "Figures are ratios to the baseline, in the objective. Lines lead from a state to those "
        "that a move made of it; dashed ones are other moves to a state that was known."
    )
    return element("div", element("ul", *items, class_="legend"), element("p", note))


def _drawing(state: SearchState, record: GraphRecord | None) -> Element:
    first = state.nodes[0].cost
    shapes = [_shape(node, first, node.id == state.incumbent) for node in state.nodes]
    return drawing(shapes, _others(state, record))


def _shape(node: Node, first: float | None, is_best: bool) -> Shape:
    ratio = _ratio(node, first)
    figure = node.outcome if ratio is None else f"x{ratio:.3f}"
    kind = "other" if node.parent else "baseline"
    if node.parent and ratio is None:
        kind = "failed"
    elif node.parent and ratio is not None and ratio < 1:
        kind = "better"
    words = f"{node.id}: {_move(node)}, {figure}{', best' if is_best else ''}"
    return Shape(
        node.id, node.parent, f"{kind} best" if is_best else kind, figure, node.move, words
    )


def _others(state: SearchState, record: GraphRecord | None) -> dict[str, list[str]]:
    """By state, the evaluated ones that it would also have led to."""
    if record is None:
        return {}
    made = {(node.parent, node.id) for node in state.nodes}
    return {
        tail: [edge.child for edge in known.edges or () if (tail, edge.child) not in made]
        for tail, known in record.nodes.items()
    }


def _gains(state: SearchState) -> Element:
    if not state.gains:
        return element("p", "No variant has been compared.")
    rows = [row for gain in state.gains for row in _gain_rows(gain)]
    return table(("variant", "verdict", "figure", ""), rows, ("ratio", "interval", "rounds"))


def _gain_rows(gain: Gain) -> Iterator[Element]:
    if gain.message:
        cell = element("td", gain.message, colspan="6", class_="wide")
        yield element("tr", element("td", _to("row", gain.id)), cell)
        return
    verdict = "better" if gain.accepted else "not certainly better, and therefore not kept"
    words = "; ".join([verdict, *gain.reasons])
    for metric in METRICS:
        if (ends := gain.ratio_intervals.get(metric)) is not None:
            ratio = gain.ratios[metric]
            yield element(
                "tr",
                element("td", _to("row", gain.id)),
                element("td", words, class_="wide"),
                element("td", metric.label),
                element("td", interval_drawing(ratio, ends)),
                element("td", f"{ratio:.4f}", class_="number"),
                element("td", f"[{ends.low:.4f}, {ends.high:.4f}]", class_="number"),
                element("td", str(gain.rounds), class_="number"),
            )


def _table(state: SearchState, record: GraphRecord | None) -> Element:
    metric = state.identity.objective
    numbers = [f"{metric.label} ({metric.unit})", "of baseline", "time (ms)"]
    visits = None
    if record is not None:
        visits = {name: one.visits for name, one in record.nodes.items()}
        numbers.append("visits")
    first = state.nodes[0].cost
    return table(_COLUMNS, [_row(node, first, visits) for node in state.nodes], numbers)


def _row(node: Node, first: float | None, visits: Mapping[str, int] | None) -> Element:
    ratio = _ratio(node, first)
    folder = f"variants/{quote(node.id)}/" if node.parent else "baseline/"
    numbers = [
        "" if node.cost is None else f"{node.cost:.4g}",
        "" if ratio is None else f"{ratio:.3f}",
        "" if node.time_ms is None else f"{node.time_ms:.4g}",
    ]
    if visits is not None:
        numbers.append(str(visits.get(node.id, 0)))
    files = element("a", "files", href=folder)
    return element(
        "tr",
        element("td", _to("node", node.id), " ", files),
        element("td", *([_to("row", node.parent)] if node.parent else [])),
        element("td", _move(node), class_="wide"),
        element("td", node.outcome),
        *(element("td", number, class_="number") for number in numbers),
        id=f"row-{node.id}",
        class_="" if node.outcome == "correct" else "failed",
    )


def _to(what: str, state: str) -> Element:
    return element("a", state, href=f"#{what}-{state}")


def _move(node: Node) -> str:
    return f"{node.move} {node.what}".strip() or "baseline"


def _ratio(node: Node, first: float | None) -> float | None:
    return None if node.cost is None or not first else node.cost / first


@functools.cache
def _read(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")
