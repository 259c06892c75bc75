"""CUDA C++ text as the translation reads it: expressions, definitions of functions, edits."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from pytest_gpuenergy.kernels import COMMENT, LITERAL, CudaToken, cuda_tokens, function_name

LAUNCH_BOUNDS, CLUSTER_DIMS = "__launch_bounds__", "__cluster_dims__"
ATTRIBUTES = frozenset(
    (
        *(LAUNCH_BOUNDS, CLUSTER_DIMS, "__block_size__", "__maxnreg__"),
        *("__attribute__", "alignas", "__align__", "__declspec", "decltype", ""),
    )
)
"""The names whose parentheses hold no parameters of the function being declared."""

_DEFINE = re.compile(r"[ \t]*\#[ \t]*define\b[ \t]*\w+(?P<parameters>\([^)]*\))?")
_INTEGERS = """
    int unsigned signed char short long size_t ptrdiff_t uint ushort uchar ulong wchar_t
    int8_t int16_t int32_t int64_t uint8_t uint16_t uint32_t uint64_t intptr_t uintptr_t
"""
_INTEGER_TYPES = frozenset(_INTEGERS.split())
_OPENING, _CLOSING = "([{", ")]}"
_PREFIXES = frozenset(("-", "+", "!", "~", "*", "&", "++", "--"))
_OTHER_TYPES = frozenset(["float", "double", "half", "bool", "void", "const", "volatile"])
_CASTS = frozenset(("static_cast", "reinterpret_cast", "const_cast", "dynamic_cast", "bit_cast"))
_BEFORE_EXPRESSION = frozenset(("return", "case", "else", "do", "throw", "and", "or", "not"))
_SKIPPED = re.compile(rf"{COMMENT} | (?<!\d)(?:{LITERAL})", re.VERBOSE | re.DOTALL)


def tokens_in_all(source: str) -> list[CudaToken]:
    """Return all tokens of ``source``, with those inside of directives between semicolons."""
    tokens: list[CudaToken] = []
    for token in cuda_tokens(source):
        if token.kind != "directive":
            tokens.append(token)
            continue
        fence = CudaToken("symbol", ";", token.start, token.start)
        inside = cuda_tokens(source, source.index("#", token.start) + 1, token.end)
        tokens += [fence, *inside, fence]
    return tokens


def with_depth(tokens: Iterable[CudaToken]) -> Iterator[tuple[CudaToken, int]]:
    """Yield ``tokens``, each with the depth of parentheses and brackets.

    An opening bracket has the depth of its contents, a closing one the depth around it.
    """
    depth = 0
    for token in tokens:
        depth += (token.text in ("(", "[")) - (token.text in (")", "]"))
        yield token, depth


def replace_spans(source: str, edits: Iterable[tuple[int, int, str]]) -> str:
    """Return ``source`` with the text from a start to an end replaced, by as many lines.

    The edits are sorted. One within the text that another replaces is left out.
    """
    parts, last = [], 0
    for start, end, text in edits:
        if start < last:
            continue
        lines = "\n" * (source.count("\n", start, end) - text.count("\n"))
        parts += [source[last:start], text, lines]
        last = end
    return "".join([*parts, source[last:]])


def without_attributes(tokens: Iterable[CudaToken]) -> Iterator[CudaToken]:
    """Yield ``tokens`` without `ATTRIBUTES` and their arguments."""
    depth, dropping = 0, False
    for token in tokens:
        if not dropping and token.text in ATTRIBUTES:
            dropping = True
            continue
        if dropping:
            depth += {"(": 1, ")": -1}.get(token.text, 0)
            if depth == 0 and token.text == ")":
                dropping = False
            continue
        yield token


class CudaExpressions:
    """The tokens of a text or of a macro's replacement.

    Attributes:
        tokens: the tokens, without comments and white space.
        partner: the position of the matching bracket, by the position of each bracket.
        closers: the positions of the ``>`` and ``>>`` that close template arguments.
        types: the names of types that may be integers.
    """

    def __init__(
        self, tokens: Sequence[CudaToken], types: frozenset[str], templates: frozenset[str]
    ):
        self.tokens = tokens
        self.types = types
        self.partner: dict[int, int] = {}
        self.closers: set[int] = set()
        self._casts: set[int] = set()  # positions of the parentheses that close casts
        open_brackets: list[int] = []
        angles: list[list[int]] = [[]]  # unmatched < of templates, for each open bracket
        for k, token in enumerate(tokens):
            text = token.text
            if text in _OPENING:
                open_brackets.append(k)
                angles.append([])
            elif text in _CLOSING:
                if open_brackets:
                    self.partner[k] = open_brackets.pop()
                    self.partner[self.partner[k]] = k
                    angles.pop()
            elif text == ";":
                angles[-1].clear()
            elif text == "<":
                before = self.text(k - 1)
                qualified = self.text(k - 2) == "::" and tokens[k - 1].kind == "name"
                if qualified or before in templates or before in _CASTS or before == "template":
                    angles[-1].append(k)
            elif text in (">", ">>") and len(angles[-1]) >= len(text):
                for _ in text:
                    self.partner[angles[-1].pop()] = k
                self.closers.add(k)

    def text(self, position: int) -> str:
        """Return the text of the token at ``position``; it is empty beyond the ends."""
        return self.tokens[position].text if 0 <= position < len(self.tokens) else ""

    def begins_expression(self, k: int) -> bool:
        """Return whether an operand may begin at ``k``, judged by the token before it."""
        if not k or k - 1 in self._casts:
            return True
        before = self.tokens[k - 1]
        if before.kind == "name":
            return before.text in _BEFORE_EXPRESSION
        return before.kind == "symbol" and before.text not in ")]" and k - 1 not in self.closers

    def cast_end(self, k: int) -> int | None:
        """Return the position after the cast ``(type)`` whose parenthesis is at ``k``, or None."""
        if self.text(k) != "(" or not self.begins_expression(k):
            return None
        end = self.partner.get(k)
        if end is None or end == k + 1 or not self._is_type(k + 1, end, pointers=True):
            return None
        following = self.tokens[end + 1] if end + 1 < len(self.tokens) else None
        if following is None or (
            following.kind == "symbol" and following.text not in _PREFIXES | {"(", "::"}
        ):
            return None
        self._casts.add(end)
        return end + 1

    def _is_type(self, begin: int, end: int, *, pointers: bool) -> bool:
        found = False
        for k in range(begin, end):
            text = self.text(k)
            named = text in self.types or text in _INTEGER_TYPES or text in _OTHER_TYPES
            found |= named
            mark = text == "::" or (pointers and text in "*&")
            if not named and not mark and self.text(k + 1) != "::":
                return False
        return found

    def is_integer_type(self, begin: int, end: int) -> bool:
        """Return whether the tokens name a type that may be an integer."""
        return self._is_type(begin, end, pointers=False) and any(
            self.text(k) in self.types or self.text(k) in _INTEGER_TYPES for k in range(begin, end)
        )

    def operand_end(self, k: int) -> int:
        """Return the position after the operand of a cast that begins at ``k``."""
        while self.text(k) in _PREFIXES or self.cast_end(k) is not None:
            k = self.cast_end(k) or k + 1
        while self.text(k) == "::" or self.text(k + 1) == "::":
            k += 1
        k = self.partner.get(k, k) + 1
        while True:
            text = self.text(k)
            if text == "<" and k in self.partner:
                k = self.partner[k] + 1
            elif text in ("(", "["):
                k = self.partner.get(k, k) + 1
            elif text in (".", "->", "::"):
                k += 2
            elif text in ("++", "--"):
                k += 1
            else:
                return min(k, len(self.tokens))


def read_expressions(source: str) -> Iterator[CudaExpressions]:
    """Yield the expressions of ``source`` and of each macro that it defines."""
    main: list[CudaToken] = []
    macros: list[tuple[list[CudaToken], list[str]]] = []
    for token in cuda_tokens(source):
        if token.kind != "directive":
            main.append(token)
        elif defined := _DEFINE.match(token.text):
            body = list(cuda_tokens(source, token.start + defined.end(), token.end))
            macros.append((body, re.findall(r"\w+", defined["parameters"] or "")))
    types, templates = _declared_names(main)
    yield CudaExpressions(main, types, templates)
    for tokens, parameters in macros:
        texts = [token.text for token in tokens]
        # Parameters that a macro uses as types of casts, as in (T)(x).
        cast_to = {
            name
            for before, name, after, then in zip(
                texts, texts[1:], texts[2:], texts[3:], strict=False
            )
            if (before, after, then) == ("(", ")", "(") and name in parameters
        }
        yield CudaExpressions(tokens, types | cast_to, templates)


def _declared_names(tokens: Sequence[CudaToken]) -> tuple[frozenset[str], frozenset[str]]:
    """Return the names of types that may be integers and of templates that a text declares."""
    types: set[str] = set()
    templates: set[str] = {"thread_block_tile", "Array", "vector", "is_same", "conditional"}
    texts = [token.text for token in tokens]
    for k, text in enumerate(texts):
        if text in ("typename", "using", "class"):
            types.update(t.text for t in tokens[k + 1 : k + 2] if t.kind == "name")
        elif text == "typedef":
            end = texts.index(";", k) if ";" in texts[k:] else k
            types.add(texts[end - 1])
        elif text == "template" and texts[k + 1 : k + 2] == ["<"]:
            k, depth = k + 2, 1
            while k < len(tokens) and depth > 0:  # pass over the parameters
                depth += {"<": 1, ">": -1, ">>": -2}.get(texts[k], 0)
                k += 1
            name = ""
            for token in tokens[k:]:
                if token.text in "(={;:" and name not in (LAUNCH_BOUNDS, "__align__", "alignas"):
                    break
                name = token.text if token.kind == "name" else name
            templates.add(name)
    return frozenset(types), frozenset(templates)


@dataclass(frozen=True)
class Definition:
    """The text of a function without comments and strings.

    Attributes:
        parameters: the text in its parentheses.
        body: the text in its braces.
    """

    parameters: str
    body: str


def find_definition(source: str, entry: str) -> Definition:
    """Return the definition of the function ``entry``, or the whole text as its body."""
    text = _SKIPPED.sub("", source)
    name = re.escape(function_name(entry))
    found = re.search(rf"\b{name}\s*\(([^;{{}}]*)\)\s*\{{", text)
    if found is None:
        return Definition("", text)
    depth = 1
    for brace in re.finditer(r"[{}]", text[found.end() :]):
        depth += 1 if brace[0] == "{" else -1
        if not depth:
            return Definition(found[1], text[found.end() : found.end() + brace.start()])
    return Definition(found[1], text[found.end() :])
