"""The entry of a CUDA text: its variables and loops, and whether the text can be understood."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_gpuenergy.kernels import function_name
from pytest_gpuenergy.search.source.polynomials import Atom, Polynomial
from pytest_gpuenergy.search.source.tree import (
    ancestors,
    call_arguments,
    called,
    called_last,
    expression,
    expression_operator,
    field,
    function_head,
    inside,
    is_too_deep,
    node_text,
    nodes,
    only,
    outline,
    parse,
    sides,
    unscoped_name,
    walk,
)

if TYPE_CHECKING:
    from tree_sitter import Node

FLOATS = frozenset(["float", "double", "half", "__half", "nv_bfloat16", "__nv_bfloat16"])
"""Types of floating-point numbers."""
NARROW = frozenset(
    [
        *("char", "signed char", "unsigned char", "short", "unsigned short", "bool"),
        *("float", "double", "half", "__half"),
    ]
)
"""Types that may not hold an index, or may lose a part of it."""
BYTES = {
    **dict.fromkeys(["char", "signed char", "unsigned char"], 1),
    **dict.fromkeys(["half", "__half", "nv_bfloat16", "__nv_bfloat16"], 2),
    **dict.fromkeys(["short", "unsigned short"], 2),
    **dict.fromkeys(["float", "int", "unsigned", "unsigned int"], 4),
    "double": 8,
}
"""The bytes of an element, by its type; the sizes of other types are not known."""
VECTOR_BYTES = {
    **dict.fromkeys(["float2", "int2", "uint2"], 8),
    **dict.fromkeys(["float4", "int4", "uint4", "double2"], 16),
    "half2": 4,
}
"""The bytes of CUDA's vectors."""
_SCOPES = frozenset(["compound_statement", "for_statement", "function_definition", "if_statement"])
_MAX_TEXTS = 32
"""The number of texts that stay parsed, since every move and the priors look at the same one."""
_STANDARD = {
    "int8_t": "signed char",
    "uint8_t": "unsigned char",
    "int16_t": "short",
    "uint16_t": "unsigned short",
    "int32_t": "int",
    "uint32_t": "unsigned int",
}
"""The types behind the names that C's library has for them."""
_UNCLEAR = {
    "ERROR": "something that cannot be parsed",
    "lambda_expression": "a lambda",
    "gnu_asm_expression": "inline assembler",
    "goto_statement": "a goto",
    "try_statement": "an exception",
    "preproc_if": "a condition of the preprocessor",
    "preproc_ifdef": "a condition of the preprocessor",
    "preproc_def": "a macro that it defines",
    "preproc_function_def": "a macro that it defines",
}
"""The constructs that hide what an entry does, in a few words, by the type of their node."""
_CONDITIONS = ("preproc_if", "preproc_ifdef", "preproc_elif", "preproc_elifdef", "preproc_else")
_TRANSPARENT = ("parenthesized_expression", "field_expression")
_RANKS = ("thread_rank", "size", "num_threads", "meta_group_rank", "meta_group_size")


@dataclass(frozen=True)
class Variable:
    """A parameter or a local variable.

    Attributes:
        name: the name of the variable.
        node: the identifier in the declaration.
        type: the type without qualifiers, and not under another name that the file has for it.
        scope: the node in which the variable is visible, from its declaration on.
        parameter: whether it is a parameter of the entry.
        pointer, reference, shared: whether it is declared as such.
        const: whether it is constant; for a pointer, whether the elements are.
        dims: the sizes of an array.
        value: the first value.
        declaration: the statement that declares it; None if that declares others too.
    """

    name: str
    node: Node
    type: str
    scope: Node
    parameter: bool
    pointer: bool
    reference: bool
    shared: bool
    const: bool
    dims: tuple[Node | None, ...]
    value: Node | None
    declaration: Node | None

    @property
    def key(self) -> int:
        """A number that tells variables of the same name apart."""
        return self.node.start_byte

    @property
    def number(self) -> Polynomial:
        """The value of the variable, as an expression that says nothing about it."""
        return Polynomial.atom(Atom(self.name, frozenset([self.key])))


@dataclass(frozen=True)
class CountedLoop:
    """``for (int v = start; v < bound; v += step) body``.

    Attributes:
        node: the whole loop.
        variable: the variable that counts.
        start, bound: the first value, and the one that ends the loop.
        step: the step; None for ``++v``.
        body: the statement that is repeated.
    """

    node: Node
    variable: Variable
    start: Node
    bound: Node
    step: Node | None
    body: Node


class CudaText:
    """A CUDA text with a kernel, its entry, that is understood.

    Attributes:
        source: the text.
        root: the root of the syntax tree.
        function: the entry.
        body: the block of the entry.
    """

    def __init__(self, source: bytes, root: Node, function: Node, body: Node) -> None:
        self.source = source
        self.root = root
        self.function = function
        self.body = body

    @classmethod
    def of(cls, source: str, entry: str) -> CudaText | None:
        """Return the text; None if it has no such kernel, or something hides what that does.

        Raises:
            UnavailableError: tree-sitter is not installed.
        """
        found = _parse_entry(source, entry)
        return None if found is None or found.what_hides else found

    @classmethod
    def obstacle(cls, source: str, entry: str) -> str:
        """Return why a text is not understood, in a few words; empty if it is.

        Raises:
            UnavailableError: tree-sitter is not installed.
        """
        found = _parse_entry(source, entry)
        return f"no kernel called {entry}" if found is None else found.what_hides

    @functools.cached_property
    def what_hides(self) -> str:
        """The thing that hides what the text does, in a few words; empty if nothing does."""
        function = self.function
        if function.has_error or is_too_deep(function):
            return "something that cannot be parsed"
        if _is_conditional(function):
            return "a condition of the preprocessor"
        # Of two functions with one name, the other one may be what is launched.
        if any(unscoped_name(other) == unscoped_name(function) for other in self.functions):
            return "another function of its name"
        if any(node_text(node) == "volatile" for node in nodes(function, "type_qualifier")):
            return "a volatile variable"
        for node in walk(self.body):
            if node.type in _UNCLEAR:
                return _UNCLEAR[node.type]
        leaves = (node_text(node) for node in walk(function) if node.child_count == 0)
        found = next((leaf for leaf in leaves if leaf in self._obscure_macros), None)
        return "" if found is None else f"the macro {found}"

    @functools.cached_property
    def _definitions(self) -> dict[str, str]:
        """The texts of macros without parameters."""
        found = nodes(self.root, "preproc_def")
        return {node_text(field(n, "name")): node_text(field(n, "value")).strip() for n in found}

    @functools.cached_property
    def constants(self) -> dict[str, str]:
        """The texts of macros and constants of the file that may be whole numbers."""
        known = {name: value for name, value in self._definitions.items() if value}
        for node in self.root.named_children:
            qualifiers = {node_text(n) for n in nodes(node, "type_qualifier")}
            if node.type == "declaration" and qualifiers & {"const", "constexpr"}:
                for inner in nodes(node, "init_declarator"):
                    known[node_text(field(inner, "declarator"))] = node_text(field(inner, "value"))
        return known

    @functools.cached_property
    def _types(self) -> dict[str, str]:
        """The types behind other names for them."""
        found = dict(_STANDARD)
        for node in self.root.named_children:
            if node.type in ("type_definition", "alias_declaration"):
                name = field(node, "declarator") or field(node, "name")
                kind = node_text(field(node, "type"))
                if name is not None and name.type == "type_identifier":
                    found[node_text(name)] = found.get(kind, kind)
        return found

    @functools.cached_property
    def _obscure_macros(self) -> frozenset[str]:
        """The macros that may not stand for one number, or not for what they are defined as."""
        found = {node_text(field(n, "name")) for n in nodes(self.root, "preproc_function_def")}
        found |= {name for name in self._definitions if not self._is_number(name, depth=8)}
        defined = list(nodes(self.root, "preproc_def"))
        counts = Counter(node_text(field(macro, "name")) for macro in defined)
        found |= {name for name, count in counts.items() if count > 1}
        found |= {node_text(field(macro, "name")) for macro in defined if _is_conditional(macro)}
        found |= {
            node_text(field(call, "argument")).strip()
            for call in nodes(self.root, "preproc_call")
            if node_text(field(call, "directive")) == "#undef"
        }
        return frozenset(found)

    def _is_number(self, name: str, depth: int) -> bool:
        """Return whether a macro is empty, or consists of numbers, constants and such macros."""
        value = self.constants.get(name, "")
        leaves = [n for n in walk(expression(value)) if n.is_named and n.child_count == 0]
        return not value or all(
            leaf.type == "number_literal"
            or (
                depth > 0
                and leaf.type == "identifier"
                and node_text(leaf) in self.constants
                and self._is_number(node_text(leaf), depth - 1)
            )
            for leaf in leaves
        )

    @functools.cached_property
    def words(self) -> frozenset[str]:
        """The words and signs of the text, so that a new name can differ from them."""
        return frozenset(node_text(node) for node in walk(self.root) if node.child_count == 0)

    @functools.cached_property
    def functions(self) -> tuple[Node, ...]:
        """All functions but the entry."""
        return tuple(n for n in nodes(self.root, "function_definition") if n != self.function)

    @functools.cached_property
    def loops(self) -> tuple[CountedLoop, ...]:
        """The loops that count up by a fixed step."""
        found = (_loop(self, node) for node in nodes(self.body, "for_statement"))
        return tuple(loop for loop in found if loop is not None)

    def calls(self, node: Node, *names: str) -> list[Node]:
        """Return the calls of functions with these names."""
        return [n for n in nodes(node, "call_expression") if called(n) in names]

    @functools.cached_property
    def parameters(self) -> tuple[Variable, ...]:
        """The parameters of the entry."""
        found = field(function_head(self.function), "parameters")
        children = found.named_children if found is not None else []
        declared = (n for n in children if n.type == "parameter_declaration")
        return tuple(v for n in declared for v in self._declared_variables(n, self.function))

    @functools.cached_property
    def variables(self) -> tuple[Variable, ...]:
        """The variables of the entry, parameters first."""
        local = []
        for node in nodes(self.body, "declaration"):
            scope = next(n for n in ancestors(node) if n.type in _SCOPES)
            local += list(self._declared_variables(node, scope))
        return (*self.parameters, *local)

    def _declared_variables(self, node: Node, scope: Node) -> Iterator[Variable]:
        qualifiers = {node_text(n) for n in node.children if n.type == "type_qualifier"}
        declarators = node.children_by_field_name("declarator")
        kind = node_text(field(node, "type"))
        for declarator in declarators:
            value = field(declarator, "value") if declarator.type == "init_declarator" else None
            parts = list(outline(declarator))
            identifier = parts[-1]
            if identifier.type != "identifier":
                continue
            dims = [field(n, "size") for n in parts if n.type == "array_declarator"]
            yield Variable(
                name=node_text(identifier),
                node=identifier,
                type=self._types.get(kind, kind),
                scope=scope,
                parameter=scope == self.function,
                pointer=any(n.type == "pointer_declarator" for n in parts),
                reference=any(n.type == "reference_declarator" for n in parts),
                shared="__shared__" in qualifiers,
                const=bool(qualifiers & {"const", "constexpr"}),
                dims=tuple(reversed(dims)),
                value=value,
                declaration=node if len(declarators) == 1 else None,
            )

    @functools.cached_property
    def uses(self) -> dict[int, tuple[Node, ...]]:
        """The identifiers that mean a variable after its declaration, by its key."""
        found: dict[int, list[Node]] = {variable.key: [] for variable in self.variables}
        for node in nodes(self.body, "identifier"):
            variable = self.variable(node)
            if variable is not None and node != variable.node:
                found[variable.key].append(node)
        return {key: tuple(some) for key, some in found.items()}

    @functools.cached_property
    def _variables_by_name(self) -> dict[str, list[Variable]]:
        found: dict[str, list[Variable]] = {}
        for variable in self.variables:
            found.setdefault(variable.name, []).append(variable)
        return found

    def variable(self, node: Node) -> Variable | None:
        """Return the variable that an identifier means; None if it is not one of the entry."""
        if node.type != "identifier":
            return None
        visible = [
            variable
            for variable in self._variables_by_name.get(node_text(node), [])
            if inside(node, variable.scope) and variable.key <= node.start_byte
        ]
        return max(visible, key=lambda v: (v.scope.start_byte, v.key), default=None)

    def writes(self, variable: Variable) -> tuple[Node, ...]:
        """Return the identifiers by which a scalar or pointer is changed, or may be."""
        return self._writes[variable.key]

    @functools.cached_property
    def _writes(self) -> dict[int, tuple[Node, ...]]:
        return {key: tuple(filter(self._is_written, some)) for key, some in self.uses.items()}

    def _is_written(self, node: Node) -> bool:
        at, outer = node, node.parent
        while outer is not None and outer.type in _TRANSPARENT:
            at, outer = outer, outer.parent
        match outer.type if outer is not None else "":
            case "assignment_expression":
                return field(outer, "left") == at
            case "call_expression" if outer is not None:  # of a method
                return field(outer, "function") == at and not self.tile_method(outer)
            case "init_declarator" | "declaration":
                return any(v.reference for v in self.variables if v.value == at)
            case "pointer_expression":
                return expression_operator(outer) == "&"
        return outer is None or outer.type == "update_expression" or self._may_be_changed(outer)

    def _may_be_changed(self, arguments: Node) -> bool:
        """Return whether a node is the arguments of a function that may change them."""
        call = arguments.parent if arguments.type == "argument_list" else None
        return call is not None and called_last(call) in self._takes_references

    def gets_a_name(self, node: Node) -> bool:
        """Return whether an expression gets another name, through which it can be changed."""
        outer = node.parent
        while outer is not None and outer.type in _TRANSPARENT:
            outer = outer.parent
        if outer is None or outer.type == "argument_list":
            return outer is None or self._may_be_changed(outer)
        return any(
            variable.value is not None and inside(node, variable.value)
            for variable in self.variables
            if variable.reference and not variable.const
        )

    @functools.cached_property
    def _takes_references(self) -> frozenset[str]:
        """The functions of the text that may change their arguments."""
        return frozenset(
            unscoped_name(n)
            for n in nodes(self.root, "function_definition")
            for p in nodes(function_head(n) or n, "parameter_declaration")
            if any(nodes(p, "reference_declarator"))
            and not any(node_text(q) == "const" for q in p.children)
        )

    @functools.cached_property
    def _tiles(self) -> dict[str, int]:
        """The threads of each tile of cooperative groups, by its name; 0 if not one number."""
        found: dict[str, int] = {}
        for node in nodes(self.body, "template_function"):
            if node_text(field(node, "name")) != "tiled_partition":
                continue
            # The parser takes a declaration such as ``tile<32> warp = ...`` for comparisons.
            kinds = ("assignment_expression", "init_declarator")
            around = next((outer for outer in ancestors(node) if outer.type in kinds), None)
            name = node_text(field(around, "left") or field(around, "declarator"))
            threads = node_text(field(node, "arguments"))[1:-1].strip()
            found[name] = int(threads) if threads.isdecimal() and name not in found else 0
        return found

    def tile_method(self, call: Node) -> tuple[int, str] | None:
        """Return the threads of a tile and its method for a call such as ``warp.size()``."""
        function = field(call, "function")
        if function is None or function.type != "field_expression" or call_arguments(call):
            return None
        threads = self._tiles.get(node_text(field(function, "argument")), 0)
        method = node_text(field(function, "field"))
        return (threads, method) if threads and method in _RANKS else None

    def is_fixed(self, expression: Node, during: Node) -> bool:
        """Return whether nothing in ``during`` changes the value of an expression of scalars."""
        if any(nodes(expression, "subscript_expression", "pointer_expression")):
            return False
        return self.is_fixed_address(expression, during)

    def is_fixed_address(self, expression: Node, during: Node) -> bool:
        """Return whether nothing in ``during`` changes what an expression of pointers points to."""
        if any(nodes(expression, "assignment_expression", "update_expression")):
            return False
        for node in nodes(expression, "identifier"):
            variable = self.variable(node)
            if variable is None:
                continue
            if inside(variable.node, during) and variable.scope != during:
                return False
            if self.changes(variable, during):
                return False
        return True

    def changes(self, variable: Variable, during: Node) -> bool:
        """Return whether a part of the text may change a variable."""
        return any(inside(w, during) or _is_exposed(w) for w in self.writes(variable))


def _is_exposed(write: Node) -> bool:
    """Return whether a variable gets another name, by which it can be changed anywhere."""
    outer = next(n for n in ancestors(write) if n.type != "parenthesized_expression")
    if outer.type in ("init_declarator", "declaration"):
        return True
    is_address = outer.type == "pointer_expression"
    return is_address and outer.parent is not None and outer.parent.type != "argument_list"


@functools.lru_cache(maxsize=_MAX_TEXTS)
def _parse_entry(source: str, entry: str) -> CudaText | None:
    data = source.encode("utf-8", "replace")
    root = parse(data)
    for function in nodes(root, "function_definition"):
        body = field(function, "body")
        if body is None or unscoped_name(function) != function_name(entry):
            continue
        if any(child.type == "__global__" for child in function.children):
            return CudaText(data, root, function, body)
    return None


def _loop(text: CudaText, node: Node) -> CountedLoop | None:
    variable = only([v for v in text.variables if v.scope == node and v.declaration is not None])
    head, body = sides(field(node, "condition"), "<"), field(node, "body")
    update = field(node, "update")
    if variable is None or variable.value is None or head is None or body is None:
        return None
    if update is None or variable.type in NARROW or text.variable(head[0]) != variable:
        return None
    if update.type == "update_expression":
        changed = field(update, "argument") if expression_operator(update) == "++" else None
        step = None
    else:
        changed, step = sides(update, "+=") or (None, None)
    if changed is None or text.variable(changed) != variable or len(text.writes(variable)) != 1:
        return None
    if not all(text.is_fixed(end, node) for end in (head[1], step) if end is not None):
        return None
    return CountedLoop(node, variable, variable.value, head[1], step, body)


def _is_conditional(node: Node) -> bool:
    """Return whether a condition may hide a part of a text from the compiler."""
    return any(outer.type in _CONDITIONS and not _is_guard(outer) for outer in ancestors(node))


def _is_guard(condition: Node) -> bool:
    """Return whether a condition is ``#ifndef NAME``, ``#define NAME``, as around a header."""
    name, *rest = [node for node in condition.named_children if node.type != "comment"]
    if node_text(condition.children[0]) != "#ifndef" or field(condition, "alternative") is not None:
        return False
    defined = rest[0] if rest and rest[0].type == "preproc_def" else None
    return defined is not None and node_text(field(defined, "name")) == node_text(name)
