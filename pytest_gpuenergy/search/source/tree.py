"""The syntax tree of CUDA text, by tree-sitter."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pytest_gpuenergy.support import UnavailableError

if TYPE_CHECKING:
    from tree_sitter import Node

_ALIGNMENT = b"__align__"
_SELECTING = ("if_statement", "conditional_expression", "switch_statement")
_REPEATING = (
    *("for_statement", "while_statement", "do_statement", "for_range_loop", "case_statement"),
    *("labeled_statement", "lambda_expression"),
)
_BLOCKS = ("translation_unit", "compound_statement", "declaration_list", "case_statement")


def parse(text: bytes) -> Node:
    """The root of a text's tree, without comments inside statements.

    Its nodes' places are those in ``text``.

    Raises:
        UnavailableError: tree-sitter is not installed.
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
        elif node.type != "comment" or _is_between(node):
            continue
        blank[begin:end] = b"".join(b"\n" if byte == 10 else b" " for byte in text[begin:end])
    return root if blank == text else parser.parse(bytes(blank)).root_node


def _is_between(comment: Node) -> bool:
    """Whether a comment stands between statements and not within one."""
    around = comment.parent
    return around is None or around.type in _BLOCKS or around.type.startswith("preproc")


def walk(node: Node) -> Iterator[Node]:
    """``node`` and all nodes in it, in the order of the text."""
    stack = [node]
    while stack:
        node = stack.pop()
        yield node
        stack.extend(reversed(node.children))


def depth_of(node: Node) -> int:
    """How many nodes are in one another at most."""
    deepest, stack = 0, [(node, 1)]
    while stack:
        node, depth = stack.pop()
        deepest = max(deepest, depth)
        stack.extend((child, depth + 1) for child in node.children)
    return deepest


def nodes(node: Node, *types: str) -> Iterator[Node]:
    """The nodes in ``node``, itself included, that have one of the types."""
    return (inner for inner in walk(node) if inner.type in types)


def text_of(node: Node | None) -> str:
    """A node's text; empty for None."""
    return node.text.decode() if node is not None and node.text is not None else ""


def inside(node: Node, outer: Node) -> bool:
    """Whether ``node`` lies in ``outer``, or is it."""
    return outer.start_byte <= node.start_byte and node.end_byte <= outer.end_byte


def field(node: Node | None, name: str) -> Node | None:
    """A child by the name that the grammar gives it."""
    return node.child_by_field_name(name) if node is not None else None


def bare(node: Node) -> Node:
    """What stands in parentheses, however many."""
    while node.type in ("parenthesized_expression", "condition_clause"):
        if len(node.named_children) != 1:
            return node
        node = node.named_children[0]
    return node


def conjuncts(condition: Node) -> list[Node]:
    """The parts of ``a && b && c``."""
    left, right = field(condition, "left"), field(condition, "right")
    if condition.type == "binary_expression" and operator_of(condition) == "&&" and left and right:
        return [*conjuncts(bare(left)), *conjuncts(bare(right))]
    return [condition]


def operator_of(node: Node) -> str:
    """The operator of an expression; empty if it has none."""
    found = field(node, "operator")
    return text_of(found)


def is_always(node: Node, statement: Node) -> bool:
    """Whether a part of a statement is evaluated whatever happens, once the statement is."""
    inner = node
    for around in ancestors(node):
        if not inside(around, statement):
            break
        first = field(around, "left" if operator_of(around) in ("&&", "||") else "condition")
        if around.type in _SELECTING or operator_of(around) in ("&&", "||"):
            if first is None or not inside(inner, first):
                return False
        elif around.type in _REPEATING:
            return False
        inner = around
    return inside(node, statement)


def ancestors(node: Node) -> Iterator[Node]:
    """The nodes around ``node``, the innermost first."""
    outer = node.parent
    while outer is not None:
        yield outer
        outer = outer.parent


def statements(node: Node) -> list[Node]:
    """The statements of a block; a statement that is no block stands for itself."""
    if node.type != "compound_statement":
        return [node]
    return [child for child in node.named_children if child.type != "comment"]


def called(node: Node) -> str:
    """The name of the function that a call names plainly; empty for anything else."""
    function = field(node, "function") if node.type == "call_expression" else None
    return text_of(function) if function is not None and function.type == "identifier" else ""


def called_last(call: Node) -> str:
    """The name of the function or method that is called, without all that stands around it."""
    function = field(call, "function")
    while function is not None and function.type not in ("identifier", "field_identifier"):
        function = field(function, "name") or field(function, "field")
    return text_of(function)


def arguments_of(call: Node) -> list[Node]:
    """The arguments of a call."""
    found = field(call, "arguments")
    return [] if found is None else [a for a in found.named_children if a.type != "comment"]


def indentation(node: Node, text: bytes) -> str:
    """The blanks before the line in which ``node`` begins."""
    line = text[text.rfind(b"\n", 0, node.start_byte) + 1 : node.start_byte]
    return line[: len(line) - len(line.lstrip())].decode()


def start_of(loop: Node) -> int:
    """Where a loop begins, with the pragma before it."""
    before = loop.prev_named_sibling
    is_pragma = before is not None and before.type == "preproc_call"
    return before.start_byte if before is not None and is_pragma else loop.start_byte


def declarator_of(function: Node) -> Node | None:
    """The declarator of a function, with its name and parameters."""
    return next((n for n in nodes(function, "function_declarator")), None)


def name_of(function: Node) -> str:
    """Without the names of what it is a part of."""
    return text_of(field(declarator_of(function), "declarator")).split("::")[-1]


def expression(text: str) -> Node:
    """The tree of an expression on its own; of nothing if it is not one."""
    found = next(nodes(parse(f"int x = {text};".encode()), "init_declarator"), None)
    value = field(found, "value")
    return parse(b"") if value is None or value.has_error else value


def call_in(statement: Node) -> Node | None:
    """The call that an expression statement consists of."""
    if statement.type != "expression_statement" or not statement.named_children:
        return None
    inner = bare(statement.named_children[0])
    return inner if inner.type == "call_expression" else None


def is_call(statement: Node, name: str, arguments: int = 0) -> bool:
    """Whether a statement is a call of ``name`` with that many arguments."""
    call = call_in(statement)
    return call is not None and called(call) == name and len(arguments_of(call)) == arguments
