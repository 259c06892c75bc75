"""Gives each local ``bool`` that is declared without a value one that differs between builds.

Compilers fill an uninitialized ``bool`` with false where they fill other variables with a pattern,
so that it would be false in every build.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from pytest_gpuenergy.emulator.tokens import Token, nested

_VALUE = " = ::cuhost::cuhost_unset"  # true, or false in the build with zeros
_DECLARED = re.compile(r"\bbool\s+\w+\s*[,;]|\bbool\s[^;(){}]*,\s*\w+\s*[,;]")
_TYPES = frozenset(("struct", "class", "union", "enum"))


def with_values(source: str) -> str:
    """``source`` with a value for each such variable of a function, and as many lines."""
    if not _DECLARED.search(source):
        return source
    parts, last = [], 0
    for position in _without_value([token for token, _ in nested(source, 0)]):
        parts += [source[last:position], _VALUE]
        last = position
    return "".join([*parts, source[last:]])


def _without_value(tokens: list[Token]) -> Iterator[int]:
    """The ends of the names of such variables."""
    scopes: list[str] = []
    head: list[str] = []  # of the statement
    for k, token in enumerate(tokens):
        if token.text == "{":
            scopes.append(_scope(head, scopes))
        elif token.text == "}" and scopes:
            scopes.pop()
        elif token.text == "bool" and "code" in scopes[-1:] and set(head) <= {"volatile"}:
            yield from _names(tokens, k + 1)
        if token.text in ("{", "}", ";"):
            head = []
        else:
            head.append(token.text)


def _scope(head: list[str], scopes: list[str]) -> str:
    """What a brace after ``head`` opens: the members of a type, statements, or other things."""
    if _TYPES.intersection(head) and "(" not in head:
        return "type"
    return "code" if "(" in head or "code" in scopes[-1:] else "other"


def _names(tokens: list[Token], first: int) -> Iterator[int]:
    """The ends of the names without a value in the declaration that goes on at ``first``."""
    depth, begins = 0, True
    for k in range(first, len(tokens) - 1):
        text, following = tokens[k].text, tokens[k + 1].text
        if text == ";":
            return
        depth += (text in "([{") - (text in ")]}")
        if begins and tokens[k].kind == "name" and following in (",", ";"):
            yield tokens[k].end
        begins = text == "," and depth == 0
