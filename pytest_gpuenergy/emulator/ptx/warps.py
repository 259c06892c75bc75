"""Instructions by which the lanes of a warp exchange values and vote."""

from __future__ import annotations

import re

from pytest_gpuenergy.emulator.ptx.instructions import Instruction
from pytest_gpuenergy.emulator.ptx.names import HOST, Names

_SHUFFLE = re.compile(r"shfl\.sync\.(?P<mode>up|down|bfly|idx)\.b32")
_VOTE = re.compile(r"vote\.sync\.(?P<mode>all|any|uni|ballot)\.(?:pred|b32)")
_REDUCTION = re.compile(r"redux\.sync\.(?P<name>add|min|max|and|or|xor)\.(?P<type>[usb]32)")


def warps(instruction: Instruction, names: Names) -> str:
    """C++ for the instruction; empty if it is none of these."""
    opcode, operands = instruction.opcode, instruction.operands
    if (found := _SHUFFLE.fullmatch(opcode)) and len(operands) in (5, 6):
        targets = [names.target(text) for text in operands[: len(operands) - 4]]
        values = ", ".join(names.value(text) for text in operands[-4:])
        sets = [f"{targets[0]} = cuhost_d.value;"]
        sets += [f"{target} = cuhost_d.inside;" for target in targets[1:]]
        call = f"{HOST}shfl<'{found['mode'][0]}'>({values})"
        return f"{{ const auto cuhost_d = {call}; {' '.join(sets)} }}"
    if (found := _VOTE.fullmatch(opcode)) and len(operands) == 3:
        predicate, mask = names.predicate(operands[1]), names.value(operands[2])
        call = f"{HOST}vote_{found['mode']}({predicate}, {mask})"
        return f"{names.target(operands[0])} = {call};"
    if (found := _REDUCTION.fullmatch(opcode)) and len(operands) == 3:
        value, mask = (names.value(text) for text in operands[1:])
        call = f"{HOST}redux_{found['name']}<{HOST}{found['type']}>({value}, {mask})"
        return f"{names.target(operands[0])} = {call};"
    if opcode == "elect.sync" and len(operands) == 3:
        leader, elected = (names.target(text) for text in operands[:2])
        call = f"const unsigned cuhost_d = {HOST}elect({names.value(operands[2])});"
        return f"{{ {call} {leader} = cuhost_d; {elected} = cuhost_d == {HOST}laneid(); }}"
    if opcode == "activemask.b32" and len(operands) == 1:
        return f"{names.target(operands[0])} = ::cuhost::cuhost_active_lanes(__LINE__);"
    return ""
