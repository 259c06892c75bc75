"""A template of a kernel with its parameters replaced by arguments."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpuenergy.search.extraction.items import Item
from pytest_gpuenergy.search.source.tree import field, nodes, text_of
from pytest_gpuenergy.support import FormError

if TYPE_CHECKING:
    from tree_sitter import Node

_KINDS = {
    "type_parameter_declaration",
    "optional_type_parameter_declaration",
    "parameter_declaration",
    "optional_parameter_declaration",
}


def arguments_in(entry: str) -> list[str]:
    """The template arguments of ``name<first, second>``."""
    inside = entry.partition("<")[2].strip().removesuffix(">")
    parts, depth = [""], 0
    for sign in inside:
        depth += (sign in "<(") - (sign in ">)")
        if sign == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += sign
    return [part.strip() for part in parts] if inside.strip() else []


def replacements(item: Item, entry: str) -> dict[str, str]:
    """What each template parameter of a kernel stands for; empty if it is no template.

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
            words = ", ".join(one for one, _ in parameters)
            raise FormError(
                f"its entry {entry} is a template: give an argument for each of {words}, as in "
                f"{entry.partition('<')[0]}<float>"
            )
        found[name] = f"({value})" if value.startswith("-") else value
    return found


def _parameters(listed: Node, entry: str) -> list[tuple[str, str]]:
    """Names and defaults."""
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
