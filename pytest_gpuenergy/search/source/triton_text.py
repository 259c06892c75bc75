"""The Triton function of a Python module: its parameters, assignments and loops."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from pytest_gpuenergy.search.source.edits import Edit, fresh_name
from pytest_gpuenergy.search.source.tree import only

LANGUAGE = "triton.language"
NOT_PYTHON = (SyntaxError, ValueError, RecursionError, MemoryError)
"""The exceptions of Python's parser for a text that is not Python, or is nested too deeply."""
_CHOOSERS = ("autotune", "heuristics")


def parsed(source: str) -> ast.Module | None:
    """Return the tree of a Python module; None if the text is none."""
    try:
        return ast.parse(source)
    except NOT_PYTHON:
        return None


def imported_names(nodes: Iterable[ast.AST]) -> Iterator[tuple[str, str]]:
    """Yield the names that imports among ``nodes`` bind, with the dotted names they stand for."""
    for node in nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                whole = alias.name if alias.asname else alias.name.partition(".")[0]
                yield alias.asname or whole, whole
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                yield alias.asname or alias.name, f"{node.module}.{alias.name}"


def certain_names(module: ast.Module) -> dict[str, str]:
    """Return what the names stand for that imports at the top bind, and nothing else."""
    found: dict[str, set[str]] = {}
    for name, path in imported_names(module.body):
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
            for name, path in imported_names([node]):
                found.setdefault(name, set()).add(path)
        if bound:
            found.pop(bound, None)
    return {name: next(iter(paths)) for name, paths in found.items() if len(paths) == 1}


def dotted_name(node: ast.expr, names: Mapping[str, str]) -> str:
    """Return the dotted name that an expression reaches through imports; empty for others."""
    if isinstance(node, ast.Name):
        return names.get(node.id, "")
    if isinstance(node, ast.Attribute):
        before = dotted_name(node.value, names)
        return f"{before}.{node.attr}" if before else ""
    return ""


def choosing_decorator(source: str, entry: str) -> str:
    """Return the decorator of a function that chooses constants at its launch; empty if none.

    ``triton.autotune`` and ``triton.heuristics`` do so.
    """
    module = parsed(source)
    for node in module.body if module is not None else ():
        if module is not None and isinstance(node, ast.FunctionDef) and node.name == entry:
            for decorator in node.decorator_list:
                named = decorator.func if isinstance(decorator, ast.Call) else decorator
                last = dotted_name(named, dict(imported_names(module.body))).rpartition(".")[2]
                if last in _CHOOSERS:
                    return last
    return ""


@dataclass(frozen=True)
class RangeLoop:
    """``for name in range(start, stop, step)``, or ``tl.range``; ``call`` is the range."""

    node: ast.For
    name: str
    call: ast.Call
    start: ast.expr
    stop: ast.expr
    step: ast.expr


class TritonText:
    """A module with a function that is decorated with ``triton.jit`` and nothing else."""

    def __init__(self, source: bytes, module: ast.Module, function: ast.FunctionDef) -> None:
        self.source = source
        self.module = module
        self.function = function
        lengths = [len(line) for line in source.splitlines(keepends=True)]
        self._starts = [sum(lengths[:number]) for number in range(len(lengths) + 1)]

    @classmethod
    def of(cls, source: str, entry: str) -> TritonText | None:
        """Return the text; None if it has no such function, or is not Python."""
        module = parsed(source)
        if module is None or "\f" in source:
            return None
        # What the name stands for in the end, if it is set more than once, is not known.
        node = only([node for node in module.body for name in _bound_names(node) if name == entry])
        if not isinstance(node, ast.FunctionDef):
            return None
        text = cls(source.encode(), module, node)
        decorators = [dotted_name(decorator, text._names) for decorator in node.decorator_list]
        return text if text.language and decorators == ["triton.jit"] else None

    @cached_property
    def _names(self) -> dict[str, str]:
        return certain_names(self.module)

    @cached_property
    def language(self) -> str:
        """The module's name for ``triton.language``; empty if it has none."""
        for suffix in ("", ".language"):
            for name, path in self._names.items():
                if f"{path}{suffix}" == LANGUAGE:
                    return f"{name}{suffix}"
        return ""

    @cached_property
    def parameters(self) -> tuple[str, ...]:
        """The names of all parameters."""
        declared = self.function.args
        return tuple(
            argument.arg
            for argument in (*declared.posonlyargs, *declared.args, *declared.kwonlyargs)
        )

    def span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        """Return the first byte of a node, and the one after its last."""
        end_line, end = node.end_lineno or node.lineno, node.end_col_offset or node.col_offset
        begin = self._starts[node.lineno - 1] + node.col_offset
        return begin, self._starts[end_line - 1] + end

    def text(self, node: ast.expr | ast.stmt) -> str:
        """Return a node as it is written."""
        begin, end = self.span(node)
        return self.source[begin:end].decode()

    def replaced(self, node: ast.expr | ast.stmt, text: str) -> Edit:
        """Return the edit that replaces a node."""
        return Edit(*self.span(node), text)

    def operand(self, node: ast.expr) -> str:
        """Return a node as it is written, in parentheses where operators could split it."""
        simple = isinstance(node, ast.Name | ast.Call | ast.Constant | ast.Subscript)
        return self.text(node) if simple else f"({self.text(node)})"

    def arguments_span(self, call: ast.Call) -> tuple[int, int]:
        """Return the bytes between the parentheses of a call."""
        begin, end = self.span(call.func)[1], self.span(call)[1] - 1
        return self.source.index(b"(", begin) + 1, end

    def with_keyword(self, call: ast.Call, keyword: str) -> Edit:
        """Return the edit that adds ``name=value`` to a call that has arguments."""
        _, end = self.arguments_span(call)
        last = call.keywords[-1].value if call.keywords else call.args[-1]
        at = self.span(last)[1]
        for line in self.source[at:end].splitlines(keepends=True):
            code = line.partition(b"#")[0]
            if b"," in code:
                end = at + code.index(b",")
                break
            at += len(line)
        return Edit(end, end, f", {keyword}")

    def inserted_before(self, node: ast.stmt, line: str) -> Edit:
        """Return the edit that puts a statement in a line of its own before another one."""
        begin, _ = self.span(node)
        return Edit(begin, begin, f"{line}\n{' ' * node.col_offset}")

    def removed(self, node: ast.stmt) -> Edit:
        """Return the edit that removes a statement with its line."""
        begin, end = self.span(node)
        start = self.source.rfind(b"\n", 0, begin)
        alone = start >= 0 and not self.source[start:begin].strip()
        return Edit(start if alone else begin, end, "" if alone else "pass")

    def fresh(self, name: str) -> str:
        """Return ``name``, or one made of it that the module does not have."""
        names = {node.id for node in ast.walk(self.module) if isinstance(node, ast.Name)}
        return fresh_name(name, names.union(self.parameters))

    def inserted_after(self, node: ast.stmt, line: str) -> Edit:
        """Return the edit that puts a statement in a line of its own behind another one."""
        _, end = self.span(node)
        return Edit(end, end, f"\n{' ' * node.col_offset}{line}")

    def calls(self, *names: str, within: ast.AST | None = None) -> Iterator[ast.Call]:
        """Yield the calls of functions of Triton's language, in the order of the text."""
        outer = self.function if within is None else within
        found = [n for n in ast.walk(outer) if isinstance(n, ast.Call) and self.called(n) in names]
        yield from sorted(found, key=lambda node: self.span(node))

    def called(self, node: ast.expr) -> str:
        """Return the function of Triton's language that a call names; empty for anything else."""
        path = dotted_name(node.func, self._names) if isinstance(node, ast.Call) else ""
        module, _, name = path.rpartition(".")
        known = module == LANGUAGE or path in ("triton.cdiv", "triton.next_power_of_2")
        return name if known else ""

    def program_axis(self, call: ast.Call) -> ast.expr | None:
        """Return the axis of a call such as ``tl.program_id(0)`` or ``tl.program_id(axis=0)``."""
        match call:
            case ast.Call(args=[axis], keywords=[]):
                return axis
            case ast.Call(args=[], keywords=[ast.keyword(arg="axis", value=axis)]):
                return axis
        return None

    @cached_property
    def assignments(self) -> dict[str, list[ast.stmt]]:
        """The statements that set each name, in no order, with loops and ``a, b = ...``."""
        found: dict[str, list[ast.stmt]] = {}
        for node in ast.walk(self.function):
            targets: list[ast.expr] = []
            if isinstance(node, ast.Assign):
                targets = node.targets
            elif isinstance(node, ast.AugAssign | ast.AnnAssign | ast.For | ast.NamedExpr):
                targets = [node.target]
            for target in targets:
                for name in ast.walk(target):
                    if isinstance(name, ast.Name) and isinstance(name.ctx, ast.Store):
                        found.setdefault(name.id, []).append(node)  # type: ignore[arg-type]
        return found

    def definition(self, name: str) -> ast.expr | None:
        """Return the expression of the only value that a name ever has; None if there is none."""
        match self.assignments.get(name, []):
            case [ast.Assign(targets=[ast.Name()], value=value)] if name not in self.parameters:
                return value
            case [ast.AnnAssign(value=value)] if name not in self.parameters:
                return value
        return None

    @cached_property
    def loops(self) -> tuple[RangeLoop, ...]:
        """The loops over ranges, in the order of the text."""
        found = (self._loop(node) for node in ast.walk(self.function) if isinstance(node, ast.For))
        loops = [loop for loop in found if loop is not None]
        return tuple(sorted(loops, key=lambda loop: self.span(loop.node)))

    @cached_property
    def names_in_ranges(self) -> frozenset[str]:
        """The names that ranges of loops depend on, directly or through other names."""
        found: set[str] = set()
        ranges = [part for loop in self.loops for part in (loop.start, loop.stop, loop.step)]
        while ranges:
            names = {node.id for node in ast.walk(ranges.pop()) if isinstance(node, ast.Name)}
            values = [self.definition(name) for name in names - found]
            ranges += [value for value in values if value is not None]
            found |= names
        return frozenset(found)

    def _loop(self, node: ast.For) -> RangeLoop | None:
        match node.iter:
            case ast.Call(args=arguments) as call if self.is_range(call):
                ends = [ast.Constant(0), *arguments] if len(arguments) == 1 else arguments
                match [*ends, ast.Constant(1)][:3], node.target:
                    case [start, stop, step], ast.Name(id=name) if len(arguments) <= 3:
                        return RangeLoop(node, name, call, start, stop, step)
        return None

    def is_range(self, call: ast.Call) -> bool:
        """Return whether a call is a range that a loop can run over."""
        plain = isinstance(call.func, ast.Name) and call.func.id == "range"
        return plain or self.called(call) == "range"


def _bound_names(statement: ast.stmt) -> Iterator[str]:
    """Yield the names that a statement of a module sets."""
    if isinstance(statement, ast.FunctionDef | ast.ClassDef):
        yield statement.name
        return
    for node in ast.walk(statement):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.alias):
            yield node.asname or node.name
