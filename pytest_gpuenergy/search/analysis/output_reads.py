"""Finds the outputs that a kernel's text may read before it writes them.

A kernel has no reason to look at what its outputs hold, except to add to it. One that does can
recognize that they are right already, and do less work. So each use of an output must be known to
be a store; anything else counts as a read. This does not prove that a text reads an output, but
that it does not read the others through the pointers that it is given.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache, partial
from itertools import takewhile
from typing import TYPE_CHECKING, NamedTuple

from pytest_gpuenergy.kernels import argument_names, function_name
from pytest_gpuenergy.search.source.tree import (
    ancestors,
    call_arguments,
    expression_operator,
    field,
    is_too_deep,
    node_text,
    nodes,
    parse,
    unscoped_name,
)
from pytest_gpuenergy.search.source.triton_text import NOT_PYTHON
from pytest_gpuenergy.search.spec.kernel_spec import KernelSpec, Language, State

if TYPE_CHECKING:
    from tree_sitter import Node

_MAX_ACCESS_BYTES = 16
"""The size of the widest access, and so the largest alignment that a kernel can ask for."""
_WORD = re.compile(r"[A-Za-z_]\w*")
_CUDA_CASTS = ("reinterpret_cast", "static_cast", "const_cast")
_CUDA_STORES = ("__stwb", "__stcg", "__stcs", "__stwt", "store_matrix_sync")
_CUDA_STATEMENTS = ("expression_statement", "for_statement", "comma_expression")
_TRITON_STILL_POINTERS = frozenset(
    {
        *("make_block_ptr", "make_tensor_descriptor", "advance", "multiple_of", "max_contiguous"),
        *("max_constancy", "broadcast_to", "expand_dims", "reshape", "view"),
    }
)
"""Functions of Triton that return a pointer to where their first argument points."""


def outputs_read(state: State, spec: KernelSpec) -> frozenset[str]:
    """Return the names of the output tensors that a state may read.

    The uses of a struct's members are not followed: an output in a struct counts as read by each
    text but the spec's own, which is taken to be right.

    Raises:
        UnavailableError: tree-sitter is needed and not installed.
    """
    outputs = {tensor.name for tensor in spec.tensors if tensor.role == "output"}
    return frozenset(
        name
        for place, argument in enumerate(spec.arguments)
        for name in argument_names([argument])
        if name in outputs
        and (
            _may_be_read(state.language, state.source, spec.entry, place)
            if isinstance(argument, str)
            else state.source != spec.source
        )
    )


class _Passed(NamedTuple):
    """A parameter, by place or name, that a pointer is passed to."""

    function: str
    parameter: int | str


_Use = str | _Passed | None
"""Another name for the pointer, a parameter that it is passed to, or None for a store."""


class _ReadError(Exception):
    """Something other than a store is done with the pointer."""


@lru_cache(maxsize=64)  # the baseline is compared with each variant
def _may_be_read(language: Language, source: str, entry: str, place: int) -> bool:
    """Return whether the memory may be read that the parameter at ``place`` points to."""
    try:
        functions = _CudaFunctions(source) if language == "cuda" else _TritonFunctions(source)
        waiting = [_Passed(function_name(entry), place)]
        seen: set[_Passed] = set()
        while waiting:
            passed = waiting.pop()
            if passed not in seen:
                seen.add(passed)
                waiting += functions.passed_on(passed)
    except (_ReadError, *NOT_PYTHON):
        return True
    return False


def _aliases_passed_on(name: str, uses: Callable[[set[str]], Iterable[_Use]]) -> list[_Passed]:
    """Return where a function passes a parameter, under any name that it gives the pointer."""
    names, known, found = {name}, set[str](), list[_Use]()
    while names - known:
        known = set(names)
        found = list(uses(known))
        names |= {use for use in found if isinstance(use, str)}
    return [use for use in found if isinstance(use, _Passed)]


class _CudaFunctions:
    """The functions of a CUDA text; one that can use a pointer without naming it is refused.

    Raises:
        _ReadError: the text can use a pointer without naming it.
        UnavailableError: tree-sitter is not installed.
    """

    def __init__(self, source: str) -> None:
        root = parse(source.encode())
        if root.has_error or is_too_deep(root):
            raise _ReadError
        if any("\\" in node_text(name) for name in nodes(root, "identifier")):
            raise _ReadError  # another spelling of a name
        if any("param" in node_text(node) for node in nodes(root, "gnu_asm_expression")):
            raise _ReadError  # assembler can use any parameter without its name
        self._by_name: dict[str, list[Node]] = {}
        for function in nodes(root, "function_definition"):
            self._by_name.setdefault(unscoped_name(function), []).append(function)
        self._in_macros = {
            word
            for macro in nodes(root, "preproc_def", "preproc_function_def")
            for word in _WORD.findall(node_text(field(macro, "value")))
        }

    def passed_on(self, passed: _Passed) -> Iterator[_Passed]:
        """Yield where functions of a name pass a parameter; all else they do must be stores."""
        assert isinstance(passed.parameter, int)  # CUDA passes by place only
        if passed.function not in self._by_name:
            raise _ReadError
        for function in self._by_name[passed.function]:
            parameters = [
                parameter
                for declarator in nodes(function, "function_declarator")
                if (listed := field(declarator, "parameters")) is not None
                for parameter in listed.named_children
                if parameter.type != "comment"
            ]
            body = field(function, "body")
            if body is None or passed.parameter >= len(parameters):
                raise _ReadError
            name = _declared_name(parameters[passed.parameter])
            yield from _aliases_passed_on(name, partial(self._uses, body))

    def _uses(self, body: Node, names: set[str]) -> Iterator[_Use]:
        if names & self._in_macros:
            raise _ReadError
        for node in nodes(body, "identifier"):
            if node_text(node) in names and not _is_declared(node):
                yield _cuda_use(node, body)


def _cuda_use(node: Node, body: Node) -> _Use:
    """Return how CUDA text uses a pointer where it names it."""
    pointer = True  # whether the expression so far is the pointer, or the memory it points to
    for parent in takewhile(lambda outer: outer != body, ancestors(node)):
        kind = parent.type
        if kind == "argument_list":
            call = parent.parent
            assert call is not None
            if _cuda_function(call) not in _CUDA_CASTS:
                return _cuda_passed(call, node, pointer=pointer)
        elif kind in ("call_expression", "cast_expression"):
            to = "function" if kind == "call_expression" else "type"
            if "*" not in node_text(field(parent, to)):  # a cast to an integer
                _check_alignment(parent)
                return None
        elif kind == "binary_expression":
            if not pointer or expression_operator(parent) not in ("+", "-"):
                raise _ReadError
        elif kind == "subscript_expression":
            if not pointer or field(parent, "argument") != node:
                raise _ReadError
            pointer = False
        elif kind == "pointer_expression":
            if pointer == (expression_operator(parent) == "&"):
                raise _ReadError
            pointer = not pointer
        elif kind == "field_expression":
            if pointer != (expression_operator(parent) == "->"):
                raise _ReadError
            pointer = False
        elif kind == "update_expression" and pointer:
            pass
        elif kind == "conditional_expression":
            if not pointer or field(parent, "condition") == node:
                raise _ReadError
        elif kind == "assignment_expression":
            return _use_in_assignment(parent, node, pointer=pointer)
        elif kind == "init_declarator" and pointer and field(parent, "value") == node:
            return _declared_name(parent)
        elif kind == "expression_statement":
            return None
        elif kind != "parenthesized_expression":
            raise _ReadError
        node = parent
    raise _ReadError


def _check_alignment(address: Node) -> None:
    """Check that an address, cast to an integer, is only tested for its alignment."""
    outer = address.parent
    while outer is not None and outer.type == "parenthesized_expression":
        address, outer = outer, outer.parent
    if (
        outer is not None
        and outer.type == "binary_expression"
        and expression_operator(outer) == "%"
    ):
        bytes_ = node_text(field(outer, "right"))
        if (
            field(outer, "left") == address
            and bytes_.isdecimal()
            and int(bytes_) <= _MAX_ACCESS_BYTES
        ):
            return
    raise _ReadError


def _use_in_assignment(assignment: Node, node: Node, *, pointer: bool) -> _Use:
    left = field(assignment, "left")
    if left == node:
        if pointer or expression_operator(assignment) == "=" or _is_statement(assignment):
            return None
    elif pointer and left is not None and left.type == "identifier":
        return node_text(left)
    raise _ReadError


def _is_statement(expression: Node) -> bool:
    """Return whether nothing uses the value of an expression."""
    return expression.parent is not None and expression.parent.type in _CUDA_STATEMENTS


def _cuda_passed(call: Node, node: Node, *, pointer: bool) -> _Use:
    name = _cuda_function(call)
    place = next(place for place, value in enumerate(call_arguments(call)) if value == node)
    if not pointer or not name:
        raise _ReadError
    is_stored = name in _CUDA_STORES or (name.startswith("atomic") and _is_statement(call))
    return None if place == 0 and is_stored else _Passed(name, place)


def _cuda_function(call: Node) -> str:
    """Return the name of a called function, without namespace and template arguments.

    It is empty if the call is that of a method or of an expression.
    """
    function = field(call, "function")
    while function is not None and function.type in ("template_function", "qualified_identifier"):
        function = field(function, "name")
    return node_text(function) if function is not None and function.type == "identifier" else ""


def _declared_name(declaration: Node) -> str:
    """Return the name that a declaration of one variable gives."""
    declarator = field(declaration, "declarator")
    if declarator is not None and declarator.type != "structured_binding_declarator":
        for name in nodes(declarator, "identifier"):
            return node_text(name)
    raise _ReadError


def _is_declared(node: Node) -> bool:
    """Return whether a name stands where it is declared."""
    outer = node.parent
    while outer is not None and outer.type.endswith("_declarator"):
        if outer.type == "init_declarator":
            return field(outer, "value") != node
        node, outer = outer, outer.parent
    return outer is not None and outer.type in ("declaration", "parameter_declaration")


class _TritonFunctions:
    """The functions of a Triton module.

    Raises:
        SyntaxError, ValueError, RecursionError, MemoryError: it is not a Python module.
    """

    def __init__(self, source: str) -> None:
        module = ast.parse(source)
        self._by_name = {
            node.name: node for node in module.body if isinstance(node, ast.FunctionDef)
        }
        self._parents = {
            inner: outer for outer in ast.walk(module) for inner in ast.iter_child_nodes(outer)
        }

    def passed_on(self, passed: _Passed) -> list[_Passed]:
        """Return where a function passes a parameter; all else it does must be stores."""
        function = self._by_name.get(passed.function)
        if function is None:
            raise _ReadError
        arguments = [*function.args.posonlyargs, *function.args.args]
        names = [argument.arg for argument in (*arguments, *function.args.kwonlyargs)]
        parameter = passed.parameter
        if isinstance(parameter, int):
            if parameter >= len(arguments):
                raise _ReadError
            parameter = names[parameter]
        if parameter not in names:
            raise _ReadError

        def uses(known: set[str]) -> Iterator[_Use]:
            for node in ast.walk(function):
                is_loaded = isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
                if is_loaded and isinstance(node, ast.Name) and node.id in known:
                    yield self._use(node)

        return _aliases_passed_on(parameter, uses)

    def _use(self, node: ast.AST) -> _Use:
        """Return how Triton text uses a pointer where it names it."""
        while True:
            parent = self._parents[node]
            match parent:
                case ast.BinOp(op=ast.Add() | ast.Sub()):
                    pass
                case ast.IfExp() if parent.test is not node:
                    pass
                case ast.Subscript() if parent.value is node:
                    pass
                case ast.Attribute(attr="dtype" | "type"):
                    return None
                case ast.Attribute(attr=attribute):
                    call = self._parents[parent]
                    if attribute == "store" and isinstance(call, ast.Call) and call.func is parent:
                        return None
                    raise _ReadError
                case ast.keyword(arg=str()) | ast.Call():
                    call = self._parents[parent] if isinstance(parent, ast.keyword) else parent
                    assert isinstance(call, ast.Call)
                    based = [keyword.value for keyword in call.keywords if keyword.arg == "base"]
                    if _triton_function(call) not in _TRITON_STILL_POINTERS or not (
                        node in call.args[:1] or node in based
                    ):
                        return self._passed(call, node)
                    parent = call
                case (
                    ast.Assign(targets=[ast.Name(id=name)])
                    | ast.AnnAssign(target=ast.Name(id=name))
                    | ast.AugAssign(target=ast.Name(id=name))
                ):
                    return name
                case ast.Expr():
                    return None
                case _:
                    raise _ReadError
            node = parent

    def _passed(self, call: ast.Call, node: ast.AST) -> _Use:
        name = _triton_function(call)
        place: int | str | None = None
        for number, value in enumerate(call.args):
            if value is node:
                place = number
        for keyword in call.keywords:
            if keyword.value is node:
                place = keyword.arg
        if place is None:
            raise _ReadError
        is_statement = isinstance(self._parents[call], ast.Expr)
        is_written = name == "store" or (name.startswith("atomic_") and is_statement)
        if is_written and place in (0, "pointer") and isinstance(call.func, ast.Attribute):
            return None
        if not isinstance(call.func, ast.Name):
            raise _ReadError
        return _Passed(name, place)


def _triton_function(call: ast.Call) -> str:
    """Return the name of a called function, without the module of Triton that it is from."""
    module = call.func.value if isinstance(call.func, ast.Attribute) else call.func
    while isinstance(module, ast.Attribute):
        module = module.value
    if not isinstance(module, ast.Name):
        return ""
    return call.func.attr if isinstance(call.func, ast.Attribute) else module.id
