"""Conditions of ``#if``: true, false, or left to the compiler."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping

from pytest_gpuenergy.search.extraction.tokens import Token, seen
from pytest_gpuenergy.search.source.macros import Macro, expanded

COMPILERS = frozenset(
    [
        *("__CUDA_ARCH__", "CUDA_VERSION", "CUDART_VERSION", "__CUDA_ARCH_LIST__"),
        *("__CUDACC_VER_MAJOR__", "__CUDACC_VER_MINOR__", "__has_include", "__has_builtin"),
    ]
)
"""What only the compiler knows, and a kernel can depend on."""
_DEFINED = {"__CUDACC__": 1, "__NVCC__": 1, "__cplusplus": 201703}

_LEVELS: tuple[dict[str, Callable[[int, int], int]], ...] = (
    {"||": lambda a, b: int(bool(a or b))},
    {"&&": lambda a, b: int(bool(a and b))},
    {"|": operator.or_},
    {"^": operator.xor},
    {"&": operator.and_},
    {"==": operator.eq, "!=": operator.ne},
    {"<": operator.lt, ">": operator.gt, "<=": operator.le, ">=": operator.ge},
    {"<<": lambda a, b: a << min(b, 64), ">>": lambda a, b: a >> min(b, 64)},
    {"+": operator.add, "-": operator.sub},
    {"*": operator.mul, "/": operator.floordiv, "%": operator.mod},
)
_DEEPEST = 50


class UndecidedError(Exception):
    """A condition depends on the compiler, or is not understood."""


def holds(tokens: list[Token], macros: Mapping[str, Macro], opaque: frozenset[str]) -> bool:
    """Whether a condition is true.

    Args:
        tokens: after ``#if``.
        macros: those that are defined.
        opaque: those that are defined in a way that is not known.

    Raises:
        UndecidedError: only the compiler can tell.
    """
    plain = _without_defined(seen(tokens), macros, opaque)
    words = [token for token in expanded(plain, macros) if token.is_seen]
    return bool(_Condition(words, opaque).value())


def is_defined(name: str, macros: Mapping[str, Macro], opaque: frozenset[str]) -> bool:
    """Whether a macro is defined.

    Raises:
        UndecidedError: only the compiler can tell.
    """
    if name in COMPILERS or name in opaque:
        raise UndecidedError
    return name in macros or name in _DEFINED


def _without_defined(
    words: list[Token], macros: Mapping[str, Macro], opaque: frozenset[str]
) -> list[Token]:
    found: list[Token] = []
    at = 0
    while at < len(words):
        if words[at].text != "defined":
            found.append(words[at])
            at += 1
            continue
        rest = [word.text for word in words[at + 1 : at + 4]]
        if rest[:1] == ["("] and rest[2:] == [")"]:
            name, at = rest[1], at + 4
        elif rest:
            name, at = rest[0], at + 2
        else:
            raise UndecidedError
        found.append(Token("number", str(int(is_defined(name, macros, opaque)))))
    return found


class _Condition:
    """The evaluation of an integer expression."""

    def __init__(self, words: list[Token], opaque: frozenset[str]) -> None:
        self._words = words
        self._opaque = opaque
        self._at = 0

    def value(self) -> int:
        """The value of the whole."""
        found = self._choice(0)
        if self._at != len(self._words):
            raise UndecidedError
        return found

    def _next(self) -> str:
        return self._words[self._at].text if self._at < len(self._words) else ""

    def _take(self, text: str) -> bool:
        taken = self._next() == text
        self._at += taken
        return taken

    def _choice(self, depth: int) -> int:
        if depth > _DEEPEST:
            raise UndecidedError
        condition = self._binary(0, depth)
        if not self._take("?"):
            return condition
        one = self._choice(depth + 1)
        if not self._take(":"):
            raise UndecidedError
        other = self._choice(depth + 1)
        return one if condition else other

    def _binary(self, level: int, depth: int) -> int:
        if level == len(_LEVELS):
            return self._unary(depth)
        found = self._binary(level + 1, depth)
        while (function := _LEVELS[level].get(self._next())) is not None:
            self._at += 1
            other = self._binary(level + 1, depth)
            try:
                found = int(function(found, other))
            except (ZeroDivisionError, ValueError):
                raise UndecidedError from None
        return found

    def _unary(self, depth: int) -> int:
        if depth > _DEEPEST:
            raise UndecidedError
        signs: dict[str, Callable[[int], int]] = {
            "!": lambda a: int(not a),
            "-": operator.neg,
            "+": operator.pos,
            "~": operator.invert,
        }
        for sign, function in signs.items():
            if self._take(sign):
                return function(self._unary(depth + 1))
        if self._take("("):
            found = self._choice(depth + 1)
            if not self._take(")"):
                raise UndecidedError
            return found
        return self._primary()

    def _primary(self) -> int:
        if self._at == len(self._words):
            raise UndecidedError
        word = self._words[self._at]
        self._at += 1
        if word.kind == "name" and word.text not in COMPILERS | self._opaque:
            return _DEFINED.get(word.text, 0)
        digits = word.text.rstrip("uUlL").replace("'", "")
        octal = len(digits) > 1 and digits.isdecimal() and digits.startswith("0")
        try:
            return int(digits, 8 if octal else 0)
        except ValueError:
            raise UndecidedError from None
