"""Marks the implicit conversions of floating-point numbers to integers in translated text.

Only a compiler knows where they are: it says so, and the text is compiled again with the marks that
``cuda/host/arithmetic.h`` describes.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from pytest_gpuenergy.emulator.expressions import tokens_of
from pytest_gpuenergy.emulator.tokens import Token

WARNINGS = ("-Wfloat-conversion",)
"""The compiler's options that name them."""

_MARK = " cuhost_real ="
_FIRST_LINE = '#line 1 "kernel.cu"\n'
_WARNING = re.compile(
    r"^[^\s:]*kernel\.cu:(?P<line>\d+):(?P<column>\d+): warning: (?P<text>.*)"
    r"\[-W(?:float|literal)-conversion\]$",
    re.MULTILINE,
)
# In GCC's words, then in clang's.
_TO = re.compile(r"to '(?P<to>[^']+)'(?: (?:\{aka|\(aka) '(?P<aka>[^']+)')?")
_REAL = re.compile(r"\b(?:float|double|_Float16|__fp16|bool)\b")
_ASSIGNMENTS = frozenset(("=", "+=", "-=", "*=", "/="))


@dataclass(frozen=True)
class Place:
    """A line and a column in bytes, both from 1, of the text that was compiled."""

    line: int
    column: int


def conversions_in(stderr: str) -> list[Place]:
    """The implicit conversions to integers that a compiler's output names, each once."""
    found: dict[Place, None] = {}
    for warning in _WARNING.finditer(stderr):
        to = _TO.search(warning["text"])
        if to is not None and not _REAL.search(to["aka"] or to["to"]):
            found[Place(int(warning["line"]), int(warning["column"]))] = None
    return list(found)


def with_conversions(text: str, places: Sequence[Place]) -> str:
    """``text`` with a mark before each expression that contains one of ``places``."""
    begin = text.index(_FIRST_LINE) + len(_FIRST_LINE)
    lines = text[begin:].splitlines(keepends=True)
    starts = [begin]
    for line in lines:
        starts.append(starts[-1] + len(line))
    tokens = _tokens(text, begin)
    index_at = {token.start: k for k, token in enumerate(tokens)}
    marks = set()
    for place in places:
        if place.line > len(lines):
            continue
        before = lines[place.line - 1].encode()[: place.column - 1].decode(errors="replace")
        at = index_at.get(starts[place.line - 1] + len(before))
        if at is not None:
            marks.add(_before_expression(tokens, at))
    parts, last = [], 0
    for position in sorted(marks):
        parts += [text[last:position], _MARK, " "]
        last = position
    return "".join([*parts, text[last:]])


def _tokens(text: str, begin: int) -> list[Token]:
    """All tokens, with those of directives between semicolons."""
    tokens: list[Token] = []
    for kind, token in tokens_of(text, begin):
        if kind != "directive":
            tokens.append(token)
            continue
        fence = Token("symbol", ";", token.start, token.start)
        hash_end = token.start + token.text.index("#") + 1
        inner = [one for _, one in tokens_of(text, hash_end, token.end)]
        tokens += [fence, *inner, fence]
    return tokens


def _before_expression(tokens: Sequence[Token], at: int) -> int:
    """Where the assignment, argument or returned value begins that contains the token ``at``."""
    if tokens[at].text in _ASSIGNMENTS:
        return tokens[at].end
    depth, k = int(tokens[at].text in (")", "]", "}")), at
    while k > 0:
        k -= 1
        text = tokens[k].text
        if text in (")", "]", "}"):
            depth += 1
        elif text in ("(", "[", "{"):
            if not depth:
                return tokens[k].end
            depth -= 1
        elif not depth and (text in (",", ";", "return") or text in _ASSIGNMENTS):
            return tokens[k].end
    return tokens[0].start
