"""PTX that accesses memory: loads, stores, copies, atomics and tiles of tensors (TMA)."""

from __future__ import annotations

import re

from pytest_gpuenergy.emulator.translation.ptx.instructions import Instruction
from pytest_gpuenergy.emulator.translation.ptx.ptx_operands import HOST, Names, elements

_COPY = re.compile(
    r"cp\.async\.(?P<cache>ca|cg)\.shared(?:::cta)?\.global"
    r"(?:\.L2::(?:64|128|256)B)?"
)
_ACCESS = re.compile(
    r"(?P<name>ld|st)(?P<modifiers>(?:\.(?:L1|L2|shared)::\w+|\.[a-z]+)*?)"
    r"(?:\.v(?P<count>[248]))?\.(?P<type>[busf](?:8|16|32|64))"
)
_STRENGTHS = frozenset(("volatile", "weak", "relaxed", "acquire", "release"))
_SPACES = frozenset(("global", "shared", "shared::cta", "shared::cluster"))
_SCOPES = frozenset(("cta", "cluster", "gpu", "sys"))
_HINTS = frozenset(("nc", "ca", "cg", "cs", "lu", "cv", "wb", "wt", "mmio"))
_LEVEL = re.compile(r"L[12]::(?:evict_\w+|no_allocate|64B|128B|256B)")
_WIDEST_BITS = 128
_ATOMIC = re.compile(
    r"(?P<name>atom|red)(?P<modifiers>(?:\.(?:L2|shared)::\w+|\.[a-z]+)*)"
    r"\.(?P<type>[bus](?:32|64)|f32|f64|f16x2|bf16x2|f16|bf16)"
)
_ORDERS = frozenset(("relaxed", "acquire", "release", "acq_rel"))
_IGNORED_MODIFIERS = _SPACES | _SCOPES | {"noftz"}
_OPERATIONS = {
    **dict.fromkeys(("add", "min", "max"), "us"),
    **dict.fromkeys(("and", "or", "xor", "exch", "cas"), "b"),
    **dict.fromkeys(("inc", "dec"), "u"),
}
_TILE_LOAD = re.compile(
    r"cp\.async\.bulk\.tensor\.(?P<rank>[1-5])d\.shared::(?:cluster|cta)\.global"
    r"(?:\.tile|(?P<im2col>\.im2col))?\.mbarrier::complete_tx::bytes(?P<multicast>\.multicast::cluster)?"
)
_TILE_STORE = re.compile(
    r"cp\.async\.bulk\.tensor\.(?P<rank>[1-5])d\.global\.shared::cta(?:\.tile)?\.bulk_group"
)
_TILE = re.compile(r"\[\s*(?P<map>[^,\]]+?)\s*,\s*(?P<corner>\{[^}]*\}|[^,\]]+?)\s*\]")


def memory_code(instruction: Instruction, names: Names) -> str:
    """Return C++ for an instruction that accesses memory; it is empty for any other."""
    opcode, operands = instruction.opcode, instruction.operands
    if found := _COPY.fullmatch(opcode):
        return _copy_code(found, operands, names)
    if found := _ACCESS.fullmatch(opcode):
        return _access_code(found, operands, names)
    if found := _ATOMIC.fullmatch(opcode):
        return _atomic_code(found, operands, names)
    if found := _TILE_LOAD.fullmatch(opcode) or _TILE_STORE.fullmatch(opcode):
        return _tile_code(found, operands, names)
    return ""


def _copy_code(found: re.Match[str], operands: tuple[str, ...], names: Names) -> str:
    """Return C++ for an asynchronous copy.

    The operands are the destination, the source, the number of bytes, and possibly a fourth: how
    many bytes to read (the rest become zero), or a predicate under which the source is ignored.
    """
    if len(operands) not in (3, 4) or not names.constant(operands[2]):
        return ""
    to, source = names.address(operands[0], shared=True), names.address(operands[1], shared=False)
    size, zeros = names.value(operands[2]), "0"
    if len(operands) == 4:
        last = operands[3]
        if not names.constant(last) and names.register(last.lstrip("! "))[1] == 1:
            zeros = f"{names.predicate(last)} ? {size} : 0"
        else:
            zeros = f"{HOST}left_out({size}, {names.value(last)})"
    only = "16" if found["cache"] == "cg" else "4, 8, 16"
    return f"{HOST}copy_later_of<{only}>({to}, {source}, {size}, {zeros});"


def _access_code(found: re.Match[str], operands: tuple[str, ...], names: Names) -> str:
    modifiers = found["modifiers"].split(".")[1:]
    unknown = set(modifiers) - _STRENGTHS - _SPACES - _SCOPES - _HINTS
    if any(not _LEVEL.fullmatch(modifier) for modifier in unknown):
        return ""
    loads, kind, count = found["name"] == "ld", found["type"], int(found["count"] or 1)
    strength = next((name for name in modifiers if name in _STRENGTHS), "weak")
    if len(operands) != 2 or strength == ("release" if loads else "acquire"):
        return ""
    if loads and strength == "weak" and "nc" in modifiers:
        strength = "nc"
    place, vector = reversed(operands) if loads else operands
    registers = elements(vector)
    if len(registers) != count or int(kind[1:]) * count > _WIDEST_BITS:
        return ""
    address = names.host_address(place, modifiers)
    function = f"{'load' if loads else 'store'}_{strength}<{HOST}{kind}, {count}>"
    if loads:
        targets = [names.target(text) for text in registers]
        taken = " ".join(f"{target} = cuhost_d.at({k});" for k, target in enumerate(targets))
        return f"{{ const auto cuhost_d = {HOST}{function}({address}); {taken} }}"
    values = ", ".join(names.value(text, kind) for text in registers)
    return f"{HOST}{function}({address}, {values});"


def _atomic_code(found: re.Match[str], operands: tuple[str, ...], names: Names) -> str:
    modifiers, kind = set(found["modifiers"].split(".")) - {""}, found["type"]
    orders, operations = modifiers & _ORDERS, modifiers & _OPERATIONS.keys()
    if (
        len(operations) != 1
        or len(orders) > 1
        or modifiers - orders - operations - _IGNORED_MODIFIERS
    ):
        return ""
    (operation,) = operations
    real = kind[0] == "f" or kind.startswith("bf")
    if real != (operation == "add" and kind[0] not in "us") or (
        not real and kind[0] not in _OPERATIONS[operation]
    ):
        return ""
    returns = found["name"] == "atom"
    if len(operands) != 2 + returns + (operation == "cas"):
        return ""
    place, *values = operands[returns:]
    (order,) = orders or {"relaxed"}
    arguments = [
        names.host_address(place, modifiers),
        *(names.value(text, kind) for text in values),
    ]
    call = f"{HOST}atom_{operation}<{HOST}{kind}, {HOST}order_{order}>({', '.join(arguments)})"
    return f"{names.target(operands[0])} = {call};" if returns else f"(void){call};"


def _tile_code(found: re.Match[str], operands: tuple[str, ...], names: Names) -> str:
    """Return C++ for a bulk copy of a tile of a tensor, or of pixels by im2col.

    The operands of a load are the destination, the tile, the barrier, the offsets of im2col if any,
    and possibly a mask of the cluster's blocks that receive it; those of a store are the tile and
    the source.
    """
    groups, rank = found.groupdict(), int(found["rank"])
    loads, multicast = "multicast" in groups, bool(groups.get("multicast"))
    im2col = bool(groups.get("im2col"))
    if len(operands) != 2 + loads + im2col + multicast:
        return ""
    tile = _TILE.fullmatch(operands[loads])
    corner = elements(tile["corner"]) if tile else []
    offsets = elements(operands[3]) if im2col else []
    if tile is None or len(corner) != rank or len(offsets) != (rank - 2 if im2col else 0):
        return ""
    if any(not names.constant(text) and names.register(text)[1] != 16 for text in offsets):
        return ""
    shared = names.address(operands[not loads], shared=True)
    arguments = [names.address(f"[{tile['map']}]", shared=False), found["rank"], "cuhost_d"]
    if im2col:
        arguments.append(f"cuhost_d + {rank}")
    if loads:
        barrier = f"{HOST}word({names.address(operands[2], shared=True)})"
        blocks = f"(unsigned){names.value(operands[-1])}" if multicast else "0"
        arguments = [shared, *arguments, barrier, blocks]
    else:
        arguments.append(shared)
    places = [f"(int){names.value(text)}" for text in corner]
    places += [f"(int){names.value(text)}" for text in offsets]
    name = "im2col_load" if im2col else f"tile_{'load' if loads else 'store'}"
    call = f"{HOST}{name}({', '.join(arguments)});"
    return f"{{ const int cuhost_d[] = {{{', '.join(places)}}}; {call} }}"
