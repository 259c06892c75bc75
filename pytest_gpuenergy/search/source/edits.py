"""Edits: changes at places of a text, and the lines of C that are written there."""

from __future__ import annotations

import textwrap
from collections.abc import Container, Iterable
from typing import TYPE_CHECKING, NamedTuple

from pytest_gpuenergy.search.source.tree import field, node_text, nodes

if TYPE_CHECKING:
    from tree_sitter import Node


class Edit(NamedTuple):
    """A replacement of the bytes ``begin`` to ``end``, exclusive, of a text by ``text``."""

    begin: int
    end: int
    text: str

    @classmethod
    def of(cls, node: Node, text: str) -> Edit:
        """Return the edit that replaces a node."""
        return cls(node.start_byte, node.end_byte, text)

    @classmethod
    def before(cls, node: Node, text: str) -> Edit:
        """Return the edit that inserts a text before a node."""
        return cls(node.start_byte, node.start_byte, text)

    @classmethod
    def after(cls, node: Node, text: str) -> Edit:
        """Return the edit that inserts a text after a node."""
        return cls(node.end_byte, node.end_byte, text)


def apply_edits(
    source: bytes, edits: Iterable[Edit], begin: int = 0, end: int | None = None
) -> str:
    """Return the bytes ``begin`` to ``end`` of ``source`` with the edits that lie within them."""
    end = len(source) if end is None else end
    inside = [edit for edit in edits if begin <= edit.begin and edit.end <= end]
    parts, at = [], begin
    for edit in sorted(inside, key=lambda edit: edit[:2]):
        if edit.begin < at:
            raise ValueError(f"two edits change byte {edit.begin}")
        parts += [source[at : edit.begin], edit.text.encode()]
        at = edit.end
    return b"".join([*parts, source[at:end]]).decode()


def braced_lines(head: str, lines: Iterable[str]) -> list[str]:
    """Return the lines of ``head`` with ``lines`` in braces."""
    return [f"{head} {{".lstrip(), *(f"  {line}" for line in lines), "}"]


def indented_text(lines: Iterable[str], by: str) -> str:
    """Join lines for a place that is indented ``by``: all but the first begin with that."""
    return f"\n{by}".join(lines)


def inner_lines(body: str) -> list[str]:
    """Return the lines of a statement, without the braces if it is a block."""
    if not body.startswith("{"):
        return [body]
    first, *rest = body[1:-1].split("\n")
    lines = textwrap.dedent("\n".join(rest)).rstrip().splitlines()
    return [*([first.strip()] if first.strip() else []), *lines]


def times(expression: Node | None, factor: int) -> str:
    """Return the text of the product of an expression and a number."""
    text = node_text(expression)
    plain = expression is not None and expression.type == "field_expression"
    simple = plain or (expression is not None and expression.child_count == 0)
    return f"{text} * {factor}" if simple else f"({text}) * {factor}"


def outermost(edits: Iterable[Edit]) -> list[Edit]:
    """Return the edits that do not lie within another one, each of them once."""
    unique = list(dict.fromkeys(edits))
    return [
        edit
        for edit in unique
        if not any(
            other.begin <= edit.begin and edit.end <= other.end and other[:2] != edit[:2]
            for other in unique
        )
    ]


def fresh_name(name: str, taken: Container[str]) -> str:
    """Return ``name``, with a number behind it if a text uses it already."""
    number, found = 2, name
    while found in taken:
        found, number = f"{name}{number}", number + 1
    return found


def edited_node_text(source: bytes, node: Node, edits: Iterable[Edit]) -> str:
    """Return the text of a node with the edits that lie within it."""
    return apply_edits(source, edits, node.start_byte, node.end_byte)


def inclusion(root: Node, header: str) -> list[Edit]:
    """Return the edit that includes a header such as ``<mma.h>``; none if the text does."""
    included = (node_text(field(node, "path")) for node in nodes(root, "preproc_include"))
    return [] if header in included else [Edit(0, 0, f"#include {header}\n")]
