"""Takes one kernel out of a CUDA file, with the functions, types and constants that it needs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Literal

from pytest_gpuenergy.search.source.edits import Edit, edited
from pytest_gpuenergy.search.source.preprocessor import Preprocessor, Read
from pytest_gpuenergy.search.source.simplification import simplified
from pytest_gpuenergy.search.source.tree import (
    NAMES,
    called,
    declared_name,
    field,
    name_of,
    nodes,
    outline,
    parse,
    text_of,
    walk,
)
from pytest_gpuenergy.support import FormError, shown

if TYPE_CHECKING:
    from tree_sitter import Node

Kind = Literal["kernel", "function", "host", "prototype", "type", "constant", "variable", "using"]

_TYPES = ("struct_specifier", "class_specifier", "union_specifier", "enum_specifier")
_LISTS = ("declaration_list", "preproc_if", "preproc_ifdef", "preproc_else", "preproc_elif")
_FILLED = re.compile(r"\b__(constant|device|managed|shared)__\b")
_LIBRARIES = ("std", "cub", "thrust")
_OF_STD = frozenset(
    [
        *("abs", "ceil", "cos", "exp", "fabs", "floor", "fma", "fmax", "fmin", "isinf", "isnan"),
        *("log", "max", "min", "pow", "round", "sin", "sqrt", "tanh"),
    ]
)
"""Functions that CUDA also has without ``std::``."""
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
_KINDS = {
    "type_parameter_declaration",
    "optional_type_parameter_declaration",
    "parameter_declaration",
    "optional_parameter_declaration",
}


@dataclass(frozen=True)
class FileItem:
    """A declaration or definition at the top of a file or in a namespace.

    Attributes:
        node: the whole declaration, including ``template <...>``.
        inner: the declaration without ``template <...>``.
        kind: what it declares: ``host`` is a function of the host, ``variable`` a variable that a
            program can change.
        names: the names that it declares.
        namespaces: the namespaces around it, outermost first; "" for one without a name.
        conditional: whether only the compiler knows if the declaration is there.
    """

    node: Node
    inner: Node
    kind: Kind
    names: frozenset[str]
    namespaces: tuple[str, ...] = ()
    conditional: bool = False


def items_of(
    root: Node, namespaces: tuple[str, ...] = (), *, conditional: bool = False
) -> Iterator[FileItem]:
    """Yield the items of a tree in the order of the text."""
    for node in root.named_children:
        if node.type == "namespace_definition":
            name, body = text_of(field(node, "name")), field(node, "body")
            if body is not None:
                yield from items_of(body, (*namespaces, name), conditional=conditional)
        elif node.type == "linkage_specification":
            body = field(node, "body")
            inner = node if body is None or body.type != "declaration_list" else body
            yield from items_of(inner, namespaces, conditional=conditional)
        elif node.type in _LISTS:
            yield from items_of(node, namespaces, conditional=True)
        elif (found := _item(node, node, namespaces, conditional)) is not None:
            yield found


def _item(
    node: Node, inner: Node, namespaces: tuple[str, ...], conditional: bool
) -> FileItem | None:
    if inner.type == "template_declaration" and inner.named_children:
        return _item(node, inner.named_children[-1], namespaces, conditional)
    found = _described(inner)
    if found is None:
        return None
    kind, names = found
    return FileItem(node, inner, kind, frozenset(names), namespaces, conditional)


def _described(node: Node) -> tuple[Kind, list[str]] | None:
    match node.type:
        case "function_definition":
            return _function(node)
        case "type_definition":
            declared = node.children_by_field_name("declarator")
            return "type", [*map(declared_name, declared), *_types_in(node)]
        case "alias_declaration" | "namespace_alias_definition":
            return "type", [text_of(field(node, "name"))]
        case "using_declaration":
            return "using", [text_of(n) for n in nodes(node, *NAMES)][-1:]
        case "declaration":
            return _declaration(node)
    return ("type", _types_in(node)) if node.type in _TYPES else None


def _function(node: Node) -> tuple[Kind, list[str]] | None:
    body, name = field(node, "body"), name_of(node)
    if body is None or not name:
        return None
    head = text_of(node)[: body.start_byte - node.start_byte]
    if "__global__" in head:
        return "kernel", [name]
    own = "__device__" in head or "constexpr" in head
    return "function" if own else "host", [name]


def _declaration(node: Node) -> tuple[Kind, list[str]] | None:
    declared = node.children_by_field_name("declarator")
    names = [*map(declared_name, declared), *_types_in(node)]
    if any(n.type == "function_declarator" for declarator in declared for n in outline(declarator)):
        head = text_of(node)
        if "__global__" in head:
            return None
        return ("prototype", names) if "__device__" in head else None
    qualifiers = {text_of(n) for n in node.children if n.type == "type_qualifier"}
    if qualifiers & {"const", "constexpr"} and not _is_filled(node):
        return "constant", names
    if not declared:
        return "type", names
    return "variable", names


def _is_filled(node: Node) -> bool:
    """Return whether a variable on the device has no value in the text."""
    has_value = any(n.type == "init_declarator" for n in node.named_children)
    return bool(_FILLED.search(text_of(node))) and not has_value


def _types_in(node: Node) -> list[str]:
    """Return the types that a declaration defines, and the values of enumerations."""
    found = [
        text_of(field(inner, "name"))
        for inner in walk(node)
        if inner.type == "enumerator" or (inner.type in _TYPES and field(inner, "body") is not None)
    ]
    return [name for name in found if name]


@dataclass(frozen=True)
class ExtractedKernel:
    """A kernel that was taken out of a program.

    Attributes:
        source: the text of the kernel with all that it needs.
        entry: the name of the kernel in that text, in which templates have become functions.
        files: the texts of the files that were read, by path, in the order of reading.
    """

    source: str
    entry: str
    files: Mapping[PurePosixPath, str]


def extract(
    path: PurePosixPath, entry: str, read: Read, constants: Mapping[str, object]
) -> ExtractedKernel:
    """Take a kernel out of a file.

    Host code, other kernels and what nothing uses are left out. Macros are replaced by what they
    stand for, template parameters by arguments, and conditions that do not depend on the compiler
    are decided.

    Args:
        path: the path of the file.
        entry: the kernel, such as ``scale`` or ``scale<float, 4>``.
        read: a function that returns the text of the file and of those that it includes.
        constants: the macros that are defined for the text; its own definitions of them are left
            out, and their names stay.

    Raises:
        FormError: the file has no such kernel, or the kernel needs what cannot be taken along;
            the message is a clause.
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
    return ExtractedKernel(f"{_header(run, path, entry, body)}{body}\n", plain, run.files)


def _items(text: str, given: set[str]) -> list[FileItem]:
    """Return the items of a text, without the names that are given from outside."""
    root = parse(text.encode("utf-8", "replace"))
    return [item for item in items_of(root) if not item.names & given]


def _instantiated(text: str, kernel: FileItem, entry: str) -> str:
    """Return the text with a function in place of a template."""
    source, node = text.encode("utf-8", "replace"), kernel.node
    edits = _renamed(kernel.inner, replacements(kernel, entry))
    function = edited(source, edits, kernel.inner.start_byte, kernel.inner.end_byte)
    return edited(source, [Edit.of(node, function)])


def _kernel(items: list[FileItem], entry: str, path: PurePosixPath) -> FileItem:
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


def _is_named(item: FileItem, name: str) -> bool:
    *scopes, last = name.split("::")
    around = [namespace for namespace in item.namespaces if namespace]
    return last in item.names and (not scopes or around[-len(scopes) :] == scopes)


class _Needed:
    """The search for all that a kernel needs of a file."""

    def __init__(
        self, items: list[FileItem], kernel: FileItem, run: Preprocessor, entry: str
    ) -> None:
        self._items = items
        self._kernel = kernel
        self._run = run
        self._entry = entry

    def all(self) -> list[FileItem]:
        """Return the kernel and all that it needs, in the order of the text."""
        found = {self._kernel.node.id: self._kernel}
        waiting = [self._kernel]
        waiting += [
            other for other in self._items if other.kind == "using" and "std" not in other.names
        ]
        found |= {using.node.id: using for using in waiting}
        while waiting:
            for item in self._used_by(waiting.pop()):
                if item.node.id not in found:
                    found[item.node.id] = item
                    waiting.append(item)
        return [item for item in self._items if item.node.id in found]

    def _used_by(self, item: FileItem) -> Iterator[FileItem]:
        names = {text_of(n) for n in nodes(item.node, *NAMES)}
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

    def _check(self, item: FileItem, names: set[str]) -> None:
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
        own = {name for other in self._items if other.kind == "function" for name in other.names}
        hosts = {name for other in self._items if other.kind == "host" for name in other.names}
        for call in nodes(item.node, "call_expression"):
            name = called(call)
            if name in hosts - own - _declared_in(item):
                raise self._refusal(f"{name}, which is a function of the host")

    def _refusal(self, what: str) -> FormError:
        missing = ", ".join(self._run.missing)
        hint = f" (includes that are not there: {missing})" if missing else ""
        return FormError(f"its entry {self._entry} needs {what}{hint}")


def _declared_in(item: FileItem) -> set[str]:
    """Return the names of parameters and local variables."""
    kinds = ("init_declarator", "parameter_declaration", "declaration")
    found = set()
    for node in nodes(item.node, *kinds):
        for declarator in node.children_by_field_name("declarator"):
            found |= {text_of(n) for n in nodes(declarator, "identifier")}
    return found


def _aliases(items: Iterable[FileItem]) -> dict[str, str]:
    """Return other names for CUDA's own types, which are written in their place."""
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
    """Return where the text is from, and the headers that it may need."""
    used = [
        name
        for name in run.headers
        if all(sign in body for header, sign in _SIGNS.items() if header in name)
    ]
    lines = [f"// {entry}, taken out of {path}", *(f"#include {name}" for name in used)]
    return "\n".join(lines) + "\n"


def _text(source: bytes, item: FileItem, aliases: Mapping[str, str]) -> str:
    """Return the text of an item in its namespaces."""
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
    for leaf in nodes(node, *NAMES):
        if (name := text_of(leaf)) in replaced:
            yield Edit.of(leaf, replaced[name])


def _without_std(node: Node) -> Iterator[Edit]:
    for inner in nodes(node, "qualified_identifier"):
        name = field(inner, "name")
        if text_of(field(inner, "scope")) == "std" and name is not None:
            yield Edit(inner.start_byte, name.start_byte, "")


def arguments_in(entry: str) -> list[str]:
    """Return the template arguments of ``name<first, second>``."""
    inside = entry.partition("<")[2].strip().removesuffix(">")
    parts, depth = [""], 0
    for sign in inside:
        depth += (sign in "<(") - (sign in ">)")
        if sign == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += sign
    return [part.strip() for part in parts] if inside.strip() else []


def replacements(item: FileItem, entry: str) -> dict[str, str]:
    """Return what each template parameter of a kernel stands for; empty if it is no template.

    Raises:
        FormError: the arguments do not fit.
    """
    given = arguments_in(entry)
    listed = field(item.node, "parameters") if item.node.type == "template_declaration" else None
    parameters = [] if listed is None else _parameters(listed, entry)
    if len(given) > len(parameters):
        raise FormError(
            f"its entry {entry} has {len(given)} template arguments, and the kernel "
            f"{len(parameters)} template parameters"
        )
    found: dict[str, str] = {}
    for number, (name, default) in enumerate(parameters):
        value = given[number] if number < len(given) else found.get(default, default)
        if not value:
            words = ", ".join(name for name, _ in parameters)
            raise FormError(
                f"its entry {entry} is a template: give an argument for each of {words}, as in "
                f"{entry.partition('<')[0]}<float>"
            )
        found[name] = f"({value})" if value.startswith("-") else value
    return found


def _parameters(listed: Node, entry: str) -> list[tuple[str, str]]:
    """Return the names and defaults of template parameters."""
    found = []
    for node in listed.named_children:
        if node.type == "comment":
            continue
        names = [text_of(n) for n in nodes(node, "identifier", "type_identifier")]
        if node.type not in _KINDS or not names:
            raise FormError(
                f"its entry {entry} has a template parameter {text_of(node)}, which cannot be "
                "given an argument"
            )
        default = text_of(field(node, "default_value") or field(node, "default_type"))
        name = field(node, "declarator") or field(node, "name")
        found.append((text_of(name) if name is not None else names[0], default))
    return found
