"""GNU asm statements in CUDA C++ text (GCC manual, "Extended Asm", as far as nvcc takes it)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from pytest_gpuenergy.emulator.translation.cuda_syntax import (
    LITERAL,
    SKIPPED,
    CudaToken,
    tokens_with_depth,
)

CANNOT = "cannot run on the emulated GPU"
"""The words in every message about CUDA text that the host cannot run."""

_SHOWN = 60  # characters of PTX in a message
_QUALIFIERS = frozenset(("volatile", "__volatile__", "__volatile", "inline", "__inline__"))
_PIECE = re.compile(
    rf"""
    (?:u8|[uUL])?R"(?P<delimited>[^()\\\s]{{0,16}})\((?P<raw>.*?)\)(?P=delimited)"
  | (?P<skipped>{SKIPPED} | \s+ | \\\r?\n)
  | (?P<literal>{LITERAL})
  | (?P<macro>[A-Za-z_]\w*)(?P<arguments>\s*\([^()]*\))?
  | (?P<other>.)
    """,
    re.VERBOSE | re.DOTALL,
)
_DIRECTIVE = re.compile(r"^[ \t]*#", re.MULTILINE)
_ESCAPE = re.compile(r"\\(?:\r?\n|(.))", re.DOTALL)
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r", "v": "\v"}
_CONSTRAINT = re.compile(r"[=+]?[rhlfdni]")

_Macros = Callable[[str, str], str | None]
_Bodies = Callable[[str], str | None]


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


def end_of_statement(source: str, position: int) -> int:
    """Return the end of the asm statement whose keyword ends at ``position``, before ``;``."""
    for token, depth in tokens_with_depth(source, position):
        if depth == 0 and token.text == ")":
            return token.end
        if depth == 0 and token.text == ";":
            break
    return position


def shown_template(source: str, position: int) -> str:
    """Return the strings with which the statement begins, for messages."""
    pieces = []
    for token, depth in tokens_with_depth(source, position):
        if token.kind == "literal" and depth == 1:
            pieces.append(token.text[1:-1])
        elif token.text in (":", "::", ";") or (depth == 0 and token.text == ")"):
            break
    return re.sub(r"\\[nt]|\\\n", " ", "".join(pieces)).strip()


def statement_at(text: str, macros: _Macros, bodies: _Bodies) -> Statement:
    """Return the statement in ``text``.

    Args:
        text: the text after the keyword.
        macros: a function that returns the string for a macro and its arguments, or None.
        bodies: a function that returns the text of a macro without parameters, which may stand for
            operands, or None.

    Raises:
        UnsupportedError: the statement is malformed, or nvcc has none of its kind.
    """
    if _DIRECTIVE.search(text):
        raise UnsupportedError("asm with preprocessor directives inside")
    sections = list(_sections(text))
    if not sections:
        raise UnsupportedError("asm without instructions")
    start, stop, _ = sections[0]
    template = _template(text[start:stop], macros)
    operands: list[Operand] = []
    for number, (_, _, tokens) in enumerate(sections[1:3]):
        for item in _items(tokens):
            body = bodies(item[0].text) if len(item) == 1 else None
            given = [(text, item)] if body is None else _listed(body)
            operands += [_operand(source, part, output=number == 0) for source, part in given]
    return Statement(template, tuple(operands))


_Section = tuple[int, int, list[tuple[CudaToken, int]]]


def _sections(text: str) -> Iterator[_Section]:
    """Yield start, end and tokens of the parts between the colons in the parentheses."""
    tokens: list[tuple[CudaToken, int]] = []
    start = -1
    for token, depth in tokens_with_depth(text, 0):
        if start < 0 and token.text == "(":
            start = token.end
        elif start < 0:
            if token.text not in _QUALIFIERS:
                raise UnsupportedError(f"asm {token.text}")
        elif depth == 0 and token.text == ")":
            yield start, token.start, tokens
            return
        elif depth == 1 and token.text in (":", "::"):
            yield start, token.start, tokens
            if token.text == "::":
                yield token.end, token.end, []
            start, tokens = token.end, []
        else:
            tokens.append((token, depth))


def _template(text: str, macros: _Macros) -> str:
    pieces: list[str] = []
    for piece in _PIECE.finditer(text):
        if piece["raw"] is not None:
            pieces.append(piece["raw"])
        elif piece["literal"]:
            pieces.append(_unescaped(piece["literal"][1:-1]))
        elif piece["macro"]:
            value = macros(piece["macro"], (piece["arguments"] or "").strip())
            if value is None:
                raise UnsupportedError(f"asm whose text comes from {piece['macro']}")
            pieces.append(value)
        elif piece["other"]:
            raise UnsupportedError(f"asm with {piece['other']} beside its strings")
    return "".join(pieces)


def _unescaped(text: str) -> str:
    return _ESCAPE.sub(lambda found: _ESCAPED.get(found[1] or "", found[1] or ""), text)


def _items(tokens: Sequence[tuple[CudaToken, int]]) -> Iterator[list[CudaToken]]:
    item: list[CudaToken] = []
    for token, depth in tokens:
        if depth == 1 and token.text == ",":
            yield item
            item = []
        elif token.text != "\\":  # of a macro's lines
            item.append(token)
    if item:
        yield item


def _listed(body: str) -> list[tuple[str, list[CudaToken]]]:
    """Return the operands that a macro stands for."""
    text = f"({body})"
    return [(text, item) for item in _items(list(tokens_with_depth(text, 0))[1:-1])]


def _operand(text: str, item: Sequence[CudaToken], *, output: bool) -> Operand:
    k, constraint = 0, ""
    while k < len(item) and item[k].kind == "literal":
        constraint += _unescaped(item[k].text[1:-1])
        k += 1
    is_output = constraint[:1] in ("=", "+")
    valid = _CONSTRAINT.fullmatch(constraint) and is_output == output
    if not valid or k + 1 >= len(item) or item[k].text != "(":
        raise UnsupportedError(f"asm with the constraint '{constraint}'")
    letter = constraint[-1].replace("i", "n")
    expression = text[item[k].end : item[-1].start]
    return Operand(letter, constraint[:-1], expression)
