"""What the operands of PTX instructions are in C++."""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence

from pytest_gpuenergy.devices.emulated.ptx.instructions import Registers
from pytest_gpuenergy.devices.emulated.ptx.refusals import UnsupportedError
from pytest_gpuenergy.devices.emulated.ptx.statements import Operand

HOST = "::cuhost::cuhost_"
"""Before the names of ``cuda/host``, which no macro of a text has."""

BITS = {"r": 32, "f": 32, "h": 16, "l": 64, "d": 64, "n": 64}
"""Of a register, by the letter of its constraint."""

_SPECIAL = re.compile(
    r"%(tid|ntid|ctaid|nctaid)\.([xyz])|%(laneid|warpid|smid|clock|clock64|globaltimer"
    r"|lanemask_(?:eq|le|lt|ge|gt))"
)
_INTEGER = re.compile(r"(-?)(0[xX][\da-fA-F]+|0[bB][01]+|\d+)U?")
_EXACT = re.compile(r"0(?:[fF]([\da-fA-F]{8})|[dD]([\da-fA-F]{16}))")
_REAL = re.compile(r"-?(?:\d+\.\d*|\.\d+|\d+)(?:[eE][+-]?\d+)?")
_SUM = re.compile(r"([^+\s]+)\s*(?:\+\s*(.+)|(-\s*\d\w*))?")


class Names:
    """The names that are known at one place of the instructions.

    Args:
        operands: of the asm statement.
    """

    def __init__(self, operands: Sequence[Operand]) -> None:
        self._operands = operands
        self._scopes: list[dict[str, tuple[str, int]]] = [{}]
        self._reals: set[str] = {
            f"cuhost_r{k}" for k, operand in enumerate(operands) if operand.constraint in "fd"
        }
        self._count = 0

    def open(self) -> None:
        """Begin a scope."""
        self._scopes.append({})

    def close(self) -> None:
        """End the innermost scope.

        Raises:
            UnsupportedError: there is none.
        """
        if len(self._scopes) == 1:
            raise UnsupportedError("asm with a brace that nothing opens")
        self._scopes.pop()

    @property
    def depth(self) -> int:
        """How many scopes are open."""
        return len(self._scopes) - 1

    def declare(self, registers: Registers) -> str:
        """C++ that declares the registers."""
        made = []
        for name in registers.names:
            self._scopes[-1][name] = (f"cuhost_v{self._count}", registers.bits)
            if registers.real:
                self._reals.add(f"cuhost_v{self._count}")
            made.append(f"{HOST}b<{registers.bits}> cuhost_v{self._count};")
            self._count += 1
        return " ".join(made)

    def register(self, text: str) -> tuple[str, int]:
        """The variable of a register or operand, and its bits; 1 for a predicate.

        Raises:
            UnsupportedError: there is none of that name.
        """
        if text.startswith("?"):
            number = int(text[1:])
            if number >= len(self._operands):
                raise UnsupportedError(f"asm without an operand {number}")
            return f"cuhost_r{number}", BITS[self._operands[number].constraint]
        for scope in reversed(self._scopes):
            if text in scope:
                return scope[text]
        raise UnsupportedError(f"asm with the unknown register {text}")

    def target(self, text: str) -> str:
        """The variable that an instruction sets."""
        if text == "_":
            return "::cuhost::cuhost_Sink()"
        if text.startswith("?") and not self._is_output(text):
            raise UnsupportedError(f"asm that sets its input %{text[1:]}")
        return self.register(text)[0]

    def require_bits(self, *texts: str) -> None:
        """Refuse registers of floating-point numbers, as ptxas does where these do not belong.

        Raises:
            UnsupportedError: there is one among the operands.
        """
        for text in texts:
            known = text.startswith("?") or any(text in scope for scope in self._scopes)
            if known and self.register(text)[0] in self._reals:
                shown = text.replace("?", "%")
                raise UnsupportedError(f"asm with {shown}, which is f32 or f64, as an integer")

    def _is_output(self, text: str) -> bool:
        number = int(text[1:])
        return number >= len(self._operands) or bool(self._operands[number].access)

    def value(self, text: str, kind: str = "b64") -> str:
        """The bits of an operand of a type such as ``f32``; a literal has that type.

        Raises:
            UnsupportedError: it is none of a register, a number and a special register.
        """
        if special := _SPECIAL.fullmatch(text):
            name = f"{special[1]}<'{special[2]}'>" if special[1] else special[3]
            return f"{HOST}{name}()"
        if exact := _EXACT.fullmatch(text):
            return f"0x{exact[1] or exact[2]}ull"
        if kind[0] == "f" and _REAL.fullmatch(text):
            return _real(float(text), kind)
        if whole := _INTEGER.fullmatch(text):
            value = int(whole[2], 0) if not whole[2].isdecimal() else int(whole[2])
            return f"{(-value if whole[1] else value) & 0xFFFFFFFFFFFFFFFF:#x}ull"
        return self.register(text)[0]

    def predicate(self, text: str) -> str:
        """A predicate, which ``!`` before it negates."""
        name = text.lstrip("! ")
        variable, bits = self.register(name)
        if bits != 1:
            raise UnsupportedError(f"asm with {name} as a predicate")
        return f"!{variable}" if text.startswith("!") else variable

    def constant(self, text: str) -> bool:
        """Whether an operand is a number known at compile time."""
        if text.startswith("?") and int(text[1:]) < len(self._operands):
            return self._operands[int(text[1:])].constraint == "n"
        return _INTEGER.fullmatch(text) is not None

    def address(self, text: str, *, shared: bool) -> str:
        """The address in square brackets, as one of the host."""
        inner = _SUM.fullmatch(text[1:-1].strip()) if text.startswith("[") else None
        if inner is None:
            raise UnsupportedError(f"asm with {text.replace('?', '%')} as an address")
        offset = (inner[2] or inner[3] or "0").replace(" ", "")
        base, bits = self.register(inner[1])
        if not shared and bits != 64:
            raise UnsupportedError(
                f"asm with an address of {bits} bits, which is none of global memory"
            )
        return f"{HOST}address({base}, {self.value(offset)})"


def elements(text: str) -> list[str]:
    """The elements of a vector in braces; a single operand is its own only element."""
    if not text.startswith("{"):
        return [text]
    return [part.strip() for part in text.strip("{} ").split(",")]


def _real(value: float, kind: str) -> str:
    if kind == "f32":
        return f"{struct.unpack('<I', struct.pack('<f', value))[0]:#x}ull"
    return f"{struct.unpack('<Q', struct.pack('<d', value))[0]:#x}ull"
