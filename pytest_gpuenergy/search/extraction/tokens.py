"""The tokens of C++ text, as far as its preprocessor tells them apart."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

_TOKEN = re.compile(
    r"""
    (?P<comment>//(?:\\\r?\n|[^\n])*|/\*.*?(?:\*/|\Z))
  | (?P<string>(?:u8|[uUL])?R"(?P<mark>[^\s()\\]{0,16})\(.*?\)(?P=mark)"
      |(?:u8|[uUL])?"(?:\\.|[^"\\\n])*"|(?:u8|[uUL])?'(?:\\.|[^'\\\n])*')
  | (?P<name>[A-Za-z_]\w*)
  | (?P<number>\.?\d(?:[eEpP][+-]|'(?=\w)|[\w.])*)
  | (?P<line>\r?\n)
  | (?P<blank>(?:[ \t\f\v]|\\\r?\n)+)
  | (?P<sign>\#\#|&&|\|\||[<>=!]=|<<|>>|.)
    """,
    re.VERBOSE | re.DOTALL,
)
_UNSEEN = ("comment", "blank", "line")


class Token(NamedTuple):
    """A piece of text; ``kind`` is comment, string, name, number, line, blank or sign."""

    kind: str
    text: str

    @property
    def is_seen(self) -> bool:
        """Whether it is more than a blank."""
        return self.kind not in _UNSEEN


def tokens_of(text: str) -> Iterator[Token]:
    """All tokens, which joined are the text again."""
    for match in _TOKEN.finditer(text):
        kind = match.lastgroup or "sign"
        yield Token("string" if kind == "mark" else kind, match[0])


def joined(tokens: Iterable[Token]) -> str:
    """The text of tokens."""
    return "".join(token.text for token in tokens)


def seen(tokens: Iterable[Token]) -> list[Token]:
    """The tokens without blanks, comments and ends of lines."""
    return [token for token in tokens if token.is_seen]
