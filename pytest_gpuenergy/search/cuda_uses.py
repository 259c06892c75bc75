"""What CUDA text does with a pointer that its entry is given, see `output_reads`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import TYPE_CHECKING

from pytest_gpuenergy.search.pointer_uses import Passed, ReadError, Use, follow
from pytest_gpuenergy.search.source.tree import (
    arguments_of,
    depth_of,
    field,
    nodes,
    operator_of,
    parse,
    text_of,
    walk,
)

if TYPE_CHECKING:
    from tree_sitter import Node

_CASTS = ("reinterpret_cast", "static_cast", "const_cast")
_STORES = ("__stwb", "__stcg", "__stcs", "__stwt", "store_matrix_sync")
_STATEMENTS = ("expression_statement", "for_statement", "comma_expression")
_DEEPEST = 200
_WIDEST_BYTES = 16
"""Of an access."""
_WORD = re.compile(r"[A-Za-z_]\w*")


@lru_cache(maxsize=64)  # the baseline is compared with each variant
def is_read(source: str, entry: str, place: int) -> bool:
    """Whether what a pointer points to may be read.

    Args:
        source: CUDA text.
        entry: the function that is launched.
        place: of the pointer among its parameters.

    Raises:
        UnavailableError: tree-sitter is not installed.
    """
    root = parse(source.encode())
    if root.has_error or depth_of(root) > _DEEPEST:
        return True
    if any("\\" in text_of(one) for one in nodes(root, "identifier")):
        return True  # another spelling of a name
    assembler = nodes(root, "gnu_asm_expression")
    if any("param" in text_of(one) for one in assembler):
        return True  # it can have any parameter without its name
    try:
        _check(root, entry.partition("<")[0].split("::")[-1], place)
    except ReadError:
        return True
    return False


def _check(root: Node, entry: str, place: int) -> None:
    functions: dict[str, list[Node]] = {}
    for one in nodes(root, "function_definition"):
        functions.setdefault(_name_of(one), []).append(one)
    hidden = {
        word
        for one in nodes(root, "preproc_def", "preproc_function_def")
        for word in _WORD.findall(text_of(field(one, "value")))
    }

    def uses_in(passed: Passed) -> Iterator[Passed]:
        assert isinstance(passed.parameter, int)  # CUDA passes by place only
        if passed.function not in functions:
            raise ReadError
        for function in functions[passed.function]:
            yield from _uses_in(function, passed.parameter, hidden)

    follow(Passed(entry, place), uses_in)


def _uses_in(function: Node, place: int, hidden: set[str]) -> list[Passed]:
    """To what a function passes its parameter; everything else must be stores."""
    parameters = [
        one
        for declarator in nodes(function, "function_declarator")
        if (found := field(declarator, "parameters")) is not None
        for one in found.named_children
        if one.type != "comment"
    ]
    body = field(function, "body")
    if body is None or place >= len(parameters):
        raise ReadError
    names = {_declared(parameters[place])}
    passed: list[Passed] = []
    known: set[str] = set()
    while names - known:
        if names & hidden:
            raise ReadError  # a macro uses it
        known = set(names)
        passed = []
        for one in nodes(body, "identifier"):
            if text_of(one) in known and not _is_declared(one):
                use = _use_of(one, body)
                if isinstance(use, str):
                    names.add(use)
                elif use is not None:
                    passed.append(use)
    return passed


def _use_of(node: Node, body: Node) -> Use:
    """What becomes of a pointer where it is named."""
    pointer = True  # otherwise what it points to
    for parent in _around(node, body):
        kind = parent.type
        if kind == "argument_list":
            call = parent.parent
            assert call is not None
            if _function_of(call) not in _CASTS:
                return _passed(call, node, pointer=pointer)
        elif kind in ("call_expression", "cast_expression"):
            to = "function" if kind == "call_expression" else "type"
            if "*" not in text_of(field(parent, to)):  # a cast to an integer
                _check_alignment(parent)
                return None
        elif kind == "binary_expression":
            if not pointer or operator_of(parent) not in ("+", "-"):
                raise ReadError
        elif kind == "subscript_expression":
            if not pointer or field(parent, "argument") != node:
                raise ReadError
            pointer = False
        elif kind == "pointer_expression":
            if pointer == (operator_of(parent) == "&"):
                raise ReadError
            pointer = not pointer
        elif kind == "field_expression":
            if pointer != (operator_of(parent) == "->"):
                raise ReadError
            pointer = False
        elif kind == "update_expression" and pointer:
            pass
        elif kind == "conditional_expression":
            if not pointer or field(parent, "condition") == node:
                raise ReadError
        elif kind == "assignment_expression":
            return _assigned(parent, node, pointer=pointer)
        elif kind == "init_declarator" and pointer and field(parent, "value") == node:
            return _declared(parent)
        elif kind == "expression_statement":
            return None
        elif kind != "parenthesized_expression":
            raise ReadError
        node = parent
    raise ReadError


def _check_alignment(address: Node) -> None:
    """Check that no more is asked of an address, an integer, than how it is aligned."""
    outer = address.parent
    while outer is not None and outer.type == "parenthesized_expression":
        address, outer = outer, outer.parent
    if outer is not None and outer.type == "binary_expression" and operator_of(outer) == "%":
        bytes_ = text_of(field(outer, "right"))
        if field(outer, "left") == address and bytes_.isdecimal() and int(bytes_) <= _WIDEST_BYTES:
            return
    raise ReadError


def _assigned(assignment: Node, node: Node, *, pointer: bool) -> Use:
    left = field(assignment, "left")
    if left == node:
        outer = assignment.parent
        is_statement = outer is not None and outer.type in _STATEMENTS
        if pointer or operator_of(assignment) == "=" or is_statement:
            return None
    elif pointer and left is not None and left.type == "identifier":
        return text_of(left)
    raise ReadError


def _passed(call: Node, node: Node, *, pointer: bool) -> Use:
    name = _function_of(call)
    place = next(n for n, one in enumerate(arguments_of(call)) if one == node)
    outer = call.parent
    is_statement = outer is not None and outer.type in _STATEMENTS
    if not pointer or not name:
        raise ReadError
    if place == 0 and (name in _STORES or (name.startswith("atomic") and is_statement)):
        return None
    return Passed(name, place)


def _function_of(call: Node) -> str:
    """The name of what is called, without its namespace and template arguments."""
    function = field(call, "function")
    while function is not None and function.type in ("template_function", "qualified_identifier"):
        function = field(function, "name")
    return text_of(function) if function is not None and function.type == "identifier" else ""


def _name_of(function: Node) -> str:
    for declarator in nodes(function, "function_declarator"):
        return text_of(field(declarator, "declarator"))
    return ""


def _declared(declaration: Node) -> str:
    """The name that a declaration of one variable gives."""
    declarator = field(declaration, "declarator")
    if declarator is None or declarator.type == "structured_binding_declarator":
        raise ReadError
    for one in walk(declarator):
        if one.type == "identifier":
            return text_of(one)
    raise ReadError


def _is_declared(node: Node) -> bool:
    """Whether a name stands where it is declared."""
    outer = node.parent
    while outer is not None and outer.type.endswith("_declarator"):
        if outer.type == "init_declarator":
            return field(outer, "value") != node
        node, outer = outer, outer.parent
    return outer is not None and outer.type in ("declaration", "parameter_declaration")


def _around(node: Node, body: Node) -> Iterator[Node]:
    parent = node.parent
    while parent is not None and parent != body:
        yield parent
        parent = parent.parent
