"""C++ for the host in place of an asm statement."""

from __future__ import annotations

from pytest_gpuenergy.emulator.translation.ptx.arithmetic import arithmetic, conversions
from pytest_gpuenergy.emulator.translation.ptx.instructions import (
    Label,
    Part,
    Registers,
    Scope,
    parsed,
)
from pytest_gpuenergy.emulator.translation.ptx.matrices import matrices, warpgroups
from pytest_gpuenergy.emulator.translation.ptx.memory_access import atomics, bulk_copies, memory
from pytest_gpuenergy.emulator.translation.ptx.operands import BITS, HOST, Names
from pytest_gpuenergy.emulator.translation.ptx.statements import (
    Operand,
    Statement,
    UnsupportedError,
)
from pytest_gpuenergy.emulator.translation.ptx.synchronization import (
    barriers,
    synchronization,
    warps,
)

NOTHING = "((void)0)"
"""What stands for a statement without instructions."""

_KINDS = (
    *(memory, matrices, conversions, synchronization, arithmetic, atomics, warps),
    *(warpgroups, barriers, bulk_copies),
)


def code_of(statement: Statement) -> str:
    """An expression of type void that does what the statement does.

    Raises:
        UnsupportedError: the emulated GPU cannot run it.
    """
    operands = statement.operands
    names = Names(operands)
    parts = list(parsed(statement.template))
    labels = [part.name for part in parts if isinstance(part, Label)]
    names.label(labels)
    body = [_part(part, names) for part in parts]
    if names.depth:
        raise UnsupportedError("asm with a brace that nothing closes")
    if not body and not operands:
        return NOTHING
    before = [names.labels, *(_taken(k, operand) for k, operand in enumerate(operands))]
    return f"__extension__ ({{ {' '.join([*before, *body, names.write_back()])} (void)0; }})"


def _taken(number: int, operand: Operand) -> str:
    """The declaration of the variable that stands for an operand's register."""
    variable, expression = f"cuhost_r{number}", operand.expression.strip()
    if operand.constraint == "n":
        return f"constexpr auto {variable} = (long long)({expression});"
    register = f"{HOST}b<{BITS[operand.constraint]}>"
    taken = f"{HOST}operand<{register}>"
    if not operand.access:
        return f"const {register} {variable} = {taken}({expression});"
    place = f"auto& cuhost_o{number} = ({expression});"
    value = f" = {taken}(cuhost_o{number})" if operand.access == "+" else ""
    return f"{place} {register} {variable}{value};"


def _part(part: Part, names: Names) -> str:
    if isinstance(part, Label):
        return f"{names.jump(part.name)}:;"
    if isinstance(part, Scope):
        names.open() if part.opens else names.close()
        return "{" if part.opens else "}"
    if isinstance(part, Registers):
        return names.declare(part)
    for kind in _KINDS:
        if code := kind(part, names):
            break
    else:
        raise UnsupportedError(part.text)
    if not part.guard:
        return code
    return f"if ({names.predicate('!' * part.negated + part.guard)}) {{ {code} }}"
