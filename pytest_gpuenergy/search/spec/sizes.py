"""Expressions of sizes, from which a grid, a shape or an amount of work is computed."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping

from pytest_gpuenergy.search.source.triton_text import NOT_PYTHON
from pytest_gpuenergy.support import InputError, shown

Size = int | str
"""A number, or an expression such as ``ceil_div(N, BLOCK)``."""

_LONGEST = 400
"""Characters of an expression; a longer one could be nested too deeply for Python's parser."""
_LARGEST = 1 << 62
"""Largest absolute value of a result; it fits in 64 bits."""

_OPERATORS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}


def ceil_div(dividend: int, divisor: int) -> int:
    """Return the quotient, rounded up."""
    return -(-dividend // divisor)


_FUNCTIONS: dict[str, Callable[..., int]] = {"ceil_div": ceil_div, "min": min, "max": max}
FUNCTIONS = frozenset(_FUNCTIONS)
"""The names of the functions that expressions can call."""


def evaluate(size: Size, names: Mapping[str, object]) -> int:
    """Return the value of a number or an expression.

    Expressions consist of integers, names, ``+``, ``-``, ``*``, ``//``, ``%``, parentheses,
    ``ceil_div(a, b)``, ``min`` and ``max``. They are interpreted, never executed as Python.

    Args:
        size: the number or expression.
        names: the values of names; those that the expression uses must be integers.

    Raises:
        InputError: the text is no such expression, a name is unknown or no integer, a divisor is 0,
            or a result is too large.
    """
    if isinstance(size, int):
        return _bounded(size, str(size))
    return _Evaluation(size, names).value(_parsed(size))


def names_in(size: Size) -> frozenset[str]:
    """Return the names that an expression uses, except those of functions.

    Raises:
        InputError: the expression cannot be parsed.
    """
    if isinstance(size, int):
        return frozenset()
    found = {node.id for node in ast.walk(_parsed(size)) if isinstance(node, ast.Name)}
    return frozenset(found - FUNCTIONS)


class _Evaluation:
    """The evaluation of one expression."""

    def __init__(self, text: str, names: Mapping[str, object]) -> None:
        self._text = text
        self._names = names

    def value(self, node: ast.expr) -> int:
        """Return the value of a part of the expression."""
        match node:
            case ast.Constant(value=int(number)) if not isinstance(number, bool):
                found = number
            case ast.Name(id=name):
                found = self._named(name)
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                found = -self.value(operand)
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
                found = self._applied(_OPERATORS[type(op)], [left, right])
            case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]) if (
                name in _FUNCTIONS
            ):
                if len(arguments) < 2 or (name == "ceil_div" and len(arguments) > 2):
                    raise self._wrong(f"{name} takes two numbers")
                found = self._applied(_FUNCTIONS[name], arguments)
            case _:
                raise self._wrong(
                    "only integers, names, + - * // %, ceil_div, min and max are allowed"
                )
        return _bounded(found, self._text)

    def _named(self, name: str) -> int:
        if name not in self._names:
            known = ", ".join(sorted(self._names)) or "none"
            raise self._wrong(f"{name[:40]!r} is not a known name (known: {known})")
        found = self._names[name]
        if not isinstance(found, int) or isinstance(found, bool):
            raise self._wrong(f"{name} is {shown(found)} instead of an integer")
        return found

    def _applied(self, function: Callable[..., int], arguments: list[ast.expr]) -> int:
        values = [self.value(argument) for argument in arguments]
        try:
            return function(*values)
        except ZeroDivisionError:
            raise self._wrong("it divides by 0") from None

    def _wrong(self, why: str) -> InputError:
        return InputError(f"The size {shown(self._text)} cannot be computed: {why}.")


def _parsed(text: str) -> ast.expr:
    if len(text) > _LONGEST:
        raise InputError(
            f"The size {shown(text)} is longer than {_LONGEST} characters: give a shorter one."
        )
    try:
        return ast.parse(text.strip(), mode="eval").body
    except NOT_PYTHON:
        raise InputError(
            f"The size {shown(text)} is not an expression: give a number or an expression such as "
            "'ceil_div(N, 256)'."
        ) from None


def _bounded(number: int, text: str) -> int:
    if abs(number) > _LARGEST:
        raise InputError(f"The size {shown(text)} is too large: its value exceeds 2**62.")
    return number
