"""Documents that are nearly right: one with a few edits, in its values or in its bytes."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Iterator
from typing import Any

from hypothesis import strategies as st

Place = tuple[Any, ...]

NUMBERS = (
    0, -1, 1, 255, 2**31, 2**32, 2**53 + 1, 2**63, 2**64, -(2**63) - 1, 10**400,
    0.0, -0.0, 0.5, 1e-320, -1e308, 1.7976931348623157e308, math.nan, math.inf, -math.inf,
)  # fmt: skip
TEXTS = (
    "", " ", ".", "..", "\0", "\ud800", "\u2028", "\x1b[2J", "λ", "x" * 300, "x" * 70_000,
    "../../etc/passwd", "/etc/passwd", "/dev/stdin", "a/b", "-1", "NaN", "1e999", "%s%n", "true",
    "O", "V16", "f4,f8", "(1000000000,)f4", "float16", "datetime64[ns]", "=cmd|' /C calc'!A0",
    "</script>", "[" * 2000, "{}", '["x"]', "9" * 5000, "0x10", "k<int>", "__global__",
)  # fmt: skip
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.sampled_from(NUMBERS),
    st.sampled_from(TEXTS),
    st.integers(),
    st.floats(),
    st.text(max_size=12),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=6,
)
"""Any JSON value, and some that JSON does not allow."""


def places(value: Any, place: Place = ()) -> Iterator[Place]:
    """The way to each value in a document, itself included."""
    yield place
    inner: Any = ()
    if isinstance(value, dict):
        inner = value.items()
    elif isinstance(value, list):
        inner = enumerate(value)
    for step, part in inner:
        yield from places(part, (*place, step))


def at(value: Any, place: Place) -> Any:
    """The value at a place."""
    for step in place:
        value = value[step]
    return value


def replaced(document: Any, place: Place, value: Any) -> Any:
    """A copy of ``document`` with ``value`` at ``place``."""
    if not place:
        return value
    whole = copy.deepcopy(document)
    at(whole, place[:-1])[place[-1]] = value
    return whole


@st.composite
def edited(draw: st.DrawFn, document: Any) -> Any:
    """``document`` after up to three edits, also within strings that contain JSON."""
    for _ in range(draw(st.integers(1, 3))):
        document = _once(draw, document)
    return document


def _once(draw: st.DrawFn, document: Any) -> Any:
    all_places = list(places(document))
    place = draw(st.sampled_from(all_places))
    old = at(document, place)
    inner = _json_in(old)
    if inner is not None and draw(st.booleans()):
        return replaced(document, place, json.dumps(_once(draw, inner)))
    kinds = ["replace", "other"]
    if isinstance(old, int | float) and not isinstance(old, bool):
        kinds += ["scale", "scale"]
    if place:
        kinds += ["remove", "repeat"]
    kind = draw(st.sampled_from(kinds))
    if kind == "scale":
        return replaced(document, place, old * draw(st.sampled_from((-1, 0, 2, 1000, 0.001))))
    if kind == "other":
        return replaced(document, place, at(document, draw(st.sampled_from(all_places))))
    if kind == "replace":
        return replaced(document, place, draw(VALUES))
    whole = copy.deepcopy(document)
    parent, step = at(whole, place[:-1]), place[-1]
    if kind == "remove":
        del parent[step]
    elif isinstance(parent, list):
        parent.insert(step, copy.deepcopy(parent[step]))
    else:
        parent[draw(st.sampled_from(TEXTS))] = parent[step]
    return whole


def _json_in(value: Any) -> Any:
    """The list or object that a string contains as JSON, if any."""
    if not isinstance(value, str) or value[:1] not in ("[", "{"):
        return None
    try:
        return json.loads(value)
    except ValueError:
        return None


@st.composite
def damaged(draw: st.DrawFn, content: bytes) -> bytes:
    """``content`` with a piece cut out, repeated or replaced by other bytes."""
    start = draw(st.integers(0, len(content)))
    end = min(len(content), start + draw(st.sampled_from((0, 1, 2, 9, 200, 10**6))))
    other = draw(st.one_of(
        st.just(b""), st.binary(max_size=9), st.just(content[start:end] * 2),
        st.sampled_from((b"\xff", b"\0", b"[" * 3000, b'"', b"\n", b"\r\n", b"\xef\xbb\xbf")),
    ))  # fmt: skip
    return content[:start] + other + content[end:]


@st.composite
def nearly(draw: st.DrawFn, content: bytes) -> bytes:
    """A text with one JSON value, or one on each line, that is nearly ``content``."""
    lines = content.split(b"\n") if _parsed(content) is None else [content]
    number = draw(st.integers(0, len(lines) - 1))
    document = _parsed(lines[number])
    if document is not None and draw(st.integers(0, 3)):
        lines[number] = json.dumps(draw(edited(document))).encode()
        return b"\n".join(lines)
    return draw(damaged(content))


def _parsed(content: bytes) -> Any:
    try:
        return json.loads(content)
    except ValueError:
        return None
