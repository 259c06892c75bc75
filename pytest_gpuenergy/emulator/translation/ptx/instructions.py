"""The parser of PTX instructions in inline assembler (PTX ISA, "Syntax")."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from pytest_gpuenergy.emulator.translation.ptx.statements import UnsupportedError
from pytest_gpuenergy.kernels import without_comments

_OPERAND = re.compile(r"%(?:(?P<number>\d+)|(?P<percent>%))")
_REGISTER = re.compile(
    r"\.reg\s+\.(?P<type>pred|[bus]\d+|f(?:16|16x2|32|64))\s+(?P<names>.*)", re.DOTALL
)
_LABEL = re.compile(r"(?P<name>[A-Za-z_$][\w$]*)\s*:(?!:)")
_NAME = re.compile(r"(?P<name>[\w$%]+)(?:<(?P<count>\d+)>)?")
_INSTRUCTION = re.compile(
    r"(?:@(?P<negated>!?)\s*(?P<guard>[\w$%?]+)\s+)?(?P<opcode>[a-z]\w*(?:\s*(?:\.|::)\s*\w+)*)"
    r"(?:\s+|(?=[\[{])|$)(?P<operands>.*)",
    re.DOTALL,
)


@dataclass(frozen=True)
class RegisterScope:
    """A brace that opens or closes a scope of registers."""

    opens: bool


@dataclass(frozen=True)
class Label:
    """A place to which instructions of the statement branch."""

    name: str


@dataclass(frozen=True)
class Registers:
    """A declaration of registers of one type.

    Attributes:
        names: the names of the registers.
        bits: the bits of each; a predicate has 1.
        real: whether the type is ``f32`` or ``f64``.
    """

    names: tuple[str, ...]
    bits: int
    real: bool


@dataclass(frozen=True)
class Instruction:
    """One instruction.

    Attributes:
        opcode: the opcode with its modifiers, such as ``add.f32``.
        operands: the texts of the operands; ``%3`` of the asm statement is ``?3`` here.
        guard: the name of the predicate that guards it, or empty.
        negated: whether it is executed if the predicate is false.
        text: the text for messages.
    """

    opcode: str
    operands: tuple[str, ...]
    guard: str
    negated: bool
    text: str


Part = RegisterScope | Label | Registers | Instruction


def parsed(template: str) -> Iterator[Part]:
    """Yield the parts of a template, in which ``%0`` is an operand and ``%%`` a percent sign.

    Raises:
        UnsupportedError: the template is not understood.
    """
    text = _OPERAND.sub(
        lambda found: "%" if found["percent"] else f"?{found['number']}",
        without_comments(template),
    )
    position = 0
    while position < len(text):
        if text[position].isspace() or text[position] == ";":
            position += 1
        elif text[position] in "{}":
            yield RegisterScope(text[position] == "{")
            position += 1
        elif label := _LABEL.match(text, position):
            yield Label(label["name"])
            position = label.end()
        else:
            end = _end(text, position)
            yield _statement(" ".join(text[position:end].split()))
            position = end


def _end(text: str, position: int) -> int:
    """Return the position of the semicolon after a statement, or of the brace that closes it."""
    depth = 0
    for k in range(position, len(text)):
        if text[k] == "{":
            depth += 1
        elif text[k] == "}":
            depth -= 1
        if depth < 0 or (text[k] == ";" and not depth):
            return k
    return len(text)


def _statement(text: str) -> Registers | Instruction:
    if found := _REGISTER.fullmatch(text):
        kind = found["type"]
        bits = {"pred": 1, "f16x2": 32}.get(kind) or int(kind[1:])
        return Registers(tuple(_names(found["names"])), bits, kind in ("f32", "f64"))
    match = _INSTRUCTION.fullmatch(text)
    if match is None:
        raise UnsupportedError(text)
    return Instruction(
        opcode=re.sub(r"\s+", "", match["opcode"]),
        operands=tuple(_split(match["operands"])),
        guard=match["guard"] or "",
        negated=bool(match["negated"]),
        text=text.replace("?", "%"),
    )


def _names(text: str) -> Iterator[str]:
    for name in text.split(","):
        found = _NAME.fullmatch(name.strip())
        if found is None:
            raise UnsupportedError(f".reg {text}")
        if found["count"]:
            yield from (f"{found['name']}{k}" for k in range(int(found["count"])))
        else:
            yield found["name"]


def _split(text: str) -> Iterator[str]:
    """Yield the operands between commas outside brackets; ``p|q`` is two operands."""
    depth, last = 0, 0
    for k, letter in enumerate(text):
        depth += (letter in "[{") - (letter in "]}")
        if not depth and letter in ",|":
            yield text[last:k].strip()
            last = k + 1
    if text.strip():
        yield text[last:].strip()
