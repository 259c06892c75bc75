"""The syntax tree of CUDA text, by tree-sitter."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, TypeVar

from pytest_gpuenergy.support import UnavailableError

if TYPE_CHECKING:
    from tree_sitter import Node

Item = TypeVar("Item")
_ALIGNMENT = b"__align__"
_MAX_DEPTH = 200
"""The limit on nesting: deeper text is generated, or an attack on recursive functions."""
_OPERATORS: dict[tuple[int, str], Callable[..., int]] = {
    (1, "!"): operator.not_,
    (1, "-"): operator.neg,
    (1, "+"): operator.pos,
    (1, "~"): operator.invert,
    (2, "||"): lambda a, b: a or b,
    (2, "&&"): lambda a, b: a and b,
    (2, "|"): operator.or_,
    (2, "^"): operator.xor,
    (2, "&"): operator.and_,
    (2, "=="): operator.eq,
    (2, "!="): operator.ne,
    (2, "<"): operator.lt,
    (2, ">"): operator.gt,
    (2, "<="): operator.le,
    (2, ">="): operator.ge,
    (2, "<<"): lambda a, b: a << min(b, 64),
    (2, ">>"): lambda a, b: a >> min(b, 64),
    (2, "+"): operator.add,
    (2, "-"): operator.sub,
    (2, "*"): operator.mul,
    (2, "/"): operator.floordiv,
    (2, "%"): operator.mod,
    (3, ""): lambda condition, chosen, other: chosen if condition else other,
}
"""The value of an expression, by the number of its parts and its operator."""
_SELECTING = ("if_statement", "conditional_expression", "switch_statement")
_REPEATING = (
    *("for_statement", "while_statement", "do_statement", "for_range_loop", "case_statement"),
    *("labeled_statement", "lambda_expression"),
)
NAMES = ("identifier", "type_identifier", "namespace_identifier")
"""Types of the nodes that are names of variables, functions, types or namespaces."""
_BLOCKS = ("translation_unit", "compound_statement", "declaration_list", "case_statement")


def parse(text: bytes) -> Node:
    """Return the root of a text's tree, without comments inside statements.

    The places of its nodes are places in ``text``.
    """
    try:
        import tree_sitter
        import tree_sitter_cuda
    except ImportError as error:
        raise UnavailableError(
            f"Moves on CUDA text need tree-sitter ({error}): install pytest-gpuenergy[search]."
        ) from None
    parser = tree_sitter.Parser(tree_sitter.Language(tree_sitter_cuda.language()))
    root = parser.parse(text).root_node
    blank = bytearray(text)
    for node in walk(root):
        begin, end = node.start_byte, node.end_byte
        if node.child_count == 0 and node.text == _ALIGNMENT:
            # The grammar does not know CUDA's alignment of variables, which makes no difference.
            end = text.find(b")", end) + 1
        elif node.type != "comment":
            continue
        elif node.parent is None or node.parent.type.startswith((*_BLOCKS, "preproc")):
            continue  # it stands between statements
        blank[begin:end] = b"".join(b"\n" if byte == 10 else b" " for byte in text[begin:end])
    return root if blank == text else parser.parse(bytes(blank)).root_node


def walk(node: Node) -> Iterator[Node]:
    """Yield ``node`` and all nodes in it, in the order of the text."""
    stack = [node]
    while stack:
        node = stack.pop()
        yield node
        stack.extend(reversed(node.children))


def is_too_deep(node: Node) -> bool:
    """Return whether a tree has more levels than recursive functions should follow."""
    stack = [(node, 1)]
    while stack:
        node, depth = stack.pop()
        if depth > _MAX_DEPTH:
            return True
        stack.extend((child, depth + 1) for child in node.children)
    return False


def nodes(node: Node, *types: str) -> Iterator[Node]:
    """Yield the nodes in ``node``, itself included, that have one of the types."""
    return (inner for inner in walk(node) if inner.type in types)


def node_text(node: Node | None) -> str:
    """Return a node's text; empty for None."""
    return node.text.decode() if node is not None and node.text is not None else ""


def inside(node: Node, outer: Node) -> bool:
    """Return whether ``node`` lies in ``outer``, or is it."""
    return outer.start_byte <= node.start_byte and node.end_byte <= outer.end_byte


def field(node: Node | None, name: str) -> Node | None:
    """Return a child by the name that the grammar gives it."""
    return node.child_by_field_name(name) if node is not None else None


def bare(node: Node) -> Node:
    """Return the expression in parentheses, however many."""
    while node.type in ("parenthesized_expression", "condition_clause"):
        if (inner := only(node.named_children)) is None:
            break
        node = inner
    return node


def conjuncts(condition: Node) -> list[Node]:
    """Return the parts of ``a && b && c``."""
    parts = sides(condition, "&&")
    return [condition] if parts is None else [n for part in parts for n in conjuncts(bare(part))]


def expression_operator(node: Node | None) -> str:
    """Return the operator of an expression; empty if it has none."""
    return node_text(field(node, "operator"))


def sides(node: Node | None, *operators: str) -> tuple[Node, Node] | None:
    """Return both sides of a binary expression or assignment with one of the operators."""
    left, right = field(node, "left"), field(node, "right")
    fits = left is not None and right is not None and expression_operator(node) in operators
    return (left, right) if fits and left is not None and right is not None else None


def only(some: Sequence[Item]) -> Item | None:
    """Return the item of a sequence of one; None for others."""
    return some[0] if len(some) == 1 else None


def is_always(node: Node, statement: Node) -> bool:
    """Return whether a part of a statement is always evaluated when the statement is."""
    inner = node
    for around in ancestors(node):
        if not inside(around, statement):
            break
        first = field(
            around, "left" if expression_operator(around) in ("&&", "||") else "condition"
        )
        if around.type in _SELECTING or expression_operator(around) in ("&&", "||"):
            if first is None or not inside(inner, first):
                return False
        elif around.type in _REPEATING:
            return False
        inner = around
    return inside(node, statement)


def ancestors(node: Node) -> Iterator[Node]:
    """Yield the nodes around ``node``, the innermost first."""
    outer = node.parent
    while outer is not None:
        yield outer
        outer = outer.parent


def statements(node: Node) -> list[Node]:
    """Return the statements of a block; for another statement, that one."""
    if node.type != "compound_statement":
        return [node]
    return [child for child in node.named_children if child.type != "comment"]


def called(node: Node) -> str:
    """Return the name of a function that is called by a plain name; empty for anything else."""
    function = field(node, "function") if node.type == "call_expression" else None
    return node_text(function) if function is not None and function.type == "identifier" else ""


def called_last(call: Node) -> str:
    """Return the name of a called function or method, without object and namespace."""
    function = field(call, "function")
    while function is not None and function.type not in ("identifier", "field_identifier"):
        function = field(function, "name") or field(function, "field")
    return node_text(function)


def call_arguments(call: Node) -> list[Node]:
    """Return the arguments of a call."""
    found = field(call, "arguments")
    return [] if found is None else [a for a in found.named_children if a.type != "comment"]


def indentation(node: Node, text: bytes) -> str:
    """Return the blanks before the line in which ``node`` begins."""
    line = text[text.rfind(b"\n", 0, node.start_byte) + 1 : node.start_byte]
    return line[: len(line) - len(line.lstrip())].decode()


def loop_start(loop: Node) -> int:
    """Return where a loop begins, with the pragma before it."""
    before = loop.prev_named_sibling
    is_pragma = before is not None and before.type == "preproc_call"
    return before.start_byte if before is not None and is_pragma else loop.start_byte


def function_head(function: Node) -> Node | None:
    """Return the declarator of a function, with its name and parameters."""
    return next((n for n in nodes(function, "function_declarator")), None)


def outline(declarator: Node) -> Iterator[Node]:
    """Yield the parts of a declarator, from the outermost down to the name."""
    node: Node | None = declarator
    while node is not None:
        yield node
        inner = field(node, "declarator")
        if inner is None and node.type == "reference_declarator":
            inner = next(nodes(node, *NAMES), None)
        node = inner


def declared_name(declarator: Node) -> str:
    """Return the name that a declarator declares, without scopes and template arguments."""
    *_, last = outline(declarator)
    while (inner := field(last, "name")) is not None:
        last = inner
    return node_text(last)


def unscoped_name(function: Node) -> str:
    """Return the name of a function, without scopes and template arguments."""
    declarator = field(function_head(function), "declarator")
    return "" if declarator is None else declared_name(declarator)


def expression(text: str) -> Node:
    """Return the tree of an expression; an empty one if the text is not an expression."""
    root = parse(f"int x = {text};".encode())
    value = field(next(nodes(root, "init_declarator"), None), "value")
    return parse(b"") if value is None or root.has_error else value


def statement_expression(statement: Node) -> Node | None:
    """Return the expression that an expression statement consists of."""
    if statement.type != "expression_statement" or not statement.named_children:
        return None
    return bare(statement.named_children[0])


def whole_number(literal: str) -> int | None:
    """Return the value of a literal such as ``0x10u``; None if it is not a whole number."""
    digits = literal.rstrip("uUlL").replace("'", "")
    is_octal = len(digits) > 1 and digits.isdecimal() and digits.startswith("0")
    try:
        return int(digits, 8 if is_octal else 0)
    except ValueError:
        return None


def constant_value(node: Node) -> int | None:
    """Return the value of an integer expression without names; None for others."""
    return None if is_too_deep(node) else _constant_value(node)


def _constant_value(node: Node) -> int | None:
    node = bare(node)
    if node.type in ("true", "false"):
        return int(node.type == "true")
    if node.type == "number_literal":
        return whole_number(node_text(node))
    names = ("left", "argument", "condition", "consequence", "alternative", "right")
    parts = [part for name in names if (part := field(node, name)) is not None]
    known = [value for part in parts if (value := _constant_value(part)) is not None]
    function = _OPERATORS.get((len(parts), expression_operator(node)))
    if function is None or len(known) != len(parts):
        return None
    try:
        return int(function(*known))
    except (ZeroDivisionError, ValueError):
        return None


def is_zero(value: Node | None) -> bool:
    """Return whether an expression is a literal zero."""
    return node_text(value).rstrip("fF") in ("0", "0.", "0.0")


def statement_call(statement: Node) -> Node | None:
    """Return the call that an expression statement consists of."""
    inner = statement_expression(statement)
    return inner if inner is not None and inner.type == "call_expression" else None


def is_call(statement: Node, name: str) -> bool:
    """Return whether a statement is a call of ``name`` without arguments."""
    call = statement_call(statement)
    return call is not None and called(call) == name and not call_arguments(call)
