"""The tokens of CUDA C++ text, for all that read such text without a parser."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

COMMENT = r"//(?:[^\n\\]|\\.|\\\n)* | /\*.*?\*/"
"""The pattern of comments (verbose; a dot matches all)."""

LITERAL = r"""
    (?:u8|[uUL])?R"(?P<delimiter>[^()\\\s]{0,16})\(.*?\)(?P=delimiter)"
  | "(?:[^"\\\n]|\\.)*"
  | '(?:[^'\\\n]|\\.)*'
"""
"""The pattern of strings, raw strings and characters (verbose; a dot matches all)."""

# A directive is one token. It does not begin on a line that continues a macro.
_TOKEN = re.compile(
    rf"""
    (?P<directive> (?<![^\n])(?<!\\\n)[ \t]*\#(?:[^\n\\/]|\\.|\\\n|/(?![/*])|//[^\n]*|/\*.*?\*/)*)
  | (?P<skipped> [^\S\n]+ | \n+ | \\\r?\n | {COMMENT})
  | (?P<literal> {LITERAL})
  | (?P<name> [A-Za-z_]\w*)
  | (?P<number> \.?\d(?:[eEpP][+-]|'\w|[\w.])*)
  | (?P<symbol> <<<|<<=|>>=|->\*?|\.\.\.|<<|>>|::|\+\+|--|&&|\|\||\#\#|[-+*/%&|^=!<>]=|.)
    """,
    re.VERBOSE | re.DOTALL,
)

_COMMENT = re.compile(rf"(?P<comment>{COMMENT}) | {LITERAL}", re.VERBOSE | re.DOTALL)


class CudaToken(NamedTuple):
    """A token, with the positions of its first character and after its last one.

    The kind is ``literal``, ``name``, ``number``, ``symbol`` or ``directive``.
    """

    kind: str
    text: str
    start: int
    end: int


def cuda_tokens(source: str, begin: int = 0, end: int | None = None) -> Iterator[CudaToken]:
    """Yield the tokens of a part of ``source``, without comments and white space."""
    make = tuple.__new__  # takes half the time of the class, and a kernel has 50,000 tokens
    for match in _TOKEN.finditer(source, begin, len(source) if end is None else end):
        kind = match.lastgroup
        if kind != "skipped":
            kind = "literal" if kind == "delimiter" else kind
            yield make(CudaToken, (kind, match[0], match.start(), match.end()))


def without_comments(source: str) -> str:
    """Return ``source`` with a blank in place of each comment; strings stay as they are."""
    return _COMMENT.sub(lambda match: " " if match["comment"] else match[0], source)
