"""GNU asm statements in CUDA C++ text (GCC manual, "Extended Asm", as far as nvcc takes it)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from pytest_gpuenergy.emulator.translation.cuda_syntax import replace_spans, with_depth
from pytest_gpuenergy.kernels import CudaToken, cuda_tokens

CANNOT = "cannot run on the emulated GPU"
"""The words in every message about CUDA text that the host cannot run."""

_SHOWN = 60  # characters of PTX in a message
_QUALIFIERS = frozenset(("volatile", "__volatile__", "__volatile", "inline", "__inline__"))
_DEFINE = re.compile(r"[ \t]*#[ \t]*define[ \t]+(?P<name>\w+)(?P<parameters>\([\w\s,]*\))?")
_DEEPEST = 8  # levels of macros in macros
_ESCAPE = re.compile(r"\\(?:\r?\n|(.))", re.DOTALL)
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r", "v": "\v"}
_CONSTRAINT = re.compile(r"(?:[=+]&?)?[rhlfdni]")  # registers are never shared, as & demands


class UnsupportedError(Exception):
    """PTX that the emulated GPU does not run; the argument is the instruction or the reason."""


def refusal_message(ptx: str) -> str:
    """Return why PTX, or ``asm`` that is not understood, is refused."""
    if ptx.startswith("asm "):
        return f"{CANNOT}: {ptx}"
    shown = re.sub(r'[\\"]', "", " ".join(ptx.split()))
    return f"{CANNOT}: inline PTX '{shown[:_SHOWN]}{'...' if len(shown) > _SHOWN else ''}'"


@dataclass(frozen=True)
class Operand:
    """An operand of an asm statement.

    Attributes:
        constraint: the letter of its constraint; ``n`` is a constant.
        access: ``=`` or ``+`` for an output, empty for an input.
        expression: the C++ text in its parentheses.
    """

    constraint: str
    access: str
    expression: str


@dataclass(frozen=True)
class Statement:
    """An asm statement; ``template`` is its PTX with escapes resolved."""

    template: str
    operands: tuple[Operand, ...]


def end_of_statement(source: str, position: int, end: int | None = None) -> int:
    """Return the end of the asm statement whose keyword ends at ``position``, before ``;``."""
    for token, depth in with_depth(cuda_tokens(source, position, end)):
        if depth == 0 and token.text == ")":
            return token.end
        if depth == 0 and token.text == ";":
            break
    return position


def shown_template(source: str, position: int) -> str:
    """Return the strings with which the statement begins, for messages."""
    pieces = []
    for token, depth in with_depth(cuda_tokens(source, position)):
        if token.kind == "literal" and depth == 1:
            pieces.append(_string_text(token.text))
        elif token.text in (":", "::", ";") or (depth == 0 and token.text == ")"):
            break
    return "".join(pieces).strip()


def parse_statement(text: str, macros: MacroStrings) -> Statement:
    """Return the statement in ``text``, which begins after its keyword."""
    sections = list(_sections(text))
    if not sections:
        raise UnsupportedError("asm without instructions")
    template = macros.template([token for token, _ in sections[0]])
    operands: list[Operand] = []
    for number, tokens in enumerate(sections[1:3]):
        for item in _items(tokens):
            source, parts = text, [item]
            if len(item) == 1 and (body := macros.body(item[0].text)) is not None:
                source = f"({body})"  # a macro that stands for operands
                parts = list(_items(list(with_depth(cuda_tokens(source)))[1:-1]))
            operands += [_operand(source, part, output=number == 0) for part in parts]
    return Statement(template, tuple(operands))


_Section = list[tuple[CudaToken, int]]


def _sections(text: str) -> Iterator[_Section]:
    """Yield the tokens of the parts between the colons in the parentheses."""
    tokens: _Section | None = None
    for token, depth in with_depth(cuda_tokens(text)):
        if token.kind == "directive":
            raise UnsupportedError("asm with preprocessor directives inside")
        if tokens is None:
            if token.text == "(":
                tokens = []
            elif token.text not in _QUALIFIERS:
                raise UnsupportedError(f"asm {token.text}")
        elif depth == 0 and token.text == ")":
            yield tokens
            return
        elif depth == 1 and token.text in (":", "::"):
            yield tokens
            if token.text == "::":
                yield []
            tokens = []
        else:
            tokens.append((token, depth))


def _string_text(literal: str) -> str:
    """Return the text of a string."""
    if "R" in literal.partition('"')[0]:  # a raw string
        return literal[literal.index("(") + 1 : literal.rindex(")")]
    inner = literal[1:-1]
    return _ESCAPE.sub(lambda found: _ESCAPED.get(found[1] or "", found[1] or ""), inner)


def _token_text(tokens: Iterable[CudaToken]) -> str:
    """Return the text of tokens, with a space for each comment or white space between them."""
    text, last = "", 0
    for token in tokens:
        text += (" " if text and token.start > last else "") + token.text
        last = token.end
    return text


def _items(tokens: _Section) -> Iterator[list[CudaToken]]:
    item: list[CudaToken] = []
    for token, depth in tokens:
        if depth == 1 and token.text == ",":
            yield item
            item = []
        else:
            item.append(token)
    if item:
        yield item


def _operand(text: str, item: Sequence[CudaToken], *, output: bool) -> Operand:
    k, constraint = 0, ""
    while k < len(item) and item[k].text.startswith('"'):
        constraint += item[k].text[1:-1]
        k += 1
    is_output = constraint[:1] in ("=", "+")
    valid = _CONSTRAINT.fullmatch(constraint) and is_output == output
    if not valid or k + 1 >= len(item) or item[k].text != "(":
        raise UnsupportedError(f"asm with the constraint '{constraint}'")
    letter = constraint[-1].replace("i", "n")
    expression = text[item[k].end : item[-1].start]
    return Operand(letter, constraint[:-1].rstrip("&"), expression)


def with_choice(text: str, name: str, choice: str) -> str:
    """Return ``text`` with ``choice`` in place of the macro ``name``."""
    tokens = cuda_tokens(text)
    return replace_spans(text, [(*token[2:], choice) for token in tokens if token.text == name])


class _StringMacro(NamedTuple):
    """A definition of a macro: its parameters, None without parentheses, and its body."""

    parameters: tuple[str, ...] | None
    body: str


class MacroStrings:
    """The strings and texts that the macros of a CUDA text stand for in asm statements.

    A macro with several different definitions counts as unknown, since any of them may hold.
    """

    def __init__(self, source: str) -> None:
        self._definitions: dict[str, set[_StringMacro]] = {}
        for token in cuda_tokens(source):
            if token.kind == "directive" and (found := _DEFINE.match(token.text)):
                parameters = None
                if names := found["parameters"]:
                    parameters = tuple(name.strip() for name in names[1:-1].split(","))
                macro = _StringMacro(parameters, _token_text(cuda_tokens(token.text, found.end())))
                self._definitions.setdefault(found["name"], set()).add(macro)

    def string_choice(self, text: str) -> tuple[str, list[str]] | None:
        """Return a macro in a text for which several strings are defined, with these strings."""
        for token in cuda_tokens(text):
            macros = self._definitions.get(token.text, ())
            strings = [
                macro.body
                for macro in macros
                if macro.parameters is None
                and {inner.kind for inner in cuda_tokens(macro.body)} == {"literal"}
            ]
            if len(strings) > 1:
                return token.text, sorted(strings)
        return None

    def body(self, name: str) -> str | None:
        """Return the text of a macro without parameters, or None if it is unknown."""
        macro = self._only(name)
        return macro.body if macro and macro.parameters is None else None

    def template(self, tokens: Sequence[CudaToken]) -> str:
        """Return the text of strings and macros that stand for strings."""
        pieces, k = [], 0
        while k < len(tokens):
            token = tokens[k]
            arguments: tuple[str, ...] = ()
            k += 1
            if token.kind == "literal":
                pieces.append(_string_text(token.text))
                continue
            if token.kind != "name":
                raise UnsupportedError(f"asm with {token.text} beside its strings")
            if k < len(tokens) and tokens[k].text == "(":
                texts = [other.text for other in tokens[k:]]
                closing = texts.index(")") if ")" in texts else 0
                listed = _token_text(tokens[k + 1 : k + closing])
                arguments = tuple(part.strip() for part in listed.split(","))
                k += closing + 1
            value = self._value(token.text, arguments)
            if value is None:
                raise UnsupportedError(f"asm whose text comes from {token.text}")
            pieces.append(value)
        return "".join(pieces)

    def _only(self, name: str) -> _StringMacro | None:
        macros = self._definitions.get(name, set())
        return next(iter(macros)) if len(macros) == 1 else None

    def _value(self, name: str, arguments: Sequence[str], depth: int = 0) -> str | None:
        """Return the string for a macro with its arguments, or None if it is unknown."""
        macro = self._only(name)
        if macro is None or depth > _DEEPEST or len(arguments) != len(macro.parameters or ()):
            return None
        values = dict(zip(macro.parameters or (), arguments, strict=True))
        pieces: list[str | None] = []
        shown = False  # after #
        for token in cuda_tokens(macro.body):
            if token.kind == "literal":
                pieces.append(_string_text(token.text))
            elif token.kind == "name":
                shown_value = values.get(token.text, "")
                inner = self._value(token.text, (), depth + 1)
                pieces.append(shown_value if shown else inner)
            elif token.text != "#":
                return None
            shown = token.text == "#"
        return None if None in pieces else "".join(filter(None, pieces))
