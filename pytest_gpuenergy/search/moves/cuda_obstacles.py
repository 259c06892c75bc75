"""What hides from a reader what the entry of a CUDA text does."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpuenergy.search.moves.cuda_file import CudaFile
from pytest_gpuenergy.search.moves.preprocessed import is_conditional
from pytest_gpuenergy.search.source.tree import depth_of, field, name_of, nodes, text_of, walk

if TYPE_CHECKING:
    from tree_sitter import Node

_UNCLEAR = {
    "ERROR": "something that cannot be parsed",
    "lambda_expression": "a lambda",
    "gnu_asm_expression": "inline assembler",
    "goto_statement": "a goto",
    "try_statement": "an exception",
    "preproc_if": "a condition of the preprocessor",
    "preproc_ifdef": "a condition of the preprocessor",
    "preproc_def": "a macro that it defines",
    "preproc_function_def": "a macro that it defines",
}
"""What a text must not have for its entry to be understood."""
_DEEPEST = 200
"""Nodes in one another; more are generated code, or an attack on a recursive function."""


def obstacle_in(file: CudaFile, function: Node) -> str:
    """What hides what a function does, in a few words; empty if nothing does."""
    if function.has_error or depth_of(function) > _DEEPEST:
        return "something that cannot be parsed"
    if is_conditional(function):
        return "a condition of the preprocessor"
    # Of two functions with one name, the other one may be what is launched.
    if any(name_of(n) == name_of(function) for n in file.functions if n != function):
        return "another function of its name"
    if any(text_of(n) == "volatile" for n in nodes(function, "type_qualifier")):
        return "a volatile variable"
    for node in walk(field(function, "body") or function):
        if node.type in _UNCLEAR:
            return _UNCLEAR[node.type]
    leaves = (text_of(n) for n in walk(function) if n.child_count == 0)
    found = next((leaf for leaf in leaves if leaf in file.obscure_macros), None)
    return "" if found is None else f"the macro {found}"
