"""What the preprocessor makes of a CUDA text, as far as it can be told without running it."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from pytest_gpuenergy.search.source.tree import ancestors, field, nodes, text_of

if TYPE_CHECKING:
    from tree_sitter import Node

_CONDITIONS = ("preproc_if", "preproc_ifdef", "preproc_elif", "preproc_elifdef", "preproc_else")


def is_conditional(node: Node) -> bool:
    """Whether the compiler may not see a part of a text: it stands under a condition."""
    return any(one.type in _CONDITIONS and not _is_guard(one) for one in ancestors(node))


def _is_guard(condition: Node) -> bool:
    """Whether it is ``#ifndef NAME``, ``#define NAME``, as around a header or a default."""
    name, *rest = [one for one in condition.named_children if one.type != "comment"]
    negated = condition.type == "preproc_ifdef" and text_of(condition.children[0]) == "#ifndef"
    has_else = field(condition, "alternative") is not None
    if not negated or has_else or not rest or rest[0].type != "preproc_def":
        return False
    return text_of(field(rest[0], "name")) == text_of(name)


def uncertain_macros(root: Node) -> frozenset[str]:
    """Names that may stand for something else than what they are defined as."""
    defined = list(nodes(root, "preproc_def"))
    counts = Counter(text_of(field(one, "name")) for one in defined)
    found = {name for name, count in counts.items() if count > 1}
    found |= {text_of(field(one, "name")) for one in defined if is_conditional(one)}
    for call in nodes(root, "preproc_call"):
        if text_of(field(call, "directive")) == "#undef":
            found.add(text_of(field(call, "argument")).strip())
    return frozenset(found)
