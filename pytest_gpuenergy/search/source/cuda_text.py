"""CUDA text whose entry is understood."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from pytest_gpuenergy.search.moves.cuda_file import CudaFile
from pytest_gpuenergy.search.moves.cuda_loops import Loop, loops_of
from pytest_gpuenergy.search.moves.cuda_obstacles import obstacle_in
from pytest_gpuenergy.search.source.cuda_variables import Variables
from pytest_gpuenergy.search.source.tree import called, field, name_of, nodes, parse

if TYPE_CHECKING:
    from tree_sitter import Node

_KEPT = 32
"""Texts that were understood last: every move and the priors look at the same one."""


class CudaText(Variables):
    """A text, with the variables and loops of its entry."""

    @classmethod
    def of(cls, source: str, entry: str) -> CudaText | None:
        """None if there is no such kernel, or something in it hides what it does.

        Raises:
            UnavailableError: tree-sitter is not installed.
        """
        found = _parsed(source, entry)
        return None if found is None or found.hidden_by else found

    @classmethod
    def obstacle(cls, source: str, entry: str) -> str:
        """Why a text is not understood, in a few words; empty if it is.

        Raises:
            UnavailableError: tree-sitter is not installed.
        """
        found = _parsed(source, entry)
        return f"no kernel called {entry}" if found is None else found.hidden_by

    @functools.cached_property
    def hidden_by(self) -> str:
        """What hides what the text does, in a few words; empty if nothing does."""
        return obstacle_in(self.file, self.function)

    @property
    def source(self) -> bytes:
        """The text."""
        return self.file.source

    @property
    def root(self) -> Node:
        """Of its tree."""
        return self.file.root

    @property
    def constants(self) -> dict[str, str]:
        """Texts of macros and constants of the file that may be whole numbers."""
        return self.file.constants

    @functools.cached_property
    def functions(self) -> tuple[Node, ...]:
        """All functions but the entry."""
        return tuple(n for n in self.file.functions if n != self.function)

    @functools.cached_property
    def loops(self) -> tuple[Loop, ...]:
        """Those that count up by a fixed step."""
        return loops_of(self)

    def calls(self, node: Node, *names: str) -> list[Node]:
        """Calls of functions with these names."""
        return [n for n in nodes(node, "call_expression") if called(n) in names]


@functools.lru_cache(maxsize=_KEPT)
def _parsed(source: str, entry: str) -> CudaText | None:
    data = source.encode("utf-8", "replace")
    file = CudaFile(data, parse(data))
    for function in file.functions:
        body = field(function, "body")
        if body is None or name_of(function) != entry.partition("<")[0].split("::")[-1]:
            continue
        if any(child.type == "__global__" for child in function.children):
            return CudaText(file, function, body)
    return None
