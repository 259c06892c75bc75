"""Bulk copies between global and shared memory, also of tiles of tensors: ``cp.async.bulk``."""

from __future__ import annotations

import re
from collections.abc import Sequence

from pytest_gpuenergy.emulator.ptx.instructions import Instruction
from pytest_gpuenergy.emulator.ptx.names import HOST, Names, elements

_LOAD = re.compile(
    r"cp\.async\.bulk(?:\.tensor\.(?P<rank>[1-5])d)?\.shared::(?:cluster|cta)\.global"
    r"(?P<tile>\.tile)?\.mbarrier::complete_tx::bytes(?P<multicast>\.multicast::cluster)?"
    r"(?P<hint>\.L2::cache_hint)?"
)
_STORE = re.compile(
    r"cp\.async\.bulk(?:\.tensor\.(?P<rank>[1-5])d)?\.global\.shared::cta"
    r"(?P<tile>\.tile)?\.bulk_group(?P<hint>\.L2::cache_hint)?"
)
_WAIT = re.compile(r"cp\.async\.bulk\.wait_group(?:\.read)?")
_IGNORED = re.compile(
    r"prefetch(?:\.param|\.const)?\.tensormap|cp\.async\.bulk\.prefetch(?:\.tensor\.[1-5]d)?\.L2"
    r"\.global(?:\.tile)?(?:\.L2::cache_hint)?"
)
_TILE = re.compile(r"\[\s*(?P<map>[^,\]]+?)\s*,\s*(?P<corner>\{[^}]*\}|[^,\]]+?)\s*\]")


def bulk_copies(instruction: Instruction, names: Names) -> str:
    """C++ for the instruction; empty if it is none of these."""
    opcode, operands = instruction.opcode, instruction.operands
    if found := _LOAD.fullmatch(opcode) or _STORE.fullmatch(opcode):
        given = list(operands[: len(operands) - bool(found["hint"])])
        if bool(found["tile"]) > bool(found["rank"]):
            return ""
        loads = ".mbarrier" in opcode
        blocks = ""  # of the cluster, to which a load goes
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
    if _WAIT.fullmatch(opcode) and len(operands) == 1 and names.constant(operands[0]):
        return f"{HOST}bulk_wait({names.value(operands[0])});"
    if _IGNORED.fullmatch(opcode):
        return "(void)0;"
    return ""


def _bytes(given: Sequence[str], names: Names, blocks: str, *, loads: bool) -> str:
    """To, from, number of bytes, and of a load the barrier."""
    if len(given) != 3 + loads:
        return ""
    to = names.address(given[0], shared=loads)
    source = names.address(given[1], shared=not loads)
    arguments = [to, source, f"(unsigned){names.value(given[2])}"]
    if loads:
        arguments += [_barrier(given[3], names), blocks]
    return f"{HOST}bulk_{'load' if loads else 'store'}({', '.join(arguments)});"


def _tile(rank: int, given: Sequence[str], names: Names, blocks: str, *, loads: bool) -> str:
    """Of a load: to, the tensor's tile, the barrier; of a store: the tile, from."""
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
    places = ", ".join(f"(int){names.value(one)}" for one in corner)
    call = f"{HOST}tile_{'load' if loads else 'store'}({', '.join(arguments)});"
    return f"{{ const int cuhost_d[] = {{{places}}}; {call} }}"


def _barrier(text: str, names: Names) -> str:
    return f"{HOST}word({names.address(text, shared=True)})"
