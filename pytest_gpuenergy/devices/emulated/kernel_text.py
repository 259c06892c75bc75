"""The definition of a kernel function, found in CUDA C++ text."""

from __future__ import annotations

import re
from dataclasses import dataclass

_SKIPPED = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:[^"\\\n]|\\.)*"', re.DOTALL)


@dataclass(frozen=True)
class Definition:
    """Text of a function without its comments and strings.

    Attributes:
        parameters: what stands in its parentheses.
        body: what stands in its braces.
    """

    parameters: str
    body: str


def function_of(entry: str) -> str:
    """The name of the function alone, without its namespaces and the arguments of its template."""
    return entry.partition("<")[0].rpartition("::")[2].strip()


def definition_of(source: str, entry: str) -> Definition:
    """That of the kernel function ``entry``; all of the text is its body if it is not found."""
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
