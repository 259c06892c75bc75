"""The graph of a search, and intervals of ratios, as SVG."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple
from xml.etree.ElementTree import Element

from pytest_gpuenergy.record.estimate import Interval
from pytest_gpuenergy.search.graph_view.elements import element
from pytest_gpuenergy.search.graph_view.layout import Place, places

_COLUMN, _ROW, _MARGIN, _RADIUS = 220, 44, 24, 9
_LONGEST = 26
_BAR, _BAR_HEIGHT = 160, 16


class Shape(NamedTuple):
    """A state as it is drawn.

    Attributes:
        id: of the state.
        parent: the state that it was made from; None of the baseline.
        kind: ``baseline``, ``better``, ``other`` or ``failed``, and ``best`` beside it.
        figure: shown first.
        move: by which it was made.
        description: for those who point at it, or cannot see it.
    """

    id: str
    parent: str | None
    kind: str
    figure: str
    move: str
    description: str


def drawing(shapes: Sequence[Shape], others: Mapping[str, Sequence[str]]) -> Element:
    """The graph.

    Args:
        shapes: parents before their children.
        others: by the id of a state, those that a move would also lead to.
    """
    found = places({one.id: one.parent for one in shapes})
    width = _MARGIN + _COLUMN * (1 + max(place.column for place in found.values()))
    height = 2 * _MARGIN + _ROW * max(place.row for place in found.values())
    return element(
        "svg",
        *_other_lines(others, found),
        *(
            element("path", d=_curve(found[one.parent], found[one.id]), class_="made")
            for one in shapes
            if one.parent in found and one.parent is not None
        ),
        *(_node(one, found[one.id]) for one in shapes),
        width=width,
        height=height,
        viewBox=f"0 0 {width} {height}",
        role="group",
        aria_label="The states of the search, each with a link to its row in the table",
    )


def interval_drawing(ratio: float, ends: Interval) -> Element:
    """A ratio and its interval on a line from 0 to 1.25, with a mark at 1."""

    def x(value: float) -> float:
        return _BAR * min(1.0, max(0.0, value / 1.25))

    middle = _BAR_HEIGHT / 2
    return element(
        "svg",
        element("line", x1=x(1), x2=x(1), y1="0", y2=_BAR_HEIGHT, class_="one"),
        element("line", x1=x(ends.low), x2=x(ends.high), y1=middle, y2=middle, class_="interval"),
        element("circle", cx=x(ratio), cy=middle, r=3, class_="ratio"),
        width=_BAR,
        height=_BAR_HEIGHT,
        aria_hidden="true",
    )


def _other_lines(
    others: Mapping[str, Sequence[str]], found: Mapping[str, Place]
) -> Iterator[Element]:
    for tail, heads in others.items():
        for head in heads:
            if tail in found and head in found:
                yield element("path", d=_curve(found[tail], found[head]), class_="other")


def _node(one: Shape, place: Place) -> Element:
    x, y = _center(place)
    move = one.move if len(one.move) <= _LONGEST else f"{one.move[: _LONGEST - 1]}…"
    content = [
        element("title", one.description),
        *_marks(one.kind, x, y),
        element("text", one.figure, x=x + 18, y=y - 1, class_="figure"),
        element("text", move, x=x + 18, y=y + 13),
    ]
    names = {"id": f"node-{one.id}", "href": f"#row-{one.id}", "aria-label": one.description}
    return element("a", *content, class_=f"node {one.kind}", **names)


def _marks(kind: str, x: float, y: float) -> Iterator[Element]:
    """Kinds differ by shape and not only by colour."""
    if "best" in kind:
        yield element("circle", cx=x, cy=y, r=_RADIUS + 4, class_="ring")
    if "failed" in kind:
        size = _RADIUS - 2
        cross = f"M{x - size} {y - size}L{x + size} {y + size}M{x - size} {y + size}L{x + size} "
        yield element("path", d=f"{cross}{y - size}", class_="mark")
    elif "baseline" in kind:
        place = {"x": x - _RADIUS, "y": y - _RADIUS}
        yield element("rect", **place, width=2 * _RADIUS, height=2 * _RADIUS, class_="mark")
    else:
        yield element("circle", cx=x, cy=y, r=_RADIUS, class_="mark")


def _curve(tail: Place, head: Place) -> str:
    (x, y), (end_x, end_y) = _center(tail), _center(head)
    middle = (x + end_x) / 2
    return f"M{x:g} {y:g}C{middle:g} {y:g} {middle:g} {end_y:g} {end_x:g} {end_y:g}"


def _center(place: Place) -> tuple[float, float]:
    return _MARGIN + _COLUMN * place.column, _MARGIN + _ROW * place.row
