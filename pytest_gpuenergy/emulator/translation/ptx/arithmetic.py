"""PTX that computes, moves and converts in the registers of a thread."""

from __future__ import annotations

import re

from pytest_gpuenergy.emulator.translation.ptx.instructions import Instruction
from pytest_gpuenergy.emulator.translation.ptx.ptx_operands import HOST, Names, elements

_WHOLE = r"[us](?:16|32|64)"
_BITS = r"b(?:16|32|64)"
_REAL = r"f(?:32|64)|f16x2|f16|bf16x2|bf16"
_FLAGS = r"(?P<flags>(?:\.(?:rn|ftz|sat|relu|NaN))*)"
# Name, types and number of operands.
_OPERATIONS = (
    (r"(?P<name>add|sub|min|max)", rf"{_WHOLE}|{_REAL}", 2),
    (r"(?P<name>mul)", _REAL, 2),
    (r"(?P<name>mul)\.(?P<part>lo|hi|wide)", _WHOLE, 2),
    (r"(?P<name>mad)\.(?P<part>lo|hi|wide)", _WHOLE, 3),
    (r"(?P<name>(?:add|sub)c?(?:\.cc)?)", "[us](?:32|64)", 2),
    (r"(?P<name>madc?\.(?:lo|hi)(?:\.cc)?)", "[us](?:32|64)", 3),
    (r"(?P<name>mul24\.(?:lo|hi))", "[us]32", 2),
    (r"(?P<name>mad24\.lo|sad)", "[us]32", 3),
    (r"(?P<name>copysign)", "f32|f64", 2),
    (r"(?P<name>fma|mad)", _REAL, 3),
    (r"(?P<name>div)", rf"{_WHOLE}|f(?:32|64)", 2),
    (r"(?P<name>rem)", _WHOLE, 2),
    (r"(?P<name>and|or|xor)", rf"{_BITS}|pred", 2),
    (r"(?P<name>not)", rf"{_BITS}|pred", 1),
    (r"(?P<name>shl)", _BITS, 2),
    (r"(?P<name>shr)", rf"{_BITS}|{_WHOLE}", 2),
    (r"(?P<name>neg|abs)", rf"{_WHOLE}|{_REAL}", 1),
    (r"(?P<name>div\.(?:approx|full))", "f32", 2),
    (r"(?P<name>rcp|sqrt)", "f32|f64", 1),
    (r"(?P<name>(?:rcp|sqrt|rsqrt|lg2|sin|cos)\.approx)", "f32", 1),
    (r"(?P<name>(?:ex2|tanh)\.approx)", "f32|f16x2|f16|bf16x2|bf16", 1),
    (r"(?P<name>(?:rcp|rsqrt)\.approx\.ftz)", "f64", 1),
    (r"(?P<name>rsqrt)\.approx", "f64", 1),
    (r"(?P<name>popc|clz)", "b32|b64", 1),
    (r"(?P<name>brev)", "b32|b64", 1),
    (r"(?P<name>prmt)", "b32", 3),
    (r"(?P<name>lop3)", "b32", 4),
    (r"(?P<name>bfe)", "[us](?:32|64)", 3),
    (r"(?P<name>bfi)", "b(?:32|64)", 4),
    (r"(?P<name>shf\.[lr]\.(?:wrap|clamp))", "b32", 3),
    (r"(?P<name>dp4a)", r"[us]32\.[us]32", 3),
)
_PATTERNS = tuple(
    (re.compile(rf"{name}{_FLAGS}\.(?P<type>{types})"), count) for name, types, count in _OPERATIONS
)
_COMPARISON = re.compile(
    rf"setp\.(?P<name>eq|ne|lt|le|gt|ge|lo|ls|hi|hs|equ|neu|ltu|leu|gtu|geu|num|nan)"
    rf"(?:\.(?P<joined>and|or|xor))?(?P<flags>\.ftz)?\.(?P<type>{_BITS}|{_WHOLE}|f(?:32|64)|f16|bf16)"
)
# The number of operands of the instruction's type; the others are counts of bits.
_TYPED_OPERANDS = {"shl": 1, "shr": 1, "bfe": 1, "bfi": 2}
_JOINS = {"and": "&", "or": "|", "xor": "^"}

_MOVE = re.compile(r"mov\.(?P<type>[busf](?:16|32|64))")
_TYPE = r"(?:[us](?:8|16|32|64)|f16x2|bf16x2|f16|bf16|tf32|f32|f64)"
_CONVERSION = re.compile(
    rf"cvt(?:\.(?P<mode>rna|r[nzmp]i?))?(?P<flags>(?:\.(?:ftz|sat|satfinite|relu))*)"
    rf"\.(?P<to>{_TYPE})\.(?P<given>{_TYPE})"
)
_INTEGER = re.compile(r"[us]\d+")


def register_code(instruction: Instruction, names: Names) -> str:
    """Return C++ for an instruction of this kind; it is empty for any other instruction."""
    opcode, operands = instruction.opcode, instruction.operands
    if (found := _MOVE.fullmatch(opcode)) and len(operands) == 2:
        return _move(found["type"], *operands, names)
    if found := _CONVERSION.fullmatch(opcode):
        return _conversion(found, operands, names)
    if found := _COMPARISON.fullmatch(opcode):
        return _comparison(found, operands, names)
    for pattern, count in _PATTERNS:
        found = pattern.fullmatch(opcode)
        if found and len(operands) == count + 1:
            return _operation(found, operands, names)
    return ""


def _operation(found: re.Match[str], operands: tuple[str, ...], names: Names) -> str:
    kind, name = found["type"], found["name"].replace(".", "_")
    part = found.groupdict().get("part")
    target = names.target(operands[0])
    if kind == "pred":
        values = [names.predicate(text) for text in operands[1:]]
        code = f"!{values[0]}" if name == "not" else f" {_JOINS.get(name, '')} ".join(values)
        return f"{target} = {code};"
    if kind[0] in "us":
        names.require_bits(*operands)
    flags = found["flags"].split(".")
    typed = _TYPED_OPERANDS.get(name, len(operands))
    values = [
        names.value(text, kind if k < typed else "u32") for k, text in enumerate(operands[1:])
    ]
    types = ", ".join(f"{HOST}{word}" for word in kind.split("."))
    flushes = "ftz" in flags and "f" in kind
    if flushes:
        values = [f"{HOST}flushed<{types}>({value})" for value in values]
    if "NaN" in flags:
        name += "_nan"
    call = f"{HOST}ptx_{name}{'_' + part if part else ''}<{types}>({', '.join(values)})"
    if flushes:
        call = f"{HOST}flushed<{types}>({call})"
    for flag, wrapper in (("sat", "clamped"), ("relu", "relu")):
        if flag in flags:
            call = f"{HOST}{wrapper}_bits<{types}>({call})"
    return f"{target} = {call};"


def _comparison(found: re.Match[str], operands: tuple[str, ...], names: Names) -> str:
    """Set one or two predicates, the second to the opposite, possibly joined with another."""
    kind, joined = found["type"], found["joined"]
    count = len(operands) - 2 - bool(joined)
    if count not in (1, 2):
        return ""
    values = [names.value(text, kind) for text in operands[count : count + 2]]
    if found["flags"]:
        values = [f"{HOST}flushed<{HOST}{kind}>({value})" for value in values]
    also = f" {_JOINS[joined]} {names.predicate(operands[-1])}" if joined else ""
    call = f"const bool cuhost_d = {HOST}setp_{found['name']}<{HOST}{kind}>({', '.join(values)});"
    sets = [f"{names.target(operands[0])} = cuhost_d{also};"]
    if count == 2:
        sets.append(f"{names.target(operands[1])} = !cuhost_d{also};")
    return f"{{ {call} {' '.join(sets)} }}"


def _move(kind: str, to: str, given: str, names: Names) -> str:
    """Move a value, pack several registers into one, or take one apart."""
    parts, wholes = elements(to), elements(given)
    bits = int(kind[1:])
    if len(wholes) > 1:
        width = bits // len(wholes)
        terms = (f"{HOST}piece({names.value(p)}, {width}, {k})" for k, p in enumerate(wholes))
        return f"{names.target(to)} = {' | '.join(terms)};"
    value = names.value(given, kind)
    if len(parts) == 1:
        return f"{names.target(to)} = {value};"
    width = bits // len(parts)
    taken = (f"{names.target(p)} = cuhost_d >> {width * k};" for k, p in enumerate(parts))
    return f"{{ const {HOST}b<64> cuhost_d = {value}; {' '.join(taken)} }}"


def _conversion(found: re.Match[str], operands: tuple[str, ...], names: Names) -> str:
    to, given, mode = found["to"], found["given"], found["mode"] or ""
    flags = set(found["flags"].split(".")) - {""}
    packed = to.endswith("x2")
    if len(operands) != 2 + packed or given.endswith("x2") or given == "tf32":
        return ""
    if packed or to == "tf32" or _INTEGER.fullmatch(to):
        names.require_bits(operands[0])
    values = [names.value(text, given) for text in operands[1:]]
    if "ftz" in flags and given == "f32":
        values = [f"{HOST}flushed<{HOST}f32>({value})" for value in values]
    mode = mode or "rn"
    relu, finite = ("true" if flag in flags else "false" for flag in ("relu", "satfinite"))
    if "satfinite" in flags and to not in ("f16", "bf16", "f16x2", "bf16x2"):
        return ""
    if mode.endswith("i") and to == given and to in ("f32", "f64"):
        call = f"{HOST}whole<{HOST}{to}, '{mode[1]}'>({values[0]})"
    elif to == "tf32":
        if given != "f32" or mode not in ("rn", "rna", "rz"):
            return ""
        call = f"{HOST}to_tf32<'{mode[-1]}', {relu}>({values[0]})"
    elif packed:
        if given != "f32" or mode not in ("rn", "rz"):
            return ""
        options = f"'{mode[1]}', {relu}, {finite}"
        call = f"{HOST}to_pair<{HOST}{to[:-2]}, {options}>({', '.join(values)})"
    else:
        saturated = "true" if "sat" in flags else "false"
        call = f"{HOST}cvt<{HOST}{to}, {HOST}{given}, '{mode[1]}', {saturated}>({values[0]})"
        if finite == "true":
            call = f"{HOST}finite<{HOST}{to}>({call})"
        whole = _INTEGER.fullmatch(to) and not _INTEGER.fullmatch(given)
        if relu == "true" and not whole:
            call = f"{HOST}relu<{HOST}{to}>({call})"
        if mode.endswith("i") and not whole:
            return ""
    return f"{names.target(operands[0])} = {call};"
