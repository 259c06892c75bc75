"""The definition of a kernel function, found in CUDA C++ text."""

from __future__ import annotations

import re
from dataclasses import dataclass

_SKIPPED = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:[^"\\\n]|\\.)*"', re.DOTALL)


@dataclass(frozen=True)
class Definition:
    """Text of a function without its comments and strings.

    Attributes:
        parameters: the text in its parentheses.
        body: the text in its braces.
    """

    parameters: str
    body: str


def function_of(entry: str) -> str:
    """The bare name of the function, without namespaces and template arguments."""
    return entry.partition("<")[0].rpartition("::")[2].strip()


def definition_of(source: str, entry: str) -> Definition:
    """The definition of the function ``entry``; if none is found, its body is the whole text."""
    text = _SKIPPED.sub("", source)
    name = re.escape(function_of(entry))
    found = re.search(rf"\b{name}\s*\(([^;{{}}]*)\)\s*\{{", text)
    if found is None:
        return Definition("", text)
    depth = 1
    for brace in re.finditer(r"[{}]", text[found.end() :]):
        depth += 1 if brace[0] == "{" else -1
        if not depth:
            return Definition(found[1], text[found.end() : found.end() + brace.start()])
    return Definition(found[1], text[found.end() :])
