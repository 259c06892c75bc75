"""Which texts need a second build, with zeros in their uninitialized local variables.

Each build fills such variables with the compiler's pattern: GCC's is -1.7e38 as a float, clang's is
NaN, which a maximum ignores, and flags are true (see `unset_flags`). A maximum that starts at
-1.7e38, or a flag that is taken for true, can look right. Zeros then do not.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from pytest_gpuenergy.emulator.translation.cuda_text import Token, nested

GCC_WARNINGS = ("-Wuninitialized", "-Wmaybe-uninitialized")
"""GCC's options that name variables which may be used uninitialized."""

CLANG_WARNINGS = ("-Wuninitialized", "-Wsometimes-uninitialized", "-Wconditional-uninitialized")
"""Likewise clang's."""

_WARNING = re.compile(
    r"kernel\.cu:\d+:\d+: warning: .*\[-W(?:maybe|sometimes|conditional)?-?uninitialized\]$",
    re.MULTILINE,
)
# Compilers say nothing about arrays: find those that are declared without a value.
_ARRAY = re.compile(
    r"(?:^|[;{}])\s*(?:alignas\s*\(\w+\)\s*)?(?P<type>(?:unsigned\s+|long\s+)*\w+)\s+"
    r"(?P<name>\w+)\s*(?:\[[^\];{}]*\]\s*)+;",
    re.MULTILINE,
)
# A flag, also among others with a value, in an array or in a type.
_FLAG = re.compile(r"\bbool\s+(?:[^;(){}]*,\s*)?\w+\s*(?:\[[^\];{}]*\]\s*)*[,;]")
_NO_TYPE = frozenset(("return", "extern", "delete", "else", "goto", "typedef"))


def needs_zeros(source: str, warnings: str) -> bool:
    """Whether a pattern in uninitialized local variables may go unnoticed.

    Args:
        source: CUDA C++ text.
        warnings: what the compiler says about its translation.
    """
    if _WARNING.search(warnings) or _FLAG.search(source):
        return True
    names = {found["name"] for found in _ARRAY.finditer(source) if found["type"] not in _NO_TYPE}
    return any(_is_compared(source, name) for name in names)


def _is_compared(source: str, name: str) -> bool:
    """Whether elements of an array are compared: a maximum may start with the pattern."""
    element = rf"\b{name}\s*\[[^;]*?\]"
    return bool(
        re.search(rf"\b\w*(?:max|min|Max|Min|MAX|MIN)\w*\s*\([^;{{}}]*\b{name}\s*\[", source)
        or re.search(rf"{element}\s*[<>](?!<|>)|(?<![<>-])[<>]=?\s*{name}\s*\[", source)
    )


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
