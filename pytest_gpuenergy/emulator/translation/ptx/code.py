"""The C++ that replaces a parsed asm statement."""

from __future__ import annotations

from dataclasses import replace

from pytest_gpuenergy.emulator.translation.ptx.arithmetic import register_code
from pytest_gpuenergy.emulator.translation.ptx.forms import form_code
from pytest_gpuenergy.emulator.translation.ptx.instructions import (
    Label,
    Part,
    Registers,
    RegisterScope,
    parsed,
)
from pytest_gpuenergy.emulator.translation.ptx.matrices import matrix_code
from pytest_gpuenergy.emulator.translation.ptx.memory_access import memory_code
from pytest_gpuenergy.emulator.translation.ptx.ptx_operands import BITS, HOST, Names
from pytest_gpuenergy.emulator.translation.ptx.statements import Statement, UnsupportedError

_HINT = ".L2::cache_hint"


def statement_code(statement: Statement) -> str:
    """Return an expression of type void that does what the statement does."""
    operands = statement.operands
    names = Names(operands)
    parts = list(parsed(statement.template))
    names.label([part.name for part in parts if isinstance(part, Label)])
    body = [_part(part, names) for part in parts]
    if names.depth:
        raise UnsupportedError("asm with a brace that nothing closes")
    if not body and not operands:
        return "((void)0)"
    before = [names.labels]
    for number, operand in enumerate(operands):  # a variable for the register of each
        variable, expression = f"cuhost_r{number}", operand.expression.strip()
        if operand.constraint == "n":
            before.append(f"constexpr auto {variable} = (long long)({expression});")
            continue
        register = f"{HOST}b<{BITS[operand.constraint]}>"
        taken = f"{HOST}operand<{register}>"
        if not operand.access:
            before.append(f"const {register} {variable} = {taken}({expression});")
            continue
        value = f" = {taken}(cuhost_o{number})" if operand.access == "+" else ""
        before.append(f"auto& cuhost_o{number} = ({expression}); {register} {variable}{value};")
    return f"__extension__ ({{ {' '.join([*before, *body, names.write_back()])} (void)0; }})"


def _part(part: Part, names: Names) -> str:
    if isinstance(part, Label):
        return f"{names.jump(part.name)}:;"
    if isinstance(part, RegisterScope):
        names.open() if part.opens else names.close()
        return "{" if part.opens else "}"
    if isinstance(part, Registers):
        return names.declare(part)
    plain = part
    if _HINT in part.opcode:  # a cache policy, the last operand, changes no result
        opcode, operands = part.opcode.replace(_HINT, ""), part.operands[:-1]
        plain = replace(part, opcode=opcode, operands=operands)
    code = (
        memory_code(plain, names)
        or register_code(plain, names)
        or matrix_code(plain, names)
        or form_code(plain, names)
    )
    if not code:
        raise UnsupportedError(part.text)
    if not part.guard:
        return code
    return f"if ({names.predicate('!' * part.negated + part.guard)}) {{ {code} }}"
