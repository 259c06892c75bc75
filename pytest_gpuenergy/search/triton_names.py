"""What names in a Triton module stand for."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping

LANGUAGE = "triton.language"
_CHOOSERS = ("autotune", "heuristics")


def imported(nodes: Iterable[ast.AST]) -> Iterator[tuple[str, str]]:
    """The names that imports among ``nodes`` bind, each with the dotted name of what it is."""
    for node in nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                whole = alias.name if alias.asname else alias.name.partition(".")[0]
                yield alias.asname or whole, whole
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                yield alias.asname or alias.name, f"{node.module}.{alias.name}"


def certain_names(module: ast.Module) -> dict[str, str]:
    """Of names that imports at the top bind and nothing else does: what they stand for."""
    found: dict[str, set[str]] = {}
    for name, path in imported(module.body):
        found.setdefault(name, set()).add(path)
    for node in ast.walk(module):
        bound = ""
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            bound = node.id
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            bound = node.name
        elif isinstance(node, ast.arg):
            bound = node.arg
        elif isinstance(node, ast.Import | ast.ImportFrom) and node not in module.body:
            for name, path in imported([node]):
                found.setdefault(name, set()).add(path)
        if bound:
            found.pop(bound, None)
    return {name: next(iter(paths)) for name, paths in found.items() if len(paths) == 1}


def path_of(node: ast.expr, names: Mapping[str, str]) -> str:
    """The dotted name of what an expression reaches through imports; empty for anything else."""
    if isinstance(node, ast.Name):
        return names.get(node.id, "")
    if isinstance(node, ast.Attribute):
        before = path_of(node.value, names)
        return f"{before}.{node.attr}" if before else ""
    return ""


def function_of(path: str) -> str:
    """The name of a function of Triton's language by its dotted name; empty for anything else."""
    module, _, name = path.rpartition(".")
    if module == LANGUAGE or path in ("triton.cdiv", "triton.next_power_of_2"):
        return name
    return ""


def chooser_of(source: str, entry: str) -> str:
    """The decorator of a function that chooses constants when it is launched; empty without one.

    ``triton.autotune`` and ``triton.heuristics`` do so.
    """
    try:
        module = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ""
    for node in module.body:
        if not isinstance(node, ast.FunctionDef) or node.name != entry:
            continue
        for decorator in node.decorator_list:
            named = decorator.func if isinstance(decorator, ast.Call) else decorator
            last = path_of(named, dict(imported(module.body))).rpartition(".")[2]
            if last in _CHOOSERS:
                return last
    return ""
