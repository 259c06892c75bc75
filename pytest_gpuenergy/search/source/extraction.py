"""Takes one kernel out of a CUDA file, with the functions, types and constants that it needs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from pytest_gpuenergy.search.extraction.items import Item, items_of
from pytest_gpuenergy.search.extraction.templates import replacements
from pytest_gpuenergy.search.source.edits import Edit, edited
from pytest_gpuenergy.search.source.preprocessor import Preprocessor, Read
from pytest_gpuenergy.search.source.simplification import simplified
from pytest_gpuenergy.search.source.tree import called, field, nodes, parse, text_of, walk
from pytest_gpuenergy.support import FormError, shown

if TYPE_CHECKING:
    from tree_sitter import Node

_NAMES = ("identifier", "type_identifier", "namespace_identifier")
_LIBRARIES = ("std", "cub", "thrust")
_OF_STD = frozenset(
    [
        *("abs", "ceil", "cos", "exp", "fabs", "floor", "fma", "fmax", "fmin", "isinf", "isnan"),
        *("log", "max", "min", "pow", "round", "sin", "sqrt", "tanh"),
    ]
)
"""What CUDA has without ``std::``, too."""
_SIGNS = {
    "cooperative_groups": "cooperative_groups",
    "cuda_fp16": "half",
    "cuda_bf16": "bfloat16",
    "cuda_fp8": "fp8",
    "cuda_pipeline": "__pipeline",
    "mma.h": "wmma",
}
_PLAIN = re.compile(
    r"(?:(?:unsigned|signed|long|short|int|char|float|double|half|bool)\s*)+|__half|(?:__)?nv_bfloat16"
)


@dataclass(frozen=True)
class Extraction:
    """A kernel on its own.

    Attributes:
        source: its text.
        entry: its name in there; templates have become functions.
        files: texts of the files that were read for it, by path, the first one first.
    """

    source: str
    entry: str
    files: Mapping[PurePosixPath, str]


def extract(
    path: PurePosixPath, entry: str, read: Read, constants: Mapping[str, object]
) -> Extraction:
    """Take a kernel out of a file.

    Host code, other kernels and what nothing uses are left out. Macros are replaced by what they
    stand for, template parameters by arguments, and conditions that do not depend on the compiler
    are decided.

    Args:
        path: of the file.
        entry: the kernel, such as ``scale`` or ``scale<float, 4>``.
        read: gives the file and those that it includes.
        constants: macros that are defined for the text; its own definitions of them are left out,
            and their names stay.

    Raises:
        FormError: it has no such kernel, or the kernel needs what cannot be taken along; the
            message is a clause.
        UnavailableError: tree-sitter is not installed.
    """
    run = Preprocessor(read, constants)
    text = run.run(path)
    if text is None:
        raise FormError(f"there is no file {shown(str(path))}")
    given = set(constants)
    kernel = _kernel(_items(text, given), entry, path)
    name = next(iter(kernel.names))
    text = simplified(_instantiated(text, kernel, entry), name)
    items = _items(text, given)
    plain = "::".join([*filter(None, kernel.namespaces), name])
    kernel = _kernel(items, plain, path)
    needed = _Needed(items, kernel, run, entry).all()
    aliases = _aliases(needed)
    source = text.encode("utf-8", "replace")
    parts = [_text(source, item, aliases) for item in needed if not item.names <= aliases.keys()]
    body = "\n".join(parts)
    return Extraction(f"{_header(run, path, entry, body)}{body}\n", plain, run.files)


def _items(text: str, given: set[str]) -> list[Item]:
    """What a text declares, without what is defined outside of it."""
    root = parse(text.encode("utf-8", "replace"))
    return [item for item in items_of(root) if not item.names & given]


def _instantiated(text: str, kernel: Item, entry: str) -> str:
    """The text with a function in place of a template."""
    source, node = text.encode("utf-8", "replace"), kernel.node
    edits = _renamed(kernel.inner, replacements(kernel, entry))
    function = edited(source, edits, kernel.inner.start_byte, kernel.inner.end_byte)
    return edited(source, [Edit(node.start_byte, node.end_byte, function)])


def _kernel(items: list[Item], entry: str, path: PurePosixPath) -> Item:
    name = entry.partition("<")[0].strip()
    kernels = [item for item in items if item.kind == "kernel"]
    found = [item for item in kernels if _is_named(item, name)]
    if not found:
        known = sorted({next(iter(item.names)) for item in kernels})
        raise FormError(
            f"{path} has no kernel {shown(name)} (its kernels: {', '.join(known) or 'none'})"
        )
    if len(found) > 1:
        raise FormError(f"{path} has {len(found)} kernels that are called {shown(name)}")
    if found[0].inner.has_error:
        raise FormError(f"the kernel {shown(name)} of {path} is not understood by the parser")
    return found[0]


def _is_named(item: Item, name: str) -> bool:
    *scopes, last = name.split("::")
    around = [one for one in item.namespaces if one]
    return last in item.names and (not scopes or around[-len(scopes) :] == scopes)


class _Needed:
    """What a kernel needs of a file."""

    def __init__(self, items: list[Item], kernel: Item, run: Preprocessor, entry: str) -> None:
        self._items = items
        self._kernel = kernel
        self._run = run
        self._entry = entry

    def all(self) -> list[Item]:
        """The kernel and all that it needs, in the order of the text."""
        found = {self._kernel.node.id: self._kernel}
        waiting = [self._kernel]
        waiting += [one for one in self._items if one.kind == "using" and "std" not in one.names]
        found |= {one.node.id: one for one in waiting}
        while waiting:
            for item in self._used_by(waiting.pop()):
                if item.node.id not in found:
                    found[item.node.id] = item
                    waiting.append(item)
        return [item for item in self._items if item.node.id in found]

    def _used_by(self, item: Item) -> Iterator[Item]:
        names = {text_of(n) for n in nodes(item.node, *_NAMES)}
        self._check(item, names)
        for other in self._items:
            shared = names & other.names
            if not shared or other.kind in ("kernel", "using"):
                continue
            if other.kind in ("function", "prototype", "type", "constant"):
                if other.conditional:
                    raise self._refusal(
                        f"{min(shared)}, which is there under a condition that only the compiler "
                        "can decide"
                    )
                yield other
            elif other.kind == "variable" and not shared <= _declared_in(item):
                raise self._refusal(
                    f"the variable {min(shared)} of the file, which the program around it fills: "
                    "make it a parameter"
                )

    def _check(self, item: Item, names: set[str]) -> None:
        if item.conditional:
            raise self._refusal("a condition around it that only the compiler can decide")
        if unclear := names & self._run.opaque - _declared_in(item):
            raise self._refusal(
                f"the macro {min(unclear)}, whose definition only the compiler can decide"
            )
        for node in nodes(item.node, "qualified_identifier"):
            scope, name = text_of(field(node, "scope")), text_of(field(node, "name"))
            if scope in _LIBRARIES and not (scope == "std" and name in _OF_STD):
                raise self._refusal(f"{text_of(node)}, of a library that kernels alone do not have")
        own = {name for one in self._items if one.kind == "function" for name in one.names}
        hosts = {name for one in self._items if one.kind == "host" for name in one.names}
        for call in nodes(item.node, "call_expression"):
            name = called(call)
            if name in hosts - own - _declared_in(item):
                raise self._refusal(f"{name}, which is a function of the host")

    def _refusal(self, what: str) -> FormError:
        missing = ", ".join(self._run.missing)
        hint = f" (includes that are not there: {missing})" if missing else ""
        return FormError(f"its entry {self._entry} needs {what}{hint}")


def _declared_in(item: Item) -> set[str]:
    """Names of parameters and local variables."""
    kinds = ("init_declarator", "parameter_declaration", "declaration")
    found = set()
    for node in nodes(item.node, *kinds):
        for declarator in node.children_by_field_name("declarator"):
            found |= {text_of(n) for n in nodes(declarator, "identifier")}
    return found


def _aliases(items: Iterable[Item]) -> dict[str, str]:
    """Other names for CUDA's own types, which then stand in the text themselves."""
    found = {}
    for item in items:
        kind = text_of(field(item.inner, "type"))
        plain = item.inner.type in ("type_definition", "alias_declaration")
        if plain and item.node == item.inner and _PLAIN.fullmatch(kind) and len(item.names) == 1:
            declarator = field(item.inner, "declarator") or field(item.inner, "name")
            if declarator is not None and declarator.type == "type_identifier":
                found[text_of(declarator)] = kind
    return found


def _header(run: Preprocessor, path: PurePosixPath, entry: str, body: str) -> str:
    """Where the text is from, and the headers that it may need."""
    used = [name for name in run.headers if not (sign := _sign_of(name)) or sign in body]
    lines = [f"// {entry}, taken out of {path}", *(f"#include {name}" for name in used)]
    return "\n".join(lines) + "\n"


def _sign_of(header: str) -> str:
    """What a text contains that needs a header; empty if that is not known."""
    return next((sign for name, sign in _SIGNS.items() if name in header), "")


def _text(source: bytes, item: Item, aliases: Mapping[str, str]) -> str:
    """An item in its namespaces."""
    node = item.node
    listed = field(node, "parameters") if node.type == "template_declaration" else None
    hidden = {text_of(n) for n in walk(listed)} if listed is not None else set()
    replaced = {name: kind for name, kind in aliases.items() if name not in hidden}
    edits = [*_renamed(node, replaced), *_without_std(node)]
    text = edited(source, edits, node.start_byte, node.end_byte)
    if node.type.endswith("_specifier") and not text.endswith(";"):
        text += ";"
    if (around := node.parent) is not None and around.type == "linkage_specification":
        text = f'extern "C" {text}'
    for namespace in reversed(item.namespaces):
        text = f"namespace {namespace} {{\n{text}\n}}" if namespace else text
    return text


def _renamed(node: Node, replaced: Mapping[str, str]) -> Iterator[Edit]:
    for leaf in nodes(node, *_NAMES):
        if (name := text_of(leaf)) in replaced:
            yield Edit(leaf.start_byte, leaf.end_byte, replaced[name])


def _without_std(node: Node) -> Iterator[Edit]:
    for one in nodes(node, "qualified_identifier"):
        name = field(one, "name")
        if text_of(field(one, "scope")) == "std" and name is not None:
            yield Edit(one.start_byte, name.start_byte, "")
