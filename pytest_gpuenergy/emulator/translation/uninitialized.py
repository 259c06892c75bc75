"""Uninitialized local variables: which texts need a second build with zeros in them.

A build fills them with the compiler's pattern, which is -1.7e38 as a float with GCC and NaN, which
a maximum ignores, with clang. A maximum that starts at -1.7e38 can look right; with zeros it does
not. A ``bool`` would be false with any pattern, so it gets a value here: true, or false in the
second build.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from pytest_gpuenergy.emulator.translation.cuda_syntax import replace_spans, tokens_in_all
from pytest_gpuenergy.kernels import CudaToken

GCC_WARNINGS = ("-Wuninitialized", "-Wmaybe-uninitialized")
"""The options of GCC that report variables which may be used uninitialized."""

CLANG_WARNINGS = ("-Wuninitialized", "-Wsometimes-uninitialized", "-Wconditional-uninitialized")
"""The same options of clang."""

_WARNING = re.compile(
    r"kernel\.cu:\d+:\d+: warning: .*\[-W(?:maybe|sometimes|conditional)?-?uninitialized\]$",
    re.MULTILINE,
)
# Compilers do not report arrays: this finds those that are declared without a value.
_ARRAY = re.compile(
    r"(?:^|[;{}])\s*(?:alignas\s*\(\w+\)\s*)?(?P<type>(?:unsigned\s+|long\s+)*\w+)\s+"
    r"(?P<name>\w+)\s*(?:\[[^\];{}]*\]\s*)+;",
    re.MULTILINE,
)
# A flag without a value, also among others, in an array or in a type.
_FLAG = re.compile(r"\bbool\s+(?:[^;(){}]*,\s*)?\w+\s*(?:\[[^\];{}]*\]\s*)*[,;]")
# Parameters have values; those of a template are no variables.
_PARAMETERS = re.compile(r"\((?:[^(){};]|\([^(){};]*\))*\)")
_TEMPLATE = re.compile(r"\btemplate\s*<(?:[^<>;{}]|<[^<>;{}]*>)*>")
_COMPARED = (
    r"\b\w*(?:max|min|Max|Min|MAX|MIN)\w*\s*\([^;{}]*\bNAME\s*\[",
    r"\bNAME\s*\[[^;]*?\]\s*[<>](?!<|>)|(?<![<>-])[<>]=?\s*NAME\s*\[",
)
_NO_TYPE = frozenset(("return", "extern", "delete", "else", "goto", "typedef"))
_VALUE = " = ::cuhost::cuhost_unset"  # true, or false in the build with zeros
_DECLARED = re.compile(r"\bbool\s+\w+\s*[,;]|\bbool\s[^;(){}]*,\s*\w+\s*[,;]")
_TYPES = frozenset(("struct", "class", "union", "enum"))


def needs_zeros(source: str, warnings: str) -> bool:
    """Return whether a pattern in uninitialized local variables may go unnoticed.

    The warnings are those of the compiler for the translation of ``source``.
    """
    if _WARNING.search(warnings):
        return True
    if _FLAG.search(_PARAMETERS.sub("()", _TEMPLATE.sub("", source))):
        return True
    names = {found["name"] for found in _ARRAY.finditer(source) if found["type"] not in _NO_TYPE}
    # Of an array whose elements are compared, a maximum may start with the pattern.
    return any(
        re.search(pattern.replace("NAME", name), source) for name in names for pattern in _COMPARED
    )


def with_values(source: str) -> str:
    """Return ``source`` with a value for each uninitialized local flag, and as many lines."""
    if not _DECLARED.search(source):
        return source
    tokens = tokens_in_all(source)
    return replace_spans(source, [(end, end, _VALUE) for end in _uninitialized_ends(tokens)])


def _uninitialized_ends(tokens: list[CudaToken]) -> Iterator[int]:
    """Yield the ends of the names of uninitialized local flags."""
    scopes: list[str] = []
    head: list[str] = []  # the words of the statement so far
    for k, token in enumerate(tokens):
        if token.text == "{":
            if _TYPES.intersection(head) and "(" not in head:
                scopes.append("type")
            else:
                scopes.append("code" if "(" in head or "code" in scopes[-1:] else "other")
        elif token.text == "}" and scopes:
            scopes.pop()
        elif token.text == "bool" and "code" in scopes[-1:] and set(head) <= {"volatile"}:
            yield from _names(tokens, k + 1)
        if token.text in ("{", "}", ";"):
            head = []
        else:
            head.append(token.text)


def _names(tokens: list[CudaToken], first: int) -> Iterator[int]:
    """Yield the ends of the names without a value in the declaration that goes on at ``first``."""
    depth, begins = 0, True
    for k in range(first, len(tokens) - 1):
        text, following = tokens[k].text, tokens[k + 1].text
        if text == ";":
            return
        depth += (text in "([{") - (text in ")]}")
        if begins and tokens[k].kind == "name" and following in (",", ";"):
            yield tokens[k].end
        begins = text == "," and depth == 0
