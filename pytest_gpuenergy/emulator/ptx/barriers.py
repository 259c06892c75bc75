"""Barriers in shared memory: ``mbarrier``."""

from __future__ import annotations

import re

from pytest_gpuenergy.emulator.ptx.instructions import Instruction
from pytest_gpuenergy.emulator.ptx.names import HOST, Names

_SPACE = r"(?P<shared>\.shared(?:::(?:cta|(?P<cluster>cluster)))?)?\.b64"
_PLAIN = re.compile(
    rf"mbarrier\.(?P<name>init|inval|expect_tx|complete_tx)(?:\.relaxed\.(?:cta|cluster))?{_SPACE}"
)
_ARRIVAL = re.compile(
    rf"mbarrier\.arrive(?P<drop>_drop)?(?P<expects>\.expect_tx)?"
    rf"(?:\.release\.(?:cta|cluster))?{_SPACE}"
)
_WAIT = re.compile(
    rf"mbarrier\.(?:test|(?P<tries>try))_wait(?P<parity>\.parity)?"
    rf"(?:\.acquire\.(?:cta|cluster))?{_SPACE}"
)
# How many operands there are, and what the host calls it.
_PLAIN_CALLS = {
    "init": (2, "init"),
    "inval": (1, "inval"),
    "expect_tx": (2, "expect"),
    "complete_tx": (2, "complete"),
}


def barriers(instruction: Instruction, names: Names) -> str:
    """C++ for the instruction; empty if it is none of these."""
    opcode, operands = instruction.opcode, instruction.operands
    if found := _PLAIN.fullmatch(opcode):
        count, name = _PLAIN_CALLS[found["name"]]
        if len(operands) != count:
            return ""
        return _call(name, operands[0], operands[1:], names, shared=bool(found["shared"])) + ";"
    if found := _ARRIVAL.fullmatch(opcode):
        return _arrival(found, operands, names)
    if (found := _WAIT.fullmatch(opcode)) and len(operands) in (3, 3 + bool(found["tries"])):
        name = "wait_parity" if found["parity"] else "wait"
        call = _call(name, operands[1], operands[2:3], names, shared=bool(found["shared"]))
        return f"{names.target(operands[0])} = {call};"
    return ""


def _arrival(found: re.Match[str], operands: tuple[str, ...], names: Names) -> str:
    """State, barrier, and then bytes or, possibly, the number of arrivals."""
    given = operands[2:] if found["expects"] or len(operands) == 3 else ("1",)
    if len(operands) not in (2, 3) or len(given) != 1:
        return ""
    if found["cluster"] and operands[0] == "_" and not (found["drop"] or found["expects"]):
        # Perhaps of another block of the cluster.
        return _call("arrive_in_cluster", operands[1], given, names, shared=True) + ";"
    drop = "true" if found["drop"] else "false"
    name = f"{'arrive_expect' if found['expects'] else 'arrive'}<{drop}>"
    call = _call(name, operands[1], given, names, shared=bool(found["shared"]))
    return f"{names.target(operands[0])} = {call};"


def _call(name: str, place: str, values: tuple[str, ...], names: Names, *, shared: bool) -> str:
    arguments = [names.address(place, shared=shared), *(names.value(one) for one in values)]
    return f"{HOST}mbarrier_{name}({', '.join(arguments)})"
