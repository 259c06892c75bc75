"""The tokens of CUDA C++ text, as far as the translation for the host needs them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

SKIPPED = r"""
    //(?:[^\n\\]|\\.|\\\n)*
  | /\*.*?\*/
  | (?:u8|[uUL])?R"(?P<delimiter>[^()\\\s]{0,16})\(.*?\)(?P=delimiter)"
"""
"""Pattern (verbose, dot matches all) of comments and raw strings."""

LITERAL = r"""
    "(?:[^"\\\n]|\\.)*"
  | '(?:[^'\\\n]|\\.)*'
"""
"""Pattern (verbose) of ordinary strings and characters."""

LAUNCH_BOUNDS, CLUSTER_DIMS = "__launch_bounds__", "__cluster_dims__"
ATTRIBUTES = frozenset(
    (
        *(LAUNCH_BOUNDS, CLUSTER_DIMS, "__block_size__", "__maxnreg__"),
        *("__attribute__", "alignas", "__align__", "__declspec", "decltype", ""),
    )
)
"""Names whose parentheses hold no parameters of the function being declared."""

_TOKEN = re.compile(
    rf"""
    (?P<skipped>{SKIPPED} | \s+)
  | (?P<literal>{LITERAL})
  | (?P<name>[A-Za-z_]\w*)
  | (?P<number>\.?\d(?:[eEpP][+-]|'\w|[\w.])*)
  | (?P<symbol>::|.)
    """,
    re.VERBOSE | re.DOTALL,
)


@dataclass(frozen=True)
class Token:
    """One token: ``kind`` is ``literal``, ``name``, ``number`` or ``symbol``."""

    kind: str
    text: str
    start: int
    end: int


def nested(source: str, position: int) -> Iterator[tuple[Token, int]]:
    """The tokens from ``position`` on, each with the depth of parentheses and square brackets.

    An opening bracket has the depth of what it encloses, a closing one that of what surrounds it.
    """
    depth = 0
    while match := _TOKEN.match(source, position):
        position = match.end()
        kind = str(match.lastgroup if match.lastgroup != "delimiter" else "skipped")
        if kind == "skipped":
            continue
        token = Token(kind, match[0], match.start(), match.end())
        if token.text in ("(", "["):
            depth += 1
        elif token.text in (")", "]"):
            depth -= 1
        yield token, depth


def without_attributes(tokens: Iterable[Token]) -> Iterator[Token]:
    """``tokens`` without `ATTRIBUTES` and their arguments."""
    depth, dropping = 0, False
    for token in tokens:
        if not dropping and token.text in ATTRIBUTES:
            dropping = True
            continue
        if dropping:
            depth += {"(": 1, ")": -1}.get(token.text, 0)
            if depth == 0 and token.text == ")":
                dropping = False
            continue
        yield token
