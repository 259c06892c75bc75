"""Conditional directives within a statement."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

_DIRECTIVE = re.compile(
    r"^[ \t]*#[ \t]*(?P<word>if|ifdef|ifndef|elif|else|endif)\b(?:[^\n\\]|\\.|\\\n)*$",
    re.MULTILINE,
)


@dataclass(frozen=True)
class Conditional:
    """The first conditional part of a text.

    Attributes:
        before: the text before it.
        branches: each directive, and the text that holds under it.
        after: the text after it.
    """

    before: str
    branches: Sequence[tuple[str, str]]
    after: str


def first_conditional(text: str) -> Conditional | None:
    """The first conditional part of ``text``; None where there is none that is complete."""
    branches: list[tuple[str, str]] = []
    depth, before, directive, start = 0, "", "", 0
    for found in _DIRECTIVE.finditer(text):
        word = found["word"]
        if word.startswith("if"):
            depth += 1
        if depth == 1 and word in ("if", "ifdef", "ifndef"):
            before = text[: found.start()]
        elif depth == 1:
            branches.append((directive, text[start : found.start()]))
        if depth == 1:
            directive, start = found[0], found.end()
        if word == "endif":
            depth -= 1
            if not depth and branches:
                if not re.match(r"[ \t]*#[ \t]*else\b", branches[-1][0]):
                    branches.append(("#else", ""))
                return Conditional(before, branches, text[found.end() :])
    return None
