"""PTX for matrices: ``mma`` and ``ldmatrix`` of a warp, ``wgmma`` of a warpgroup."""

from __future__ import annotations

import re

from pytest_gpuenergy.emulator.translation.ptx.instructions import Instruction
from pytest_gpuenergy.emulator.translation.ptx.ptx_operands import HOST, Names, elements

_MMA = re.compile(
    r"mma\.sync\.aligned\.m(?P<m>16|8)n8k(?P<k>\d+)\.row\.col(?P<saturated>\.satfinite)?"
    r"\.(?P<d>\w+)\.(?P<a>\w+)\.(?P<b>\w+)\.(?P<c>\w+)"
)
# The accumulators, depths and bits of the operands of a product, by their type (PTX ISA, "mma").
_PRODUCTS = {
    "f16": (("f16", "f32"), (8, 16), 16),
    "bf16": (("f32",), (8, 16), 16),
    "tf32": (("f32",), (4, 8), 32),
    "s8": (("s32",), (16, 32), 8),
    "u8": (("s32",), (16, 32), 8),
    **dict.fromkeys(("e4m3", "e5m2"), (("f16", "f32"), (16, 32), 8)),
    "f64": (("f64",), (4,), 64),
}
_ROWS = re.compile(
    r"(?P<name>ldmatrix|stmatrix)\.sync\.aligned(?=\S*\.x(?P<count>[124]))"
    r"(?:\.m8n8|\.x[124]|(?P<transposed>\.trans)|\.shared(?:::cta)?)+\.b16"
)
_WARPGROUP_PRODUCT = re.compile(
    r"wgmma\.mma_async\.sync\.aligned\.m64n(?P<columns>\d+)k(?P<depth>\d+)\.f32"
    r"\.(?:(?P<type>f16|bf16|tf32)\.(?P=type)|(?P<a>e4m3|e5m2)\.(?P<b>e4m3|e5m2))"
)
_DEPTHS = {"f16": 16, "bf16": 16, "tf32": 8, "e4m3": 32, "e5m2": 32}
_MOST_COLUMNS = 256
_REGISTERS_OF_A = 4


def matrix_code(instruction: Instruction, names: Names) -> str:
    """Return C++ for an instruction of this kind; it is empty for any other instruction."""
    opcode, operands = instruction.opcode, instruction.operands
    if found := _MMA.fullmatch(opcode):
        return _product(found, instruction, names)
    if found := _ROWS.fullmatch(opcode):
        return _rows(found, instruction, names)
    if found := _WARPGROUP_PRODUCT.fullmatch(opcode):
        return _warpgroup_product(found, operands, names)
    return ""


def _product(found: re.Match[str], instruction: Instruction, names: Names) -> str:
    a, b, c, depth = found["a"], found["b"], found["c"], int(found["k"])
    whole = a in ("s8", "u8") and b in ("s8", "u8")
    small = a in ("e4m3", "e5m2") and b in ("e4m3", "e5m2")
    if a not in _PRODUCTS or (a != b and not whole and not small) or found["d"] != c:
        return ""
    accumulators, depths, bits = _PRODUCTS[a]
    rows = 8 if a == "f64" else 16
    if c not in accumulators or depth not in depths or int(found["m"]) != rows:
        return ""
    if found["saturated"] and not whole:
        return ""
    registers = [elements(operand) for operand in instruction.operands]
    register_bits = 64 if a == "f64" else 32
    sizes = [rows * 8 * int(c[1:]), rows * depth * bits, depth * 8 * bits]
    counts = [size // (32 * register_bits) for size in sizes]
    if [len(vector) for vector in registers] != [*counts, counts[0]]:
        return ""
    if a != "f64":
        names.require_bits(*registers[1], *registers[2])
    values = [names.value(text, c) for part in registers[1:] for text in part]
    targets = [names.target(text) for text in registers[0]]
    kinds = ", ".join(f"{HOST}matrix_{kind}" for kind in (c, a, b))
    saturated = "true" if found["saturated"] else "false"
    call = f"{HOST}mma<{kinds}, {depth}, {saturated}>(__LINE__, {', '.join(values)})"
    return _results(call, targets)


def _rows(found: re.Match[str], instruction: Instruction, names: Names) -> str:
    count, loads = int(found["count"]), found["name"] == "ldmatrix"
    if len(instruction.operands) != 2:
        return ""
    vector, place = instruction.operands if loads else reversed(instruction.operands)
    registers = elements(vector)
    if len(registers) != count:
        return ""
    names.require_bits(*registers)
    shared = ".shared" in instruction.opcode
    transposed = "true" if found["transposed"] else "false"
    call = f"{HOST}{found['name']}<{count}, {transposed}>(__LINE__, " + names.address(
        place, shared=shared
    )
    if not loads:
        return f"{call}, {', '.join(names.value(text) for text in registers)});"
    return _results(f"{call})", [names.target(text) for text in registers])


def _results(call: str, targets: list[str]) -> str:
    taken = " ".join(f"{target} = cuhost_d.words[{k}];" for k, target in enumerate(targets))
    return f"{{ const auto cuhost_d = {call}; {taken} }}"


def _warpgroup_product(found: re.Match[str], operands: tuple[str, ...], names: Names) -> str:
    """Translate a product.

    Its operands are accumulators, A, B, scale-d, and then constants: the factors of A and B, and
    whether they are transposed.
    """
    kind, columns = found["type"] or found["a"], int(found["columns"])
    if int(found["depth"]) != _DEPTHS[kind] or columns % 8 or not 8 <= columns <= _MOST_COLUMNS:
        return ""
    if len(operands) < 4:
        return ""
    d, a = elements(operands[0]), elements(operands[1])
    in_registers = operands[1].startswith("{")
    # Only elements of 16 bits can be transposed, and only in shared memory.
    transposable = (kind in ("f16", "bf16")) * (2 - in_registers)
    constants = operands[4:]
    if len(constants) != 2 + transposable or not all(map(names.constant, constants)):
        return ""
    if len(d) != columns // 2 or len(a) != (_REGISTERS_OF_A if in_registers else 1):
        return ""
    numbers = [f"(int){names.value(text)}" for text in constants]
    flags = [*["0"] * (2 - transposable), *numbers[2:]]
    kinds = (f"{HOST}matrix_{one}" for one in (kind, found["b"] or kind))
    arguments = ", ".join([*kinds, str(columns), *numbers[:2], *flags])
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
        f"{HOST}Descriptor{{{bits}}}" for bits in (a_descriptor, names.value(operands[2], "b64"))
    )
    call = f"{HOST}wgmma<{arguments}>(__LINE__, cuhost_d, {accumulates}, {words}"
    return (
        f"{{ {names.write_back()} void* const cuhost_d[] = {{{', '.join(places)}}}; "
        f"[[maybe_unused]] const unsigned cuhost_a[] = {{{held}}}; "
        f"{call}, {', '.join(descriptors)}); {names.read_again()} }}"
    )
