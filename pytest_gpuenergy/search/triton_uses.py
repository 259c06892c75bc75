"""What a Triton module does with a pointer that its entry is given, see `output_reads`."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from pytest_gpuenergy.search.pointer_uses import Passed, ReadError, Use, follow

_STILL_POINTERS = frozenset(
    {
        *("make_block_ptr", "make_tensor_descriptor", "advance", "multiple_of", "max_contiguous"),
        *("max_constancy", "broadcast_to", "expand_dims", "reshape", "view"),
    }
)
"""Functions of Triton that return a pointer to where their first argument points."""
_OF_TYPES = ("dtype", "type")


def is_read(source: str, entry: str, place: int) -> bool:
    """Whether what a pointer points to may be read.

    Args:
        source: a Triton module.
        entry: the function that is launched.
        place: of the pointer among its parameters.
    """
    try:
        module = ast.parse(source)
        _check(module, Passed(entry, place))
    except (ReadError, SyntaxError, ValueError, RecursionError, MemoryError):
        return True
    return False


def _check(module: ast.Module, entry: Passed) -> None:
    functions = {one.name: one for one in module.body if isinstance(one, ast.FunctionDef)}
    parents = {inner: outer for outer in ast.walk(module) for inner in ast.iter_child_nodes(outer)}

    def uses_in(passed: Passed) -> list[Passed]:
        if passed.function not in functions:
            raise ReadError
        return _uses_in(functions[passed.function], passed.parameter, parents)

    follow(entry, uses_in)


def _uses_in(
    function: ast.FunctionDef, parameter: int | str, parents: dict[ast.AST, ast.AST]
) -> list[Passed]:
    """To what a function passes its parameter; everything else must be stores."""
    arguments = [*function.args.posonlyargs, *function.args.args]
    everywhere = [one.arg for one in (*arguments, *function.args.kwonlyargs)]
    if isinstance(parameter, int):
        if parameter >= len(arguments):
            raise ReadError
        parameter = everywhere[parameter]
    if parameter not in everywhere:
        raise ReadError
    names: set[str] = {parameter}
    known: set[str] = set()
    passed: list[Passed] = []
    while names - known:
        known, passed = set(names), []
        for node in _loaded(function, known):
            use = _use_of(node, parents)
            if isinstance(use, str):
                names.add(use)
            elif use is not None:
                passed.append(use)
    return passed


def _loaded(function: ast.FunctionDef, names: set[str]) -> Iterator[ast.Name]:
    for node in ast.walk(function):
        if isinstance(node, ast.Name) and node.id in names and isinstance(node.ctx, ast.Load):
            yield node


def _use_of(node: ast.AST, parents: dict[ast.AST, ast.AST]) -> Use:
    """What becomes of a pointer where it is named."""
    while True:
        parent = parents[node]
        match parent:
            case ast.BinOp(op=ast.Add() | ast.Sub()):
                pass
            case ast.IfExp() if parent.test is not node:
                pass
            case ast.Subscript() if parent.value is node:
                pass
            case ast.Attribute(attr=attribute):
                call = parents[parent]
                if attribute in _OF_TYPES:
                    return None
                if attribute == "store" and isinstance(call, ast.Call) and call.func is parent:
                    return None
                raise ReadError
            case ast.keyword(arg=str()) | ast.Call():
                call = parents[parent] if isinstance(parent, ast.keyword) else parent
                assert isinstance(call, ast.Call)
                if not _is_still_pointer(call, node):
                    return _passed(call, node, parents)
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
                raise ReadError
        node = parent


def _is_still_pointer(call: ast.Call, node: ast.AST) -> bool:
    first = call.args[0] if call.args else None
    named = [one.value for one in call.keywords if one.arg == "base"]
    return _called(call) in _STILL_POINTERS and (node is first or node in named)


def _passed(call: ast.Call, node: ast.AST, parents: dict[ast.AST, ast.AST]) -> Use:
    name = _called(call)
    place: int | str | None = None
    for number, argument in enumerate(call.args):
        if argument is node:
            place = number
    for keyword in call.keywords:
        if keyword.value is node:
            place = keyword.arg
    if place is None:
        raise ReadError
    is_statement = isinstance(parents[call], ast.Expr)
    is_written = name == "store" or (name.startswith("atomic_") and is_statement)
    if is_written and place in (0, "pointer") and isinstance(call.func, ast.Attribute):
        return None
    if not isinstance(call.func, ast.Name):
        raise ReadError
    return Passed(name, place)


def _called(call: ast.Call) -> str:
    """The name of a function, without the module of Triton that it is from."""
    module = call.func.value if isinstance(call.func, ast.Attribute) else call.func
    while isinstance(module, ast.Attribute):
        module = module.value
    if not isinstance(module, ast.Name):
        return ""
    return call.func.attr if isinstance(call.func, ast.Attribute) else module.id
