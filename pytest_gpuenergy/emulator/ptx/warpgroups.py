"""Instructions of a warpgroup, four warps that multiply matrices in shared memory: ``wgmma``."""

from __future__ import annotations

import re

from pytest_gpuenergy.emulator.ptx.instructions import Instruction
from pytest_gpuenergy.emulator.ptx.names import HOST, Names, elements

_PRODUCT = re.compile(
    r"wgmma\.mma_async\.sync\.aligned\.m64n(?P<columns>\d+)k(?P<depth>\d+)\.f32"
    r"\.(?P<type>f16|bf16|tf32)\.(?P=type)"
)
_DEPTHS = {"f16": 16, "bf16": 16, "tf32": 8}
_MOST_COLUMNS = 256
_REGISTERS_OF_A = 4


def warpgroups(instruction: Instruction, names: Names) -> str:
    """C++ for the instruction; empty if it is none of these."""
    opcode, operands = instruction.opcode, instruction.operands
    if found := _PRODUCT.fullmatch(opcode):
        return _product(found, operands, names)
    if opcode == "wgmma.fence.sync.aligned" and not operands:
        return f"{HOST}wgmma_fence(__LINE__);"
    if opcode == "wgmma.commit_group.sync.aligned" and not operands:
        return f"{HOST}wgmma_commit(__LINE__);"
    if opcode == "wgmma.wait_group.sync.aligned" and len(operands) == 1:
        if not names.constant(operands[0]):
            return ""
        wait = f"{HOST}wgmma_wait(__LINE__, (unsigned){names.value(operands[0])});"
        return f"{wait} {names.read_again()}"
    return ""


def _product(found: re.Match[str], operands: tuple[str, ...], names: Names) -> str:
    """Accumulators, A, B, scale-d, and then constants: factors of A and B, who is transposed."""
    kind, columns = found["type"], int(found["columns"])
    if int(found["depth"]) != _DEPTHS[kind] or columns % 8 or not 8 <= columns <= _MOST_COLUMNS:
        return ""
    if len(operands) < 4:
        return ""
    d, a = elements(operands[0]), elements(operands[1])
    in_registers = operands[1].startswith("{")
    # Only elements of 16 bits can be transposed, and only in shared memory.
    transposable = (kind != "tf32") * (2 - in_registers)
    constants = operands[4:]
    if len(constants) != 2 + transposable or not all(map(names.constant, constants)):
        return ""
    if len(d) != columns // 2 or len(a) != (_REGISTERS_OF_A if in_registers else 1):
        return ""
    numbers = [f"(int){names.value(text)}" for text in constants]
    flags = [*["0"] * (2 - transposable), *numbers[2:]]
    arguments = ", ".join([f"{HOST}matrix_{kind}", str(columns), *numbers[:2], *flags])
    places = [names.place(text) for text in d]
    words, a_descriptor = "nullptr", "0"
    if in_registers:
        names.require_bits(*a)
        words = "cuhost_a"
    else:
        a_descriptor = names.value(a[0], "b64")
    held = ", ".join(names.value(text, "b32") for text in a) if in_registers else "0"
    accumulates = names.predicate(operands[3])
    descriptors = (
        f"{HOST}Descriptor{{{one}}}" for one in (a_descriptor, names.value(operands[2], "b64"))
    )
    call = f"{HOST}wgmma<{arguments}>(__LINE__, cuhost_d, {accumulates}, {words}"
    return (
        f"{{ {names.write_back()} void* const cuhost_d[] = {{{', '.join(places)}}}; "
        f"[[maybe_unused]] const unsigned cuhost_a[] = {{{held}}}; "
        f"{call}, {', '.join(descriptors)}); {names.read_again()} }}"
    )
