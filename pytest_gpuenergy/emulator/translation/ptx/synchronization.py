"""PTX by which threads branch, wait, order their accesses and exchange values."""

from __future__ import annotations

import re

from pytest_gpuenergy.emulator.translation.ptx.instructions import Instruction
from pytest_gpuenergy.emulator.translation.ptx.operands import HOST, Names

_FENCE = re.compile(
    r"membar\.(?P<level>cta|gl|sys)|fence(?:\.(?:sc|acq_rel|acquire|release))?\.(?P<scope>cta|cluster|gpu|sys)"
)
_BRANCH = re.compile(r"bra(?:\.uni)?")
_REGISTERS = re.compile(r"setmaxnreg\.(?:inc|dec)\.sync\.aligned\.u32")
_ARRIVAL = re.compile(r"(?:bar|barrier)(?:\.cta)?\.arrive(?:\.aligned)?")
_PROXY = re.compile(r"fence\.proxy\.async(?:\.(?:global|shared::(?:cta|cluster)))?")
_BARRIER = re.compile(r"(?:bar|barrier)(?:\.cta)?\.sync(?:\.aligned)?")
_CLUSTER_ARRIVAL = re.compile(
    r"barrier\.cluster\.arrive(?:\.(?:release|(?P<relaxed>relaxed)))?(?:\.aligned)?"
)
_CLUSTER_WAIT = re.compile(r"barrier\.cluster\.wait(?:\.acquire)?(?:\.aligned)?")


def synchronization_code(instruction: Instruction, names: Names) -> str:
    """Return C++ for an instruction of this kind; it is empty for any other instruction."""
    return (
        _barrier_code(instruction, names)
        or _warp_code(instruction, names)
        or _mbarrier_code(instruction, names)
    )


def _barrier_code(instruction: Instruction, names: Names) -> str:
    """Return C++ for branches, fences and barriers, or nothing."""
    opcode, operands = instruction.opcode, instruction.operands
    if found := _FENCE.fullmatch(opcode):
        block = "cta" in (found["level"], found["scope"])
        return f"{HOST}thread_fence({'false' if block else 'true'});"
    if _BARRIER.fullmatch(opcode) and len(operands) in (1, 2):
        values = ", ".join(names.value(operand) for operand in operands)
        return f"{HOST}bar_sync(__LINE__, {values});"
    if _ARRIVAL.fullmatch(opcode) and len(operands) == 2:
        number, threads = (f"(unsigned){names.value(operand)}" for operand in operands)
        return f"::cuhost::cuhost_named_barrier({number}, {threads}, false);"
    if (found := _CLUSTER_ARRIVAL.fullmatch(opcode)) and not operands:
        return f"::cuhost::cuhost_cluster_arrive({'false' if found['relaxed'] else 'true'});"
    if _CLUSTER_WAIT.fullmatch(opcode) and not operands:
        return "::cuhost::cuhost_cluster_wait();"
    if opcode == "mapa.shared::cluster.u32" and len(operands) == 3:
        address, rank = (f"(unsigned){names.value(operand)}" for operand in operands[1:])
        return f"{names.target(operands[0])} = ::cuhost::cuhost_map_shared({address}, {rank});"
    if opcode == "mapa.u64" and len(operands) == 3:
        address, rank = (names.value(operand) for operand in operands[1:])
        call = f"::cuhost::cuhost_map_shared_rank((const void*){address}, (unsigned){rank})"
        return f"{names.target(operands[0])} = (unsigned long long){call};"
    if opcode in ("getctarank.shared::cluster.u32", "getctarank.u64") and len(operands) == 2:
        place = f"(const void*)(unsigned long long){names.value(operands[1])}"
        if "shared" in opcode:
            place = f"::cuhost::cuhost_cluster_place({place})"
        return f"{names.target(operands[0])} = ::cuhost::cuhost_shared_rank({place});"
    if _PROXY.fullmatch(opcode) and not operands:
        return f"{HOST}proxy_fence();"
    if _BRANCH.fullmatch(opcode) and len(operands) == 1:
        return f"::cuhost::cuhost_turn(); goto {names.jump(operands[0])};"
    if _REGISTERS.fullmatch(opcode) and len(operands) == 1 and names.constant(operands[0]):
        return "(void)0;"
    if opcode == "fence.mbarrier_init.release.cluster" and not operands:
        return "(void)0;"  # of barriers in other blocks' shared memory
    if opcode in ("griddepcontrol.wait", "griddepcontrol.launch_dependents") and not operands:
        return "(void)0;"  # launches follow one another
    if opcode == "bar.warp.sync" and len(operands) == 1:
        return f"{HOST}warp_barrier({names.value(operands[0])});"
    if opcode == "nanosleep.u32" and len(operands) == 1:
        return "::cuhost::cuhost_nap();"
    return ""


_SPACE = r"(?P<shared>\.shared(?:::(?:cta|(?P<cluster>cluster)))?)?\.b64"
_MBARRIER_PLAIN = re.compile(
    rf"mbarrier\.(?P<name>init|inval|expect_tx|complete_tx)(?:\.relaxed\.(?:cta|cluster))?{_SPACE}"
)
_MBARRIER_ARRIVAL = re.compile(
    rf"mbarrier\.arrive(?P<drop>_drop)?(?P<expects>\.expect_tx)?"
    rf"(?:\.release\.(?:cta|cluster))?{_SPACE}"
)
_MBARRIER_WAIT = re.compile(
    rf"mbarrier\.(?:test|(?P<tries>try))_wait(?P<parity>\.parity)?"
    rf"(?:\.acquire\.(?:cta|cluster))?{_SPACE}"
)
# The number of operands, and the name of the host's function.
_PLAIN_CALLS = {
    "init": (2, "init"),
    "inval": (1, "inval"),
    "expect_tx": (2, "expect"),
    "complete_tx": (2, "complete"),
}


def _mbarrier_code(instruction: Instruction, names: Names) -> str:
    """Return C++ for barriers in shared memory, or nothing."""
    opcode, operands = instruction.opcode, instruction.operands
    if found := _MBARRIER_PLAIN.fullmatch(opcode):
        count, name = _PLAIN_CALLS[found["name"]]
        if len(operands) != count:
            return ""
        return _call(name, operands[0], operands[1:], names, shared=bool(found["shared"])) + ";"
    if found := _MBARRIER_ARRIVAL.fullmatch(opcode):
        return _arrival(found, operands, names)
    if (found := _MBARRIER_WAIT.fullmatch(opcode)) and len(operands) in (
        3,
        3 + bool(found["tries"]),
    ):
        name = "wait_parity" if found["parity"] else "wait"
        call = _call(name, operands[1], operands[2:3], names, shared=bool(found["shared"]))
        return f"{names.target(operands[0])} = {call};"
    return ""


def _arrival(found: re.Match[str], operands: tuple[str, ...], names: Names) -> str:
    """Translate an arrival: state, barrier, and then bytes or possibly the number of arrivals."""
    given = operands[2:] if found["expects"] or len(operands) == 3 else ("1",)
    if len(operands) not in (2, 3) or len(given) != 1:
        return ""
    if found["cluster"] and operands[0] == "_" and not (found["drop"] or found["expects"]):
        # The barrier may belong to another block of the cluster.
        return _call("arrive_in_cluster", operands[1], given, names, shared=True) + ";"
    drop = "true" if found["drop"] else "false"
    name = f"{'arrive_expect' if found['expects'] else 'arrive'}<{drop}>"
    call = _call(name, operands[1], given, names, shared=bool(found["shared"]))
    return f"{names.target(operands[0])} = {call};"


def _call(name: str, place: str, values: tuple[str, ...], names: Names, *, shared: bool) -> str:
    arguments = [names.address(place, shared=shared), *(names.value(text) for text in values)]
    return f"{HOST}mbarrier_{name}({', '.join(arguments)})"


_SHUFFLE = re.compile(r"shfl\.sync\.(?P<mode>up|down|bfly|idx)\.b32")
_VOTE = re.compile(r"vote\.sync\.(?P<mode>all|any|uni|ballot)\.(?:pred|b32)")
_REDUCTION = re.compile(r"redux\.sync\.(?P<name>add|min|max|and|or|xor)\.(?P<type>[usb]32)")


def _warp_code(instruction: Instruction, names: Names) -> str:
    """Return C++ for exchanges and votes of the lanes of a warp, or nothing."""
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
