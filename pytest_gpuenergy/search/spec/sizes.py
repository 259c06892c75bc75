"""Expressions of sizes, from which a grid, a shape or an amount of work is computed."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping

from pytest_gpuenergy.search.source.triton_text import NOT_PYTHON
from pytest_gpuenergy.support import InputError, shown

Size = int | str
"""A number, or an expression such as ``ceil_div(N, BLOCK)``."""

_MAX_LENGTH = 400
"""The limit on an expression; a longer one could be nested too deeply for Python's parser."""
_MAX_VALUE = 1 << 62
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
    try:
        return _value(_parse(size), names)
    except _SizeError as error:
        why = str(error)
    except ZeroDivisionError:
        why = "it divides by 0"
    except OverflowError:
        raise InputError(
            f"The size {shown(str(size))} is too large: its value exceeds 2**62."
        ) from None
    raise InputError(f"The size {shown(str(size))} cannot be computed: {why}.")


def used_names(size: Size) -> frozenset[str]:
    """Return the names that an expression uses, except those of functions.

    Raises:
        InputError: the expression cannot be parsed.
    """
    found = {node.id for node in ast.walk(_parse(size)) if isinstance(node, ast.Name)}
    return frozenset(found - FUNCTIONS)


class _SizeError(Exception):
    """An expression has no value; the message is a clause without a period."""


def _value(node: ast.expr, names: Mapping[str, object]) -> int:
    """Return the value of a part of an expression."""
    match node:
        case ast.Constant(value=int(number)) if not isinstance(number, bool):
            found = number
        case ast.Name(id=name):
            if name not in names:
                known = ", ".join(sorted(names)) or "none"
                raise _SizeError(f"{name[:40]!r} is not a known name (known: {known})")
            value = names[name]
            if not isinstance(value, int) or isinstance(value, bool):
                raise _SizeError(f"{name} is {shown(value)} instead of an integer")
            found = value
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            found = -_value(operand, names)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            found = _OPERATORS[type(op)](_value(left, names), _value(right, names))
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]) if name in _FUNCTIONS:
            if len(arguments) < 2 or (name == "ceil_div" and len(arguments) > 2):
                raise _SizeError(f"{name} takes two numbers")
            found = _FUNCTIONS[name](*(_value(argument, names) for argument in arguments))
        case _:
            raise _SizeError("only integers, names, + - * // %, ceil_div, min and max are allowed")
    if abs(found) > _MAX_VALUE:
        raise OverflowError
    return found


def _parse(size: Size) -> ast.expr:
    if isinstance(size, int):
        return ast.Constant(int(size))
    if len(size) > _MAX_LENGTH:
        raise InputError(
            f"The size {shown(size)} is longer than {_MAX_LENGTH} characters: give a shorter one."
        )
    try:
        return ast.parse(size.strip(), mode="eval").body
    except NOT_PYTHON:
        raise InputError(
            f"The size {shown(size)} is not an expression: give a number or an expression such as "
            "'ceil_div(N, 256)'."
        ) from None
