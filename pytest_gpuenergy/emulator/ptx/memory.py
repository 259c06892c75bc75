"""Instructions that load, store and copy."""

from __future__ import annotations

import re

from pytest_gpuenergy.emulator.ptx.instructions import Instruction
from pytest_gpuenergy.emulator.ptx.names import HOST, Names, elements

_COPY = re.compile(
    r"cp\.async\.(?P<cache>ca|cg)\.shared(?:::cta)?\.global"
    r"(?P<hint>\.L2::cache_hint)?(?:\.L2::(?:64|128|256)B)?"
)
_ACCESS = re.compile(
    r"(?P<name>ld|st)(?P<modifiers>(?:\.(?:L1|L2|shared)::\w+|\.[a-z]+)*?)"
    r"(?:\.v(?P<count>[248]))?\.(?P<type>[busf](?:8|16|32|64))"
)
_STRENGTHS = frozenset(("volatile", "weak", "relaxed", "acquire", "release"))
_SPACES = frozenset(("global", "shared", "shared::cta", "shared::cluster"))
_SCOPES = frozenset(("cta", "cluster", "gpu", "sys"))
_HINTS = frozenset(("nc", "ca", "cg", "cs", "lu", "cv", "wb", "wt", "mmio"))
_LEVEL = re.compile(r"L[12]::(?:evict_\w+|no_allocate|64B|128B|256B|cache_hint)")
_IGNORED = re.compile(
    r"prefetch(?:u|\.global|\.local)?\.(?:L1|L2)(?:::evict_\w+)?|discard\.global\.L2"
    r"|applypriority\.global\.L2::evict_normal"
)
_POLICY = re.compile(r"createpolicy\.(?:fractional|range|cvt)\..*b64")
_WIDEST_BITS = 128
_WAIT = "cp.async.wait_group"


def memory(instruction: Instruction, names: Names) -> str:
    """C++ for the instruction; empty if it is none of these."""
    opcode, operands = instruction.opcode, instruction.operands
    if found := _COPY.fullmatch(opcode):
        return _copy(found, operands, names)
    if found := _ACCESS.fullmatch(opcode):
        return _access(found, operands, names)
    if _IGNORED.fullmatch(opcode):
        return "(void)0;"
    if _POLICY.fullmatch(opcode) and operands:
        return f"{names.target(operands[0])} = 0;"  # of a cache, which makes no difference
    if opcode == "cp.async.commit_group" and not operands:
        return "::cuhost::cuhost_commit_copies();"
    if opcode == "cp.async.wait_all" and not operands:
        return "::cuhost::cuhost_commit_copies(); ::cuhost::cuhost_finish_copies(0);"
    if opcode == _WAIT and len(operands) == 1 and names.constant(operands[0]):
        return f"::cuhost::cuhost_finish_copies((size_t){names.value(operands[0])});"
    return ""


def _copy(found: re.Match[str], operands: tuple[str, ...], names: Names) -> str:
    """A copy: to, from, bytes, and then bytes to read or a predicate that ignores the source."""
    given = operands[: len(operands) - bool(found["hint"])]
    if len(given) not in (3, 4) or not names.constant(given[2]):
        return ""
    to, source = names.address(given[0], shared=True), names.address(given[1], shared=False)
    size, zeros = names.value(given[2]), "0"
    if len(given) == 4 and not names.constant(given[3]) and names.register(_bare(given[3]))[1] == 1:
        zeros = f"{names.predicate(given[3])} ? {size} : 0"
    elif len(given) == 4:
        zeros = f"{HOST}left_out({size}, {names.value(given[3])})"
    only = "16" if found["cache"] == "cg" else "4, 8, 16"
    return f"{HOST}copy_later_of<{only}>({to}, {source}, {size}, {zeros});"


def _bare(text: str) -> str:
    return text.lstrip("! ")


def _access(found: re.Match[str], operands: tuple[str, ...], names: Names) -> str:
    modifiers = found["modifiers"].split(".")[1:]
    unknown = set(modifiers) - _STRENGTHS - _SPACES - _SCOPES - _HINTS
    if any(not _LEVEL.fullmatch(modifier) for modifier in unknown):
        return ""
    given = operands[: len(operands) - ("L2::cache_hint" in modifiers)]
    loads, kind, count = found["name"] == "ld", found["type"], int(found["count"] or 1)
    strength = next((one for one in modifiers if one in _STRENGTHS), "weak")
    if len(given) != 2 or strength == ("release" if loads else "acquire"):
        return ""
    place, vector = (given[1], given[0]) if loads else given
    registers = elements(vector)
    if len(registers) != count or int(kind[1:]) * count > _WIDEST_BITS:
        return ""
    address = names.address_in(place, modifiers)
    function = f"{'load' if loads else 'store'}_{strength}<{HOST}{kind}, {count}>"
    if loads:
        targets = [names.target(text) for text in registers]
        taken = " ".join(f"{target} = cuhost_d.at({k});" for k, target in enumerate(targets))
        return f"{{ const auto cuhost_d = {HOST}{function}({address}); {taken} }}"
    values = ", ".join(names.value(text, kind) for text in registers)
    return f"{HOST}{function}({address}, {values});"
