"""The tiles into which cooperative groups divide a block of CUDA threads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pytest_gpuenergy.search.source.tree import (
    ancestors,
    arguments_of,
    field,
    nodes,
    text_of,
)

if TYPE_CHECKING:
    from tree_sitter import Node

_GIVEN = ("assignment_expression", "init_declarator")
_RANKS = ("thread_rank", "size", "num_threads", "meta_group_rank", "meta_group_size")


def tiles_in(body: Node) -> dict[str, int]:
    """Threads of each tile, by its name; 0 if that is not one number."""
    found: dict[str, int] = {}
    for node in nodes(body, "template_function"):
        if text_of(field(node, "name")) != "tiled_partition":
            continue
        # The parser takes a declaration such as ``tile<32> warp = ...`` for comparisons.
        around = next((n for n in ancestors(node) if n.type in _GIVEN), None)
        name = text_of(field(around, "left") or field(around, "declarator"))
        threads = text_of(field(node, "arguments"))[1:-1].strip()
        found[name] = int(threads) if threads.isdecimal() and name not in found else 0
    return found


def tile_of(call: Node, tiles: Mapping[str, int]) -> tuple[int, str] | None:
    """The threads of a tile, and what it is asked, for a call such as ``warp.size()``."""
    function = field(call, "function")
    if function is None or function.type != "field_expression" or arguments_of(call):
        return None
    threads = tiles.get(text_of(field(function, "argument")), 0)
    method = text_of(field(function, "field"))
    return (threads, method) if threads and method in _RANKS else None
