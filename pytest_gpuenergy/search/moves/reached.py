"""What a part of a CUDA kernel comes to beside its own text: functions, and the calling thread."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpuenergy.search.source.cuda_text import CudaText
from pytest_gpuenergy.search.source.tree import name_of, nodes, text_of, walk

if TYPE_CHECKING:
    from tree_sitter import Node

_NAMES = ("identifier", "field_identifier", "type_identifier", "namespace_identifier")
_IMPLICIT = ("operator", "~")
"""Beginnings of the names of functions that are called without their names."""
_THREADS = frozenset(["threadIdx", "blockIdx"])
_RANKS = frozenset(
    [
        *("thread_rank", "thread_index", "group_index", "block_rank", "block_index"),
        *("meta_group_rank", "dim_threads"),
    ]
)
"""What groups of cooperative groups tell their threads apart by."""


def reached(text: CudaText, node: Node) -> list[Node]:
    """The functions of a text that ``node`` may call, directly or through others.

    By their names alone, so rather too many than too few.
    """
    found: dict[int, Node] = {}
    waiting = [node]
    while waiting:
        part = waiting.pop()
        named = {text_of(leaf).split("<")[0] for leaf in nodes(part, *_NAMES)}
        for function in text.functions:
            name = name_of(function)
            is_called = name in named or name.startswith(_IMPLICIT)
            if is_called and function.id not in found:
                found[function.id] = function
                waiting.append(function)
    return list(found.values())


def asks_for_thread(text: CudaText, node: Node) -> bool:
    """Whether something that ``node`` calls may depend on the thread that calls it."""
    if any(text_of(leaf) in _RANKS for leaf in nodes(node, "field_identifier")):
        return True
    return any(
        leaf.type == "gnu_asm_expression" or text_of(leaf) in _THREADS | _RANKS
        for function in reached(text, node)
        for leaf in walk(function)
        if leaf.type in ("gnu_asm_expression", "identifier", "field_identifier")
    )
