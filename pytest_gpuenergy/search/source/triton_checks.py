"""Checks that a variant's Triton module contains only functions that Triton compiles.

The module is executed as Python, so that nothing but what is known to be harmless is let through.
This is no sandbox: Triton's own modules are larger than any list of their names.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from pytest_gpuenergy.search.source.cuda_checks import IN_ASSEMBLER
from pytest_gpuenergy.search.source.triton_text import NOT_PYTHON, imported_names, parsed

_MODULES = frozenset({"triton", "triton.language", "triton.language.math", "math", "__future__"})
"""The modules that may be imported."""
_LIBDEVICE = frozenset({"triton.language.extra", "triton.language.extra.cuda"})
"""The modules from which ``libdevice`` may be imported, and nothing else."""
_OF_TRITON = frozenset({"jit", "language", "cdiv", "next_power_of_2"})
"""The names that may be imported from ``triton``."""
_INNER_MODULES = frozenset({"core", "semantic", "standard", "random", "target_info", "extra"})
"""Modules of Triton's language, which lead to those that they import."""
_FORBIDDEN = frozenset(
    {
        *("open", "exec", "eval", "compile", "input", "breakpoint", "print"),
        *("getattr", "setattr", "delattr", "globals", "locals", "vars", "dir", "type", "super"),
        *("device_print", "static_print", "device_assert", "globaltimer", "clock"),
        "extern_elementwise",
    }
)
"""Names that may stand nowhere: they reach Python itself, print, read clocks or link other code."""
_FORBIDDEN_STATEMENTS = (
    *(ast.ClassDef, ast.AsyncFunctionDef, ast.Lambda, ast.With, ast.Try, ast.TryStar),
    *(ast.Global, ast.Nonlocal, ast.Delete, ast.Yield, ast.YieldFrom, ast.Await, ast.NamedExpr),
)
_CONSTEXPR = ("constexpr", "tl.constexpr", "triton.language.constexpr")
_LITERALS = (
    *(ast.Constant, ast.Tuple, ast.List, ast.UnaryOp, ast.BinOp, ast.operator, ast.unaryop),
    *(ast.expr_context,),
)
_ASSEMBLER = "inline_asm_elementwise"
"""The function of Triton that takes inline assembler."""
_DECORATORS = {"triton": "triton", "jit": "triton.jit"}
"""The dotted names that the names in decorators must stand for."""
_ENCODING = re.compile(r"\A(?:[^\n]*\n)?[ \t\f]*#.*?coding[:=][ \t]*(?!utf-?8\b)[-\w.]+", re.I)
"""A comment in the first two lines by which Python reads a file otherwise than its text says."""


class ModuleError(ValueError):
    """A text is not a Python module; the message is a clause without a period."""


def findings(source: str) -> frozenset[str]:
    """Return what a module contains that no variant may add, each in a few words."""
    try:
        module = ast.parse(source)
    except NOT_PYTHON as error:
        raise ModuleError(f"it is no Python module ({type(error).__name__})") from None
    found = {finding for statement in module.body for finding in _findings_at_top(statement)}
    if _ENCODING.search(source.replace("\r", "\n")):
        found.add("another encoding than UTF-8")
    modules = _Modules(module)
    found.update(_findings_in_assembler(module))
    for node in ast.walk(module):
        found.update(_anywhere(node))
        found.update(modules.misuse(node))
    return frozenset(found)


def assembler_statements(source: str) -> int:
    """Return the number of calls that contain inline assembler; 0 if it cannot be parsed."""
    module = parsed(source) or ast.Module([], [])
    return sum(getattr(node, "attr", "") == _ASSEMBLER for node in ast.walk(module))


def _findings_at_top(statement: ast.stmt) -> Iterator[str]:
    match statement:
        case ast.Import() | ast.ImportFrom() | ast.Expr(value=ast.Constant()):
            return
        case ast.FunctionDef():
            yield from _findings_in_function(statement)
        case ast.Assign(targets=[ast.Name()], value=value) if _is_constant(value):
            return
        case ast.AnnAssign(target=ast.Name(), annotation=annotation, value=value) if (
            value is not None and _is_constant(value) and _is_name(annotation)
        ):
            return
        case _:
            yield f"the statement {_short_text(statement)}"


def _findings_in_function(function: ast.FunctionDef) -> Iterator[str]:
    decorators = [ast.unparse(decorator) for decorator in function.decorator_list]
    if decorators not in (["triton.jit"], ["jit"]):
        yield f"{function.name}, which is not decorated with triton.jit alone"
    arguments = function.args
    for default in (*arguments.defaults, *arguments.kw_defaults):
        if default is not None and not _is_constant(default):
            yield f"the default {_short_text(default)}"
    every = (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)
    for annotation in (*(argument.annotation for argument in every), function.returns):
        if annotation is not None and not _is_name(annotation):
            yield f"the annotation {_short_text(annotation)}"
    for node in ast.walk(function):
        if node is not function and isinstance(node, ast.FunctionDef | ast.Import | ast.ImportFrom):
            yield f"{_short_text(node)} in a function"


def _anywhere(node: ast.AST) -> Iterator[str]:
    names = {getattr(node, key, None) for key in ("id", "attr", "arg", "name")}
    for name in names:
        if isinstance(name, str) and (name in _FORBIDDEN or name.startswith("__")):
            yield name
    if isinstance(node, ast.Attribute) and node.attr.startswith("_"):
        yield f"the attribute {node.attr}"
    if isinstance(node, ast.Attribute) and not isinstance(node.ctx, ast.Load):
        yield f"an assignment to {_short_text(node)}"
    if isinstance(node, _FORBIDDEN_STATEMENTS):
        yield f"{type(node).__name__}: {_short_text(node)}"
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        for word in ("clock", "globaltimer", "nanosleep", "__"):
            if word in node.value:
                yield f"a text with {word}"


def _findings_in_assembler(module: ast.Module) -> Iterator[str]:
    """Yield what is forbidden in inline assembler, whose text must be a literal."""
    called = set()
    for node in ast.walk(module):
        if not isinstance(node, ast.Call) or getattr(node.func, "attr", "") != _ASSEMBLER:
            continue
        called.add(id(node.func))
        arguments = [keyword.value for keyword in node.keywords if keyword.arg == "asm"]
        text = (*node.args, *arguments)[0] if node.args or arguments else None
        if not isinstance(text, ast.Constant) or not isinstance(text.value, str):
            yield "assembler whose text is put together"
        elif IN_ASSEMBLER.search(text.value):
            yield f"assembler with {_short_text(text)}"
    for node in ast.walk(module):
        if getattr(node, "attr", "") == _ASSEMBLER and id(node) not in called:
            yield f"another meaning of {_ASSEMBLER}"


class _Modules:
    """The names by which a module knows other modules, and what it does with them."""

    def __init__(self, module: ast.Module) -> None:
        self._known: dict[str, str] = {}
        self._within: set[int] = set()
        for node in ast.walk(module):
            self._known |= dict(imported_names([node]))
            if isinstance(node, ast.Attribute):
                self._within.add(id(node.value))

    def misuse(self, node: ast.AST) -> Iterator[str]:
        """Yield what a node reaches that it should not."""
        if isinstance(node, ast.FunctionDef) and node.name in _DECORATORS:
            yield f"another meaning of {node.name}"
        elif isinstance(node, ast.Import):
            for alias in node.names:
                yield from _renamed_decorators(alias, "")
                if alias.name not in _MODULES:
                    yield f"import {alias.name}"
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                yield from _renamed_decorators(alias, f"{node.module}.")
                if node.level or not _may_be_imported(node.module or "", alias.name):
                    yield f"from {node.module} import {alias.name}"
        elif isinstance(node, ast.Name) and id(node) not in self._within:
            place = self._known.get(node.id, "")
            if isinstance(node.ctx, ast.Store) and place:
                yield f"another meaning of {node.id}"
            elif place in _MODULES:
                yield f"the module {place} as a value"
        elif isinstance(node, ast.Attribute) and id(node) not in self._within:
            path = self._path(node)
            if path and not _may_be_reached(path):
                yield path

    def _path(self, node: ast.expr) -> str:
        """Return the dotted name of what an attribute reaches, if it begins with a module."""
        if isinstance(node, ast.Name):
            place = self._known.get(node.id, "")
            is_module = place in _MODULES or place.startswith("triton.language.extra")
            return place if is_module else ""
        if isinstance(node, ast.Attribute):
            before = self._path(node.value)
            return f"{before}.{node.attr}" if before else ""
        return ""


def _renamed_decorators(alias: ast.alias, module: str) -> Iterator[str]:
    """Yield a finding if an import gives the name of a decorator to something else."""
    name = alias.asname or alias.name
    if f"{module}{alias.name}" != _DECORATORS.get(name, f"{module}{alias.name}"):
        yield f"another meaning of {name}"


def _may_be_imported(module: str, name: str) -> bool:
    if module in _LIBDEVICE:
        return name == "libdevice"
    if module == "triton":
        return name in _OF_TRITON
    inner = module.startswith("triton.language") and name in _INNER_MODULES
    hidden = name in ("*", _ASSEMBLER) or name.startswith("_")
    return module in _MODULES and not inner and not hidden


def _may_be_reached(path: str) -> bool:
    """Return whether a dotted name leads to something other than an inner module."""
    parts = path.split(".")
    if parts[0] == "math":
        return len(parts) == 2
    if parts[:2] == ["triton", "language"]:
        rest = parts[2:]
        if rest[:2] == ["extra", "libdevice"] or rest[:3] == ["extra", "cuda", "libdevice"]:
            return len(rest) == rest.index("libdevice") + 2
        rest = rest[1:] if rest[:1] == ["math"] else rest
        # Methods of values and fields of types, such as tl.int32.itemsize, are as far as it goes.
        return 1 <= len(rest) <= 2 and rest[0] not in _INNER_MODULES
    return len(parts) == 2 and parts[1] in _OF_TRITON - {"language"}


def _is_constant(value: ast.expr) -> bool:
    """Return whether an expression consists of literals, or of ``tl.constexpr`` of one."""
    if isinstance(value, ast.Call) and not value.keywords and len(value.args) == 1:
        return ast.unparse(value.func) in _CONSTEXPR and _is_constant(value.args[0])
    # Neither enormous numbers nor enormous lists.
    nodes = list(ast.walk(value))
    grows = any(isinstance(node, ast.Pow | ast.LShift) for node in nodes)
    lists = any(isinstance(node, ast.List | ast.Tuple) for node in nodes)
    texts = any(isinstance(node, ast.Constant) and isinstance(node.value, str) for node in nodes)
    grows |= (lists or texts) and any(isinstance(node, ast.BinOp) for node in nodes)
    return not grows and all(isinstance(node, _LITERALS) for node in nodes)


def _is_name(annotation: ast.expr) -> bool:
    return all(
        isinstance(node, ast.Name | ast.Attribute | ast.Constant | ast.expr_context)
        for node in ast.walk(annotation)
    )


def _short_text(node: ast.AST) -> str:
    text = " ".join(ast.unparse(node).split())
    return text if len(text) <= 60 else f"{text[:57]}..."
