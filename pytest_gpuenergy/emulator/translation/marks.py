"""Marks on arithmetic whose results would differ between a GPU and the host.

Shifts, divisions and conversions to integers get the marks that ``cuda/host/arithmetic.h``
describes. Operations that cannot differ get none, since marks take time to compile: divisions and
shifts by a literal, and casts of indices. Only a compiler knows where implicit conversions are: it
reports them, and the text is compiled again with their marks.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence

from pytest_gpuenergy.emulator.translation.cuda_syntax import (
    CudaExpressions,
    read_expressions,
    replace_spans,
    tokens_in_all,
)
from pytest_gpuenergy.kernels import COMMENT, LITERAL, CudaToken

_MARKS = {
    "<<": "<< cuhost_op <<",
    ">>": ">> cuhost_op >>",
    "/": "* !cuhost_op /",
    "%": "* !cuhost_op %",
    **{f"{op}=": f"{op}= cuhost_op =" for op in ("<<", ">>", "/", "%")},
}
_TYPES = r"(?:\w+::)*(?:unsigned|char|short|long|(?:u?int|size|ptrdiff)(?:\d*_t)?|u\w+|[A-Z]\w*)"
_WHOLE = re.compile(r"(?:0x[\da-f]+|\d+)[ul]*", re.IGNORECASE)
_INDICES = ("threadIdx", "blockIdx", "blockDim", "gridDim")
# A text without any of these needs no marks.
_SUSPECT = re.compile(
    rf"""
    (?:{COMMENT}|{LITERAL}|^[ \t]*\#[ \t]*(?!define)[^\n]*)
  | (?P<found>
      (?:<<|>>) =? (?!\s*(?:[12]?\d|3[01])(?![\w.]))
    | [/%] =? (?!\s*(?:0*[1-9]|\d+\.))
    | \(\s*(?:[A-Za-z_][\w:]*\s+)*(?:{_TYPES})\s*\)
      \s*(?!(?:{"|".join(_INDICES)})\b|[)\s;,{{=]|\d+\b[^.])
    | \bstatic_cast\b | \btypename\b | \btypedef\b | \busing\s+(?!u|int)\w+\s*=
    | (?<![\w ])[ ]*\b(?:{_TYPES})\s*\((?!\s*[)*]))
    """,
    re.VERBOSE | re.DOTALL | re.MULTILINE,
)

CONVERSION_WARNINGS = ("-Wfloat-conversion",)
"""The options of the compiler that report implicit conversions."""

_MARK = " cuhost_real ="
_FIRST_LINE = '#line 1 "kernel.cu"\n'
_WARNING = re.compile(
    r"^[^\s:]*kernel\.cu:(?P<line>\d+):(?P<column>\d+): warning: (?P<text>.*)"
    r"\[-W(?:float|literal)-conversion\]$",
    re.MULTILINE,
)
# In GCC's words, then in clang's.
_TO = re.compile(r"to '(?P<to>[^']+)'(?: (?:\{aka|\(aka) '(?P<aka>[^']+)')?")
_REAL = re.compile(r"\b(?:float|double|_Float16|__fp16|bool)\b")
_ASSIGNMENTS = frozenset(("=", "+=", "-=", "*=", "/="))


def marked(source: str) -> str:
    """Return ``source`` with its marks and as many lines as before."""
    if not any(match["found"] for match in _SUSPECT.finditer(source)):
        return source
    edits: list[tuple[int, int, str]] = []
    for expressions in read_expressions(source):
        edits += _operators(expressions)
        edits += _casts(expressions)
    return replace_spans(source, sorted(edits))


def unmarked(message: str) -> str:
    """Return ``message`` without the marks in the text that it quotes."""
    text = re.sub(r"(?:<< cuhost_op |>> cuhost_op |\* !cuhost_op )(?=<<|>>|/|%)", "", message)
    return re.sub(r" ?cuhost_(?:op|real) =|cuhost_to<([^>]*)>", r"\1", text)


def _operators(expressions: CudaExpressions) -> Iterator[tuple[int, int, str]]:
    for k, token in enumerate(expressions.tokens):
        mark = _MARKS.get(token.text)
        if mark is None or token.kind != "symbol" or k in expressions.closers:
            continue
        if {expressions.text(k - 1), expressions.text(k + 1)} & {"operator", "...", "##", ""}:
            continue
        if expressions.tokens[k + 1].kind == "number":  # host and GPU may agree
            text = expressions.text(k + 1).lower()
            try:
                value = int(text.replace("'", "").rstrip("ul"), 0)
            except ValueError:
                continue  # a floating-point number
            if value < 32 if token.text[0] in "<>" else value > 0:
                continue
        yield token.start, token.end, mark


def _casts(expressions: CudaExpressions) -> Iterator[tuple[int, int, str]]:
    tokens = expressions.tokens
    for k, token in enumerate(tokens):
        if token.text == "(":
            operand = expressions.cast_end(k)
            if operand is None or not expressions.is_integer_type(k + 1, operand - 1):
                continue
            following = expressions.text(operand + 1)
            literal = tokens[operand].kind == "number" and following not in (".", "->")
            whole = literal and _WHOLE.fullmatch(tokens[operand].text)
            if tokens[operand].text not in _INDICES and not whole:
                last = tokens[expressions.operand_end(operand) - 1]
                kind = " ".join(t.text for t in tokens[k + 1 : operand - 1])
                yield token.start, tokens[operand - 1].end, f"cuhost_to<{kind}>("
                yield last.end, last.end, ")"
        elif token.text == "static_cast" and expressions.text(k + 1) == "<":
            closing = expressions.partner.get(k + 1)
            if closing is not None and expressions.is_integer_type(k + 2, closing):
                yield token.start, token.end, "cuhost_to"
        elif _is_called_type(expressions, k):
            yield token.start, token.end, f"cuhost_to<{token.text}>"


def _is_called_type(expressions: CudaExpressions, k: int) -> bool:
    """Return whether a cast ``type(...)`` begins at ``k``, not a declarator or a function type."""
    if not expressions.is_integer_type(k, k + 1) or expressions.text(k + 1) != "(":
        return False
    if not expressions.begins_expression(k) or expressions.text(k - 1) in (";", "}", "", "::"):
        return False
    end = expressions.partner.get(k + 1)
    if end is None or end == k + 2 or expressions.text(end + 1) in ("(", "["):
        return False
    return not expressions.is_integer_type(k + 2, k + 3)


_Place = tuple[int, int]  # a line and a column in bytes, both counted from 1


def conversions_in(stderr: str) -> list[_Place]:
    """Return the places of implicit conversions to integers in a compiler's output, each once."""
    found: dict[_Place, None] = {}
    for warning in _WARNING.finditer(stderr):
        to = _TO.search(warning["text"])
        if to is not None and not _REAL.search(to["aka"] or to["to"]):
            found[int(warning["line"]), int(warning["column"])] = None
    return list(found)


def with_conversions(text: str, places: Sequence[_Place]) -> str:
    """Return ``text`` with a mark before each expression that contains one of ``places``."""
    head, first_line, body = text.partition(_FIRST_LINE)
    lines = body.splitlines(keepends=True)
    starts = [0, *itertools.accumulate(map(len, lines))]
    tokens = tokens_in_all(body)
    index_at = {token.start: k for k, token in enumerate(tokens) if token.start < token.end}
    marks = set()
    for line, column in places:
        if line <= len(lines):
            before = lines[line - 1].encode()[: column - 1].decode(errors="replace")
            at = index_at.get(starts[line - 1] + len(before))
            if at is not None:
                marks.add(_expression_start(tokens, at))
    return (
        head
        + first_line
        + replace_spans(body, [(mark, mark, f"{_MARK} ") for mark in sorted(marks)])
    )


def _expression_start(tokens: Sequence[CudaToken], at: int) -> int:
    """Return where the assignment, argument or returned value around the token ``at`` begins."""
    if tokens[at].text in _ASSIGNMENTS:
        return tokens[at].end
    depth, k = int(tokens[at].text in (")", "]", "}")), at
    while k > 0:
        k -= 1
        text = tokens[k].text
        if text in (")", "]", "}"):
            depth += 1
        elif text in ("(", "[", "{"):
            if not depth:
                return tokens[k].end
            depth -= 1
        elif not depth and (text in (",", ";", "return") or text in _ASSIGNMENTS):
            return tokens[k].end
    return tokens[0].start
