"""Macros of a text that stand for strings, as they are used in the text of asm statements."""

from __future__ import annotations

import re

from pytest_gpuenergy.emulator.tokens import LITERAL

# Possessive: a body of words that is no string would be divided in all possible ways.
_DEFINED = re.compile(
    rf"^[ \t]*\#[ \t]*define[ \t]++(?P<name>\w++)(?P<parameters>\([\w\s,]*\))?[ \t]++"
    rf"(?P<body>(?:{LITERAL}|\#[ \t]*\w++|\w++|[ \t]|\\\r?\n)++)"
    r"(?://[^\n]*+|/\*[^\n]*?\*/[ \t]*+)?$",
    re.VERBOSE | re.MULTILINE,
)
_BODY = re.compile(
    r"^[ \t]*#[ \t]*define[ \t]+(?P<name>\w+)[ \t]+(?P<body>(?:[^\n\\]|\\.|\\\n)*)$", re.MULTILINE
)
_PART = re.compile(rf"(?P<literal>{LITERAL})|\#[ \t]*(?P<shown>\w+)|(?P<name>\w+)", re.VERBOSE)
_STRINGS = re.compile(rf"(?:{LITERAL}|\s)+", re.VERBOSE)
_USED = re.compile(rf"{LITERAL}|(?P<name>\b[A-Za-z_]\w*)", re.VERBOSE)
_DEEPEST = 8


def with_choice(text: str, name: str, choice: str) -> str:
    """``text`` with what a macro stands for in its place."""
    return _USED.sub(lambda found: choice if found["name"] == name else found[0], text)


class Strings:
    """What a text's macros stand for, as far as asm statements use it.

    Args:
        source: CUDA C++ text. Of several definitions of a macro, any may be the one that holds: it
            counts as unknown unless they are equal.
    """

    def __init__(self, source: str) -> None:
        self._macros: dict[str, tuple[list[str], str] | None] = {}
        self._choices: dict[str, set[str]] = {}
        self._bodies: dict[str, str | None] = {}
        for found in _BODY.finditer(source):
            body = found["body"].replace("\\\n", " ").strip()
            if self._bodies.setdefault(found["name"], body) != body:
                self._bodies[found["name"]] = None
        for found in _DEFINED.finditer(source):
            names = [name.strip() for name in (found["parameters"] or "()")[1:-1].split(",")]
            macro = (names, found["body"].replace("\\\n", " ").strip())
            known = self._macros.setdefault(found["name"], macro)
            if known != macro:
                self._macros[found["name"]] = None
            if _STRINGS.fullmatch(macro[1]) and not found["parameters"]:
                self._choices.setdefault(found["name"], set()).add(macro[1])

    def choice_in(self, text: str) -> tuple[str, list[str]] | None:
        """A macro that a text uses and of which several strings are defined, and these strings."""
        for found in _USED.finditer(text):
            choices = self._choices.get(found["name"] or "", ())
            if len(choices) > 1:
                return found["name"], sorted(choices)
        return None

    def body(self, name: str) -> str | None:
        """The text of a macro without parameters; None where there is none, or several."""
        return self._bodies.get(name)

    def value(self, name: str, arguments: str, depth: int = 0) -> str | None:
        """The string for a macro's name and its arguments in parentheses, or none; else None."""
        macro = self._macros.get(name)
        if macro is None or depth > _DEEPEST:
            return None
        names, body = macro
        given = [one.strip() for one in arguments[1:-1].split(",")] if arguments else [""]
        if len(given) != len(names):
            return None
        values = dict(zip(names, given, strict=True))
        pieces = []
        for part in _PART.finditer(body):
            if part["literal"]:
                pieces.append(part["literal"][1:-1].replace("\\n", "\n").replace("\\t", "\t"))
            elif part["shown"]:
                pieces.append(values.get(part["shown"], ""))
            else:
                inner = self.value(part["name"], "", depth + 1)
                if inner is None:
                    return None
                pieces.append(inner)
        return "".join(pieces)
