"""Instructions that move and convert: ``mov``, ``cvt``, ``cvta``, ``selp``."""

from __future__ import annotations

import re

from pytest_gpuenergy.emulator.ptx.instructions import Instruction
from pytest_gpuenergy.emulator.ptx.names import HOST, Names, elements

_MOVE = re.compile(r"mov\.(?P<type>[busf](?:16|32|64)|pred)")
_ADDRESS = re.compile(r"cvta(?:\.to)?\.(?:global|shared(?:::cta)?)\.u(?:32|64)")
_TYPE = r"(?:[us](?:8|16|32|64)|f16x2|bf16x2|f16|bf16|tf32|f32|f64)"
_CONVERSION = re.compile(
    rf"cvt(?:\.(?P<mode>rna|r[nzmp]i?))?(?P<flags>(?:\.(?:ftz|sat|satfinite|relu))*)"
    rf"\.(?P<to>{_TYPE})\.(?P<given>{_TYPE})"
)
_SELECT = re.compile(r"selp\.(?P<type>[busf](?:16|32|64))")
_INTEGER = re.compile(r"[us]\d+")


def conversions(instruction: Instruction, names: Names) -> str:
    """C++ for the instruction; empty if it is none of these."""
    opcode, operands = instruction.opcode, instruction.operands
    if (found := _MOVE.fullmatch(opcode)) and len(operands) == 2:
        return _move(found["type"], *operands, names)
    if _ADDRESS.fullmatch(opcode) and len(operands) == 2:
        return f"{names.target(operands[0])} = {names.value(operands[1])};"
    if found := _CONVERSION.fullmatch(opcode):
        return _conversion(found, operands, names)
    if (found := _SELECT.fullmatch(opcode)) and len(operands) == 4:
        one, other = (names.value(text, found["type"]) for text in operands[1:3])
        condition = names.predicate(operands[3])
        return f"{names.target(operands[0])} = {condition} ? {one} : {other};"
    return ""


def _move(kind: str, to: str, given: str, names: Names) -> str:
    """Also one that packs several registers into one, or takes one apart."""
    if kind == "pred":
        return f"{names.target(to)} = {names.predicate(given)};"
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
