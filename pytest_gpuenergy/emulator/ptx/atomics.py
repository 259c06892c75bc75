"""Atomic instructions: ``atom``, ``red``."""

from __future__ import annotations

import re

from pytest_gpuenergy.emulator.ptx.instructions import Instruction
from pytest_gpuenergy.emulator.ptx.names import HOST, Names

_ATOMIC = re.compile(
    r"(?P<name>atom|red)(?P<modifiers>(?:\.(?:L2|shared)::\w+|\.[a-z]+)*)"
    r"\.(?P<type>[bus](?:32|64)|f32|f64|f16x2|bf16x2|f16|bf16)"
)
_ORDERS = frozenset(("relaxed", "acquire", "release", "acq_rel"))
_IGNORED = frozenset(
    (
        *(
            "global",
            "shared",
            "shared::cta",
            "shared::cluster",
            "cta",
            "cluster",
            "gpu",
            "sys",
            "noftz",
        ),
        "L2::cache_hint",
    )
)
_OPERATIONS = {
    **dict.fromkeys(("add", "min", "max"), "us"),
    **dict.fromkeys(("and", "or", "xor", "exch", "cas"), "b"),
    **dict.fromkeys(("inc", "dec"), "u"),
}


def atomics(instruction: Instruction, names: Names) -> str:
    """C++ for the instruction; empty if it is none of these."""
    found = _ATOMIC.fullmatch(instruction.opcode)
    if found is None:
        return ""
    modifiers, kind = set(found["modifiers"].split(".")) - {""}, found["type"]
    orders, operations = modifiers & _ORDERS, modifiers & _OPERATIONS.keys()
    if len(operations) != 1 or len(orders) > 1 or modifiers - orders - operations - _IGNORED:
        return ""
    (operation,) = operations
    real = kind[0] == "f" or kind.startswith("bf")
    if real != (operation == "add" and kind[0] not in "us") or (
        not real and kind[0] not in _OPERATIONS[operation]
    ):
        return ""
    returns = found["name"] == "atom"
    operands = instruction.operands
    given = operands[: len(operands) - ("L2::cache_hint" in modifiers)]
    if len(given) != 2 + returns + (operation == "cas"):
        return ""
    place, *values = given[returns:]
    (order,) = orders or {"relaxed"}
    arguments = [names.address_in(place, modifiers), *(names.value(one, kind) for one in values)]
    call = f"{HOST}atom_{operation}<{HOST}{kind}, {HOST}order_{order}>({', '.join(arguments)})"
    return f"{names.target(given[0])} = {call};" if returns else f"(void){call};"
