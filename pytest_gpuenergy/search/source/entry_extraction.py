"""Take one kernel out of a CUDA file, with the functions, types and constants that it needs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Literal

from pytest_gpuenergy.search.source.edits import Edit, apply_edits, edited_node_text
from pytest_gpuenergy.search.source.preprocessor import Preprocessor, Read
from pytest_gpuenergy.search.source.simplification import simplify_entry
from pytest_gpuenergy.search.source.tree import (
    NAMES,
    called,
    declared_name,
    field,
    node_text,
    nodes,
    outline,
    parse,
    unscoped_name,
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


def file_items(
    root: Node, namespaces: tuple[str, ...] = (), *, conditional: bool = False
) -> Iterator[FileItem]:
    """Yield the items of a tree in the order of the text."""
    for node in root.named_children:
        if node.type == "namespace_definition":
            name, body = node_text(field(node, "name")), field(node, "body")
            if body is not None:
                yield from file_items(body, (*namespaces, name), conditional=conditional)
        elif node.type == "linkage_specification":
            body = field(node, "body")
            inner = node if body is None or body.type != "declaration_list" else body
            yield from file_items(inner, namespaces, conditional=conditional)
        elif node.type in _LISTS:
            yield from file_items(node, namespaces, conditional=True)
        elif (found := _item(node, node, namespaces, conditional)) is not None:
            yield found


def _item(
    node: Node, inner: Node, namespaces: tuple[str, ...], conditional: bool
) -> FileItem | None:
    if inner.type == "template_declaration" and inner.named_children:
        return _item(node, inner.named_children[-1], namespaces, conditional)
    declared = inner.children_by_field_name("declarator")
    names = list(map(declared_name, declared))
    for part in walk(inner):  # types that it defines, and values of enumerations
        is_type = part.type in _TYPES and field(part, "body") is not None
        if (is_type or part.type == "enumerator") and (name := node_text(field(part, "name"))):
            names.append(name)
    kind: Kind | None = None
    match inner.type:
        case "function_definition" if (body := field(inner, "body")) is not None:
            head, names = (
                node_text(inner)[: body.start_byte - inner.start_byte],
                [unscoped_name(inner)],
            )
            is_own = "__device__" in head or "constexpr" in head
            kind = "kernel" if "__global__" in head else "function" if is_own else "host"
        case "alias_declaration" | "namespace_alias_definition":
            kind, names = "type", [node_text(field(inner, "name"))]
        case "using_declaration":
            kind, names = "using", [node_text(n) for n in nodes(inner, *NAMES)][-1:]
        case "declaration":
            kind = _kind_of_declaration(inner, declared)
        case "type_definition" | "struct_specifier" | "class_specifier":
            kind = "type"
        case "union_specifier" | "enum_specifier":
            kind = "type"
    if kind is None or names == [""]:
        return None
    return FileItem(node, inner, kind, frozenset(names), namespaces, conditional)


def _kind_of_declaration(node: Node, declared: list[Node]) -> Kind | None:
    text = node_text(node)
    if any(n.type == "function_declarator" for declarator in declared for n in outline(declarator)):
        return "prototype" if "__device__" in text and "__global__" not in text else None
    qualifiers = {node_text(n) for n in node.children if n.type == "type_qualifier"}
    has_value = any(n.type == "init_declarator" for n in node.named_children)
    is_filled = bool(_FILLED.search(text)) and not has_value  # by the program around it
    if qualifiers & {"const", "constexpr"} and not is_filled:
        return "constant"
    return "variable" if declared else "type"


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
    kernel = _kernel(_items(text, constants), entry, path)
    name = next(iter(kernel.names))
    # A function takes the place of a template.
    source = text.encode("utf-8", "replace")
    function = edited_node_text(
        source, kernel.inner, _rename_edits(kernel.inner, replacements(kernel, entry))
    )
    text = simplify_entry(apply_edits(source, [Edit.of(kernel.node, function)]), name)
    items = _items(text, constants)
    plain = "::".join([*filter(None, kernel.namespaces), name])
    needed = _Needed(items, run, entry).all(_kernel(items, plain, path))
    aliases = _aliases(needed)
    source = text.encode("utf-8", "replace")
    parts = [_text(source, item, aliases) for item in needed if not item.names <= aliases.keys()]
    body = "\n".join(parts)
    headers = [
        f"#include {name}\n"
        for name in run.headers
        if all(sign in body for header, sign in _SIGNS.items() if header in name)
    ]
    head = f"// {entry}, taken out of {path}\n{''.join(headers)}"
    return ExtractedKernel(f"{head}{body}\n", plain, run.files)


def _items(text: str, constants: Mapping[str, object]) -> list[FileItem]:
    """Return the items of a text, without the names that are given from outside."""
    root = parse(text.encode("utf-8", "replace"))
    return [item for item in file_items(root) if not item.names & constants.keys()]


def _kernel(items: list[FileItem], entry: str, path: PurePosixPath) -> FileItem:
    name = entry.partition("<")[0].strip()
    *scopes, last = name.split("::")
    kernels = [item for item in items if item.kind == "kernel"]
    found = [
        item
        for item in kernels
        if last in item.names
        and (not scopes or list(filter(None, item.namespaces))[-len(scopes) :] == scopes)
    ]
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


class _Needed:
    """The search for all that a kernel needs of a file."""

    def __init__(self, items: list[FileItem], run: Preprocessor, entry: str) -> None:
        self._items = items
        self._run = run
        self._entry = entry
        self._hosts = {name for item in items if item.kind == "host" for name in item.names}
        self._hosts -= {name for item in items if item.kind == "function" for name in item.names}

    def all(self, kernel: FileItem) -> list[FileItem]:
        """Return the kernel and all that it needs, in the order of the text."""
        usings = [i for i in self._items if i.kind == "using" and "std" not in i.names]
        waiting = [kernel, *usings]
        found = {item.node.id for item in waiting}
        while waiting:
            for item in self._used_items(waiting.pop()):
                if item.node.id not in found:
                    found.add(item.node.id)
                    waiting.append(item)
        return [item for item in self._items if item.node.id in found]

    def _used_items(self, item: FileItem) -> Iterator[FileItem]:
        names, own = {node_text(n) for n in nodes(item.node, *NAMES)}, _local_names(item)
        if item.conditional:
            raise self._refusal("a condition around it that only the compiler can decide")
        if unclear := names & self._run.opaque - own:
            raise self._refusal(
                f"the macro {min(unclear)}, whose definition only the compiler can decide"
            )
        for node in nodes(item.node, "qualified_identifier"):
            scope, name = node_text(field(node, "scope")), node_text(field(node, "name"))
            if scope in _LIBRARIES and not (scope == "std" and name in _OF_STD):
                raise self._refusal(
                    f"{node_text(node)}, of a library that kernels alone do not have"
                )
        for call in nodes(item.node, "call_expression"):
            if (name := called(call)) in self._hosts - own:
                raise self._refusal(f"{name}, which is a function of the host")
        for other in self._items:
            shared = names & other.names
            if shared and other.kind in ("function", "prototype", "type", "constant"):
                if other.conditional:
                    raise self._refusal(
                        f"{min(shared)}, which is there under a condition that only the compiler "
                        "can decide"
                    )
                yield other
            elif other.kind == "variable" and not shared <= own:
                raise self._refusal(
                    f"the variable {min(shared)} of the file, which the program around it fills: "
                    "make it a parameter"
                )

    def _refusal(self, what: str) -> FormError:
        missing = ", ".join(self._run.missing)
        hint = f" (includes that are not there: {missing})" if missing else ""
        return FormError(f"its entry {self._entry} needs {what}{hint}")


def _local_names(item: FileItem) -> set[str]:
    """Return the names of parameters and local variables."""
    kinds = ("init_declarator", "parameter_declaration", "declaration")
    found = set()
    for node in nodes(item.node, *kinds):
        for declarator in node.children_by_field_name("declarator"):
            found |= {node_text(n) for n in nodes(declarator, "identifier")}
    return found


def _aliases(items: Iterable[FileItem]) -> dict[str, str]:
    """Return other names for CUDA's own types, which are written in their place."""
    found = {}
    for item in items:
        kind = node_text(field(item.inner, "type"))
        plain = item.inner.type in ("type_definition", "alias_declaration")
        if plain and item.node == item.inner and _PLAIN.fullmatch(kind) and len(item.names) == 1:
            declarator = field(item.inner, "declarator") or field(item.inner, "name")
            if declarator is not None and declarator.type == "type_identifier":
                found[node_text(declarator)] = kind
    return found


def _text(source: bytes, item: FileItem, aliases: Mapping[str, str]) -> str:
    """Return the text of an item in its namespaces."""
    node = item.node
    listed = field(node, "parameters") if node.type == "template_declaration" else None
    hidden = {node_text(n) for n in walk(listed)} if listed is not None else set()
    replaced = {name: kind for name, kind in aliases.items() if name not in hidden}
    std = [  # prefixes, which are left out
        Edit(inner.start_byte, name.start_byte, "")
        for inner in nodes(node, "qualified_identifier")
        if node_text(field(inner, "scope")) == "std" and (name := field(inner, "name")) is not None
    ]
    text = edited_node_text(source, node, [*_rename_edits(node, replaced), *std])
    if node.type.endswith("_specifier") and not text.endswith(";"):
        text += ";"
    if (around := node.parent) is not None and around.type == "linkage_specification":
        text = f'extern "C" {text}'
    for namespace in reversed(item.namespaces):
        text = f"namespace {namespace} {{\n{text}\n}}" if namespace else text
    return text


def _rename_edits(node: Node, replaced: Mapping[str, str]) -> Iterator[Edit]:
    for leaf in nodes(node, *NAMES):
        if (name := node_text(leaf)) in replaced:
            yield Edit.of(leaf, replaced[name])


def template_arguments(entry: str) -> list[str]:
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
    """Return what each template parameter of a kernel stands for; empty if it is no template."""
    arguments = template_arguments(entry)
    listed = field(item.node, "parameters") if item.node.type == "template_declaration" else None
    parameters = [] if listed is None else _parameters(listed, entry)
    if len(arguments) > len(parameters):
        raise FormError(
            f"its entry {entry} has {len(arguments)} template arguments, and the kernel "
            f"{len(parameters)} template parameters"
        )
    found: dict[str, str] = {}
    for number, (name, default) in enumerate(parameters):
        value = arguments[number] if number < len(arguments) else found.get(default, default)
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
        names = [node_text(n) for n in nodes(node, "identifier", "type_identifier")]
        if node.type not in _KINDS or not names:
            raise FormError(
                f"its entry {entry} has a template parameter {node_text(node)}, which cannot be "
                "given an argument"
            )
        default = node_text(field(node, "default_value") or field(node, "default_type"))
        name = field(node, "declarator") or field(node, "name")
        found.append((node_text(name) if name is not None else names[0], default))
    return found
