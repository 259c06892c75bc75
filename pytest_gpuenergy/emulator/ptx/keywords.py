"""Macros that stand for the keyword of asm statements."""

from __future__ import annotations

import re

_DEFINED = re.compile(
    r"^[ \t]*#[ \t]*define[ \t]+(?P<name>\w+)[ \t]+(?:asm|__asm__|__asm)"
    r"(?:[ \t]+(?:volatile|__volatile__|__volatile))?[ \t]*$",
    re.MULTILINE,
)


def with_keywords(source: str) -> str:
    """``source`` with the keyword in place of macros for it, and as many lines."""
    names = {found["name"] for found in _DEFINED.finditer(source)}
    if not names:
        return source
    used = rf"\b(?:{'|'.join(sorted(names))})\b(?=\s*\()"
    return re.sub(used, "asm volatile", _DEFINED.sub("", source))
