"""PTX that accesses memory: loads, stores, copies, atomics and bulk copies (TMA)."""

from __future__ import annotations

import re
from collections.abc import Sequence

from pytest_gpuenergy.emulator.translation.ptx.instructions import Instruction
from pytest_gpuenergy.emulator.translation.ptx.operands import HOST, Names, elements

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


def memory_code(instruction: Instruction, names: Names) -> str:
    """Return C++ for an instruction of this kind; it is empty for any other instruction."""
    return (
        _access_code(instruction, names)
        or _atomic_code(instruction, names)
        or _bulk_copy_code(instruction, names)
    )


def _access_code(instruction: Instruction, names: Names) -> str:
    """Return C++ for loads, stores and asynchronous copies, or nothing."""
    opcode, operands = instruction.opcode, instruction.operands
    if found := _COPY.fullmatch(opcode):
        return _copy(found, operands, names)
    if found := _ACCESS.fullmatch(opcode):
        return _access(found, operands, names)
    if _IGNORED.fullmatch(opcode):
        return "(void)0;"
    if _POLICY.fullmatch(opcode) and operands:
        return f"{names.target(operands[0])} = 0;"  # a cache policy changes no result
    if opcode == "cp.async.commit_group" and not operands:
        return "::cuhost::cuhost_commit_copies();"
    if opcode == "cp.async.wait_all" and not operands:
        return "::cuhost::cuhost_commit_copies(); ::cuhost::cuhost_finish_copies(0);"
    if opcode == _WAIT and len(operands) == 1 and names.constant(operands[0]):
        return f"::cuhost::cuhost_finish_copies((size_t){names.value(operands[0])});"
    return ""


def _copy(found: re.Match[str], operands: tuple[str, ...], names: Names) -> str:
    """Translate an asynchronous copy.

    Its operands are to, from, bytes, and possibly the bytes to read or a predicate that ignores the
    source.
    """
    given = operands[: len(operands) - bool(found["hint"])]
    if len(given) not in (3, 4) or not names.constant(given[2]):
        return ""
    to, source = names.address(given[0], shared=True), names.address(given[1], shared=False)
    size, zeros = names.value(given[2]), "0"
    if (
        len(given) == 4
        and not names.constant(given[3])
        and names.register(given[3].lstrip("! "))[1] == 1
    ):
        zeros = f"{names.predicate(given[3])} ? {size} : 0"
    elif len(given) == 4:
        zeros = f"{HOST}left_out({size}, {names.value(given[3])})"
    only = "16" if found["cache"] == "cg" else "4, 8, 16"
    return f"{HOST}copy_later_of<{only}>({to}, {source}, {size}, {zeros});"


def _access(found: re.Match[str], operands: tuple[str, ...], names: Names) -> str:
    modifiers = found["modifiers"].split(".")[1:]
    unknown = set(modifiers) - _STRENGTHS - _SPACES - _SCOPES - _HINTS
    if any(not _LEVEL.fullmatch(modifier) for modifier in unknown):
        return ""
    given = operands[: len(operands) - ("L2::cache_hint" in modifiers)]
    loads, kind, count = found["name"] == "ld", found["type"], int(found["count"] or 1)
    strength = next((name for name in modifiers if name in _STRENGTHS), "weak")
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


_ATOMIC = re.compile(
    r"(?P<name>atom|red)(?P<modifiers>(?:\.(?:L2|shared)::\w+|\.[a-z]+)*)"
    r"\.(?P<type>[bus](?:32|64)|f32|f64|f16x2|bf16x2|f16|bf16)"
)
_ORDERS = frozenset(("relaxed", "acquire", "release", "acq_rel"))
_IGNORED_MODIFIERS = frozenset(
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


def _atomic_code(instruction: Instruction, names: Names) -> str:
    """Return C++ for ``atom`` and ``red``, or nothing."""
    found = _ATOMIC.fullmatch(instruction.opcode)
    if found is None:
        return ""
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
    operands = instruction.operands
    given = operands[: len(operands) - ("L2::cache_hint" in modifiers)]
    if len(given) != 2 + returns + (operation == "cas"):
        return ""
    place, *values = given[returns:]
    (order,) = orders or {"relaxed"}
    arguments = [names.address_in(place, modifiers), *(names.value(text, kind) for text in values)]
    call = f"{HOST}atom_{operation}<{HOST}{kind}, {HOST}order_{order}>({', '.join(arguments)})"
    return f"{names.target(given[0])} = {call};" if returns else f"(void){call};"


_LOAD = re.compile(
    r"cp\.async\.bulk(?:\.tensor\.(?P<rank>[1-5])d)?\.shared::(?:cluster|cta)\.global"
    r"(?P<tile>\.tile)?\.mbarrier::complete_tx::bytes(?P<multicast>\.multicast::cluster)?"
    r"(?P<hint>\.L2::cache_hint)?"
)
_STORE = re.compile(
    r"cp\.async\.bulk(?:\.tensor\.(?P<rank>[1-5])d)?\.global\.shared::cta"
    r"(?P<tile>\.tile)?\.bulk_group(?P<hint>\.L2::cache_hint)?"
)
_BULK_WAIT = re.compile(r"cp\.async\.bulk\.wait_group(?:\.read)?")
_PREFETCH = re.compile(
    r"prefetch(?:\.param|\.const)?\.tensormap|cp\.async\.bulk\.prefetch(?:\.tensor\.[1-5]d)?\.L2"
    r"\.global(?:\.tile)?(?:\.L2::cache_hint)?"
)
_TILE = re.compile(r"\[\s*(?P<map>[^,\]]+?)\s*,\s*(?P<corner>\{[^}]*\}|[^,\]]+?)\s*\]")


def _bulk_copy_code(instruction: Instruction, names: Names) -> str:
    """Return C++ for ``cp.async.bulk``, also of tiles of tensors, or nothing."""
    opcode, operands = instruction.opcode, instruction.operands
    if found := _LOAD.fullmatch(opcode) or _STORE.fullmatch(opcode):
        given = list(operands[: len(operands) - bool(found["hint"])])
        if bool(found["tile"]) > bool(found["rank"]):
            return ""
        loads = ".mbarrier" in opcode
        blocks = ""  # the mask of the blocks of the cluster to which a load goes
        if loads and found["multicast"]:
            blocks = given.pop() if given else ""
        rank, mask = int(found["rank"] or 0), f"(unsigned){names.value(blocks)}" if blocks else "0"
        return (
            _tile(rank, given, names, mask, loads=loads)
            if rank
            else _bytes(given, names, mask, loads=loads)
        )
    if opcode == "cp.async.bulk.commit_group" and not operands:
        return f"{HOST}bulk_commit();"
    if _BULK_WAIT.fullmatch(opcode) and len(operands) == 1 and names.constant(operands[0]):
        return f"{HOST}bulk_wait({names.value(operands[0])});"
    if _PREFETCH.fullmatch(opcode):
        return "(void)0;"
    return ""


def _bytes(given: Sequence[str], names: Names, blocks: str, *, loads: bool) -> str:
    """Translate a copy of bytes, whose operands are to, from, bytes, and the barrier of a load."""
    if len(given) != 3 + loads:
        return ""
    to = names.address(given[0], shared=loads)
    source = names.address(given[1], shared=not loads)
    arguments = [to, source, f"(unsigned){names.value(given[2])}"]
    if loads:
        arguments += [_barrier(given[3], names), blocks]
    return f"{HOST}bulk_{'load' if loads else 'store'}({', '.join(arguments)});"


def _tile(rank: int, given: Sequence[str], names: Names, blocks: str, *, loads: bool) -> str:
    """Translate a copy of a tile: to, tile and barrier of a load, or tile and from of a store."""
    if len(given) != 2 + loads:
        return ""
    tile = _TILE.fullmatch(given[loads])
    corner = elements(tile["corner"]) if tile else []
    if tile is None or len(corner) != rank:
        return ""
    shared = names.address(given[not loads], shared=True)
    arguments = [names.address(f"[{tile['map']}]", shared=False), str(rank), "cuhost_d"]
    if loads:
        arguments = [shared, *arguments, _barrier(given[2], names), blocks]
    else:
        arguments.append(shared)
    places = ", ".join(f"(int){names.value(text)}" for text in corner)
    call = f"{HOST}tile_{'load' if loads else 'store'}({', '.join(arguments)});"
    return f"{{ const int cuhost_d[] = {{{places}}}; {call} }}"


def _barrier(text: str, names: Names) -> str:
    return f"{HOST}word({names.address(text, shared=True)})"
