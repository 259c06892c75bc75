"""Lines of C as they are written into a kernel."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from typing import TYPE_CHECKING

from pytest_gpuenergy.search.source.tree import text_of

if TYPE_CHECKING:
    from tree_sitter import Node


def block_of(head: str, lines: Iterable[str]) -> list[str]:
    """``head`` with ``lines`` in braces."""
    return [f"{head} {{".lstrip(), *(f"  {line}" for line in lines), "}"]


def indented(lines: Iterable[str], by: str) -> str:
    """Lines for a place that is indented ``by``: all but the first begin with it."""
    return f"\n{by}".join(lines)


def inner_lines(body: str) -> list[str]:
    """The lines of a statement, without the braces if it is a block."""
    if not body.startswith("{"):
        return [body]
    first, *rest = body[1:-1].split("\n")
    lines = textwrap.dedent("\n".join(rest)).rstrip().splitlines()
    return [*([first.strip()] if first.strip() else []), *lines]


def times(expression: Node | None, factor: int) -> str:
    """A product with a number."""
    text = text_of(expression)
    plain = expression is not None and expression.type == "field_expression"
    simple = plain or (expression is not None and expression.child_count == 0)
    return f"{text} * {factor}" if simple else f"({text}) * {factor}"
