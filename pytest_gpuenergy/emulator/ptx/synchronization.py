"""Instructions by which threads branch, wait for one another or order their accesses."""

from __future__ import annotations

import re

from pytest_gpuenergy.emulator.ptx.instructions import Instruction
from pytest_gpuenergy.emulator.ptx.names import HOST, Names

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


def synchronization(instruction: Instruction, names: Names) -> str:
    """C++ for the instruction; empty if it is none of these."""
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
