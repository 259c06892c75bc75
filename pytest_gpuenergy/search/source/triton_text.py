"""The Triton function of a Python module: its parameters, assignments and loops."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from pytest_gpuenergy.search.source.edits import Edit
from pytest_gpuenergy.search.triton_names import LANGUAGE, certain_names, function_of, path_of


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
        """None if there is no such function, or the text is not Python."""
        try:
            data = source.encode()
            module = ast.parse(source)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return None
        # What the name stands for in the end, if it is set more than once, is not known.
        named = [one for node in module.body for one in _bound_by(node) if one == entry]
        for node in module.body if len(named) == 1 and "\f" not in source else ():
            if isinstance(node, ast.FunctionDef) and node.name == entry:
                text = cls(data, module, node)
                return text if text.language and text._is_only_jit() else None
        return None

    def _is_only_jit(self) -> bool:
        decorators = [path_of(node, self._names) for node in self.function.decorator_list]
        return decorators == ["triton.jit"]

    @cached_property
    def _names(self) -> dict[str, str]:
        return certain_names(self.module)

    @cached_property
    def language(self) -> str:
        """How the module names ``triton.language``; empty if it has no name for it."""
        for suffix in ("", ".language"):
            for name, path in self._names.items():
                if f"{path}{suffix}" == LANGUAGE:
                    return f"{name}{suffix}"
        return ""

    @cached_property
    def parameters(self) -> tuple[str, ...]:
        """Names of all parameters."""
        given = self.function.args
        return tuple(one.arg for one in (*given.posonlyargs, *given.args, *given.kwonlyargs))

    def span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        """The first byte of a node, and the one after its last."""
        end_line, end = node.end_lineno or node.lineno, node.end_col_offset or node.col_offset
        begin = self._starts[node.lineno - 1] + node.col_offset
        return begin, self._starts[end_line - 1] + end

    def text(self, node: ast.expr | ast.stmt) -> str:
        """A node as it is written."""
        begin, end = self.span(node)
        return self.source[begin:end].decode()

    def replaced(self, node: ast.expr | ast.stmt, text: str) -> Edit:
        """The edit that replaces a node."""
        return Edit(*self.span(node), text)

    def operand(self, node: ast.expr) -> str:
        """A node as it is written, in parentheses where other operators could tear it apart."""
        simple = isinstance(node, ast.Name | ast.Call | ast.Constant | ast.Subscript)
        return self.text(node) if simple else f"({self.text(node)})"

    def arguments_span(self, call: ast.Call) -> tuple[int, int]:
        """The bytes between the parentheses of a call."""
        begin, end = self.span(call.func)[1], self.span(call)[1] - 1
        return self.source.index(b"(", begin) + 1, end

    def with_keyword(self, call: ast.Call, keyword: str) -> Edit:
        """The edit that adds ``name=value`` to a call that has arguments."""
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
        """The edit that puts a statement in a line of its own before another one."""
        begin, _ = self.span(node)
        return Edit(begin, begin, f"{line}\n{' ' * node.col_offset}")

    def removed(self, node: ast.stmt) -> Edit:
        """The edit that removes a statement with its line."""
        begin, end = self.span(node)
        start = self.source.rfind(b"\n", 0, begin)
        alone = start >= 0 and not self.source[start:begin].strip()
        return Edit(start if alone else begin, end, "" if alone else "pass")

    def fresh(self, name: str) -> str:
        """``name``, or one made of it that the module does not have."""
        number, found = 2, name
        taken = {node.id for node in ast.walk(self.module) if isinstance(node, ast.Name)}
        while found in taken or found in self.parameters:
            found, number = f"{name}{number}", number + 1
        return found

    def inserted_after(self, node: ast.stmt, line: str) -> Edit:
        """The edit that puts a statement in a line of its own behind another one."""
        _, end = self.span(node)
        return Edit(end, end, f"\n{' ' * node.col_offset}{line}")

    def calls(self, *names: str, within: ast.AST | None = None) -> Iterator[ast.Call]:
        """Calls of functions of Triton's language, in the order of the text."""
        outer = self.function if within is None else within
        found = [n for n in ast.walk(outer) if isinstance(n, ast.Call) and self.called(n) in names]
        yield from sorted(found, key=lambda node: self.span(node))

    def called(self, node: ast.expr) -> str:
        """The function of Triton's language that a call names; empty for anything else."""
        return function_of(path_of(node.func, self._names)) if isinstance(node, ast.Call) else ""

    def axis_of(self, call: ast.Call) -> ast.expr | None:
        """Of a call such as ``tl.program_id(0)`` or ``tl.program_id(axis=0)``."""
        match call:
            case ast.Call(args=[axis], keywords=[]):
                return axis
            case ast.Call(args=[], keywords=[ast.keyword(arg="axis", value=axis)]):
                return axis
        return None

    @cached_property
    def assignments(self) -> dict[str, list[ast.stmt]]:
        """The statements that set a name, in no order, loops and ``a, b = ...`` included."""
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
        """The only value that a name ever has, as an expression; None if there is no such."""
        match self.assignments.get(name, []):
            case [ast.Assign(targets=[ast.Name()], value=value)] if name not in self.parameters:
                return value
            case [ast.AnnAssign(value=value)] if name not in self.parameters:
                return value
        return None

    @cached_property
    def loops(self) -> tuple[RangeLoop, ...]:
        """Loops over ranges, in the order of the text."""
        found = (self._loop(node) for node in ast.walk(self.function) if isinstance(node, ast.For))
        loops = [loop for loop in found if loop is not None]
        return tuple(sorted(loops, key=lambda loop: self.span(loop.node)))

    @cached_property
    def names_in_ranges(self) -> frozenset[str]:
        """The names that ranges of loops depend on, also by what others are set to."""
        found: set[str] = set()
        ranges = [part for loop in self.loops for part in (loop.start, loop.stop, loop.step)]
        while ranges:
            names = {one.id for one in ast.walk(ranges.pop()) if isinstance(one, ast.Name)}
            values = [self.definition(name) for name in names - found]
            ranges += [value for value in values if value is not None]
            found |= names
        return frozenset(found)

    def _loop(self, node: ast.For) -> RangeLoop | None:
        match node.iter:
            case ast.Call(args=arguments) as call if self.is_range(call):
                one, none = ast.Constant(1), ast.Constant(0)
                match arguments, node.target:
                    case [stop], ast.Name(id=name):
                        return RangeLoop(node, name, call, none, stop, one)
                    case [start, stop], ast.Name(id=name):
                        return RangeLoop(node, name, call, start, stop, one)
                    case [start, stop, step], ast.Name(id=name):
                        return RangeLoop(node, name, call, start, stop, step)
        return None

    def is_range(self, call: ast.Call) -> bool:
        """Whether a call is a range that is run as a loop."""
        plain = isinstance(call.func, ast.Name) and call.func.id == "range"
        return plain or self.called(call) == "range"


def _bound_by(statement: ast.stmt) -> Iterator[str]:
    """The names that a statement of a module sets."""
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
