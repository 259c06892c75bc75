"""The asm statements of a text and the C++ that replaces them, also in macros and conditionals."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pytest_gpuenergy.emulator.translation.cuda_syntax import LITERAL, SKIPPED
from pytest_gpuenergy.emulator.translation.ptx.statements import (
    UnsupportedError,
    end_of_statement,
    refusal_message,
    shown_template,
    statement_at,
)

_KEYWORD = re.compile(
    rf"(?P<skipped>{SKIPPED}|{LITERAL})|(?<!\w)(?:asm|__asm__|__asm)(?!\w)(?=\s*[\w(\\])",
    re.VERBOSE | re.DOTALL,
)
_KEYWORD_MACRO = re.compile(
    r"^[ \t]*#[ \t]*define[ \t]+(?P<name>\w+)[ \t]+(?:asm|__asm__|__asm)"
    r"(?:[ \t]+(?:volatile|__volatile__|__volatile))?[ \t]*$",
    re.MULTILINE,
)
# Names in a replacement that interface.h does not declare.
_OF_HEADER = re.compile(r"::cuhost::cuhost_(?!(?:commit_copies|finish_copies|yield)\b)")
_DEFINE = re.compile(r"[ \t]*#[ \t]*define\b")


class AsmStatements:
    """The asm statements of a text and their replacements.

    Attributes:
        refusals: the reasons why statements cannot run, by number.
        headers: the headers of ``cuda/host`` that the statements need.
    """

    def __init__(self, source: str) -> None:
        self._source = source
        self.refusals: list[str] = []
        self.headers: set[str] = set()

    @functools.cached_property
    def _strings(self) -> MacroStrings:
        return MacroStrings(self._source)

    def replaced(self, position: int) -> tuple[int, str]:
        """Return the end of the statement whose keyword ends at ``position``, and its code."""
        end = end_of_statement(self._source, position)
        code = self._code(self._source[position:end])
        if code.count("\n") > self._source.count("\n", position, end):
            line = self._source.count("\n", 0, end) + 1
            code += f'#line {line} "kernel.cu"\n'
        return end, code

    def _code(self, text: str) -> str:
        if conditional := first_conditional(text):
            parts = (
                f"{directive}\n{self._code(conditional.before + branch + conditional.after)}\n"
                for directive, branch in conditional.branches
            )
            return "".join(["\n", *parts, "#endif\n"])
        if choice := self._strings.choice_in(text):
            return self._chosen(text, *choice)
        try:
            code = self._translated(text)
        except UnsupportedError as unsupported:
            # An error only where the compiler finds the call reachable: helpers may be unused.
            self.refusals.append(refusal_message(str(unsupported)))
            return f"::cuhost_refused_{len(self.refusals) - 1}()"
        if _OF_HEADER.search(code):
            self.headers.add("ptx.h")
        return code

    def _chosen(self, text: str, name: str, choices: Sequence[str]) -> str:
        """Return code for each string that a macro may stand for; the compiler selects one."""
        parts = (
            f"if constexpr (::cuhost::cuhost_same({name}, {choice})) "
            f"{{ {self._code(with_choice(text, name, choice))}; }}"
            for choice in choices
        )
        self.headers.add("ptx.h")
        return f"__extension__ ({{ {' else '.join(parts)} (void)0; }})"

    def _translated(self, text: str) -> str:
        # Its tables of instructions take 25 ms to build, and most texts have no PTX.
        from pytest_gpuenergy.emulator.translation.ptx.code import statement_code

        return statement_code(statement_at(text, self._strings.value, self._strings.body))

    def refusal(self, position: int) -> str:
        """Return why a statement is refused: the instruction that cannot run, or all of them."""
        end = end_of_statement(self._source, position)
        try:
            self._translated(self._source[position:end])
        except UnsupportedError as unsupported:
            return refusal_message(str(unsupported))
        return refusal_message(shown_template(self._source, position))

    def in_macro(self, start: int, end: int) -> Iterator[tuple[int, int, str]]:
        """Yield the edits of the asm statements in the macro that a directive defines."""
        if not _DEFINE.match(self._source, start, end):
            return
        position = start
        while found := _KEYWORD.search(self._source, position, end):
            position = found.end()
            if found["skipped"]:
                continue
            stop = end_of_statement(self._source[:end], position)
            if stop <= position:
                continue
            code = self._code(self._source[position:stop].replace("\\\n", ""))
            lines = self._source.count("\n", found.start(), stop)
            code = code.replace("\n", " ")
            yield found.start(), stop, code + " \\\n" * lines
            position = stop


_DIRECTIVE = re.compile(
    r"^[ \t]*#[ \t]*(?P<word>if|ifdef|ifndef|elif|else|endif)\b(?:[^\n\\]|\\.|\\\n)*$",
    re.MULTILINE,
)


@dataclass(frozen=True)
class Conditional:
    """A text with a part that depends on preprocessor conditions.

    Attributes:
        before: the text before that part.
        branches: each directive with the text that it selects.
        after: the text after that part.
    """

    before: str
    branches: Sequence[tuple[str, str]]
    after: str


def first_conditional(text: str) -> Conditional | None:
    """Return ``text`` divided at its first complete conditional part, or None."""
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
_DEEPEST = 8  # levels of macros in macros


def with_choice(text: str, name: str, choice: str) -> str:
    """Return ``text`` with ``choice`` in place of the macro ``name``."""
    return _USED.sub(lambda found: choice if found["name"] == name else found[0], text)


class MacroStrings:
    """The strings and texts that the macros of a text stand for in asm statements.

    A macro with several different definitions counts as unknown, since any of them may hold.

    Args:
        source: the CUDA C++ text.
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
            if self._macros.setdefault(found["name"], macro) != macro:
                self._macros[found["name"]] = None
            if _STRINGS.fullmatch(macro[1]) and not found["parameters"]:
                self._choices.setdefault(found["name"], set()).add(macro[1])

    def choice_in(self, text: str) -> tuple[str, list[str]] | None:
        """Return a macro in a text for which several strings are defined, with these strings."""
        for found in _USED.finditer(text):
            choices = self._choices.get(found["name"] or "", ())
            if len(choices) > 1:
                return found["name"], sorted(choices)
        return None

    def body(self, name: str) -> str | None:
        """Return the text of a macro without parameters, or None if it is unknown."""
        return self._bodies.get(name)

    def value(self, name: str, arguments: str, depth: int = 0) -> str | None:
        """Return the string for a macro with its arguments in parentheses, or None if unknown."""
        macro = self._macros.get(name)
        if macro is None or depth > _DEEPEST:
            return None
        names, body = macro
        given = [text.strip() for text in arguments[1:-1].split(",")] if arguments else [""]
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


def with_keywords(source: str) -> str:
    """Return ``source`` with ``asm`` in place of macros for it, and as many lines."""
    names = {found["name"] for found in _KEYWORD_MACRO.finditer(source)}
    if not names:
        return source
    used = rf"\b(?:{'|'.join(sorted(names))})\b(?=\s*\()"
    return re.sub(used, "asm volatile", _KEYWORD_MACRO.sub("", source))
