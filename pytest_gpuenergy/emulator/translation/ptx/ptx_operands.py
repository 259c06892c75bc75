"""The C++ for the operands of PTX instructions: registers, numbers, addresses and labels."""

from __future__ import annotations

import re
import struct
from collections.abc import Collection, Sequence

from pytest_gpuenergy.emulator.translation.ptx.instructions import Registers
from pytest_gpuenergy.emulator.translation.ptx.statements import Operand, UnsupportedError

HOST = "::cuhost::cuhost_"
"""The prefix of the names of ``cuda/host``, which no macro of a text has."""

_ANY = "a number"  # the type of an operand whose bits are taken as they are

BITS = {"r": 32, "f": 32, "h": 16, "l": 64, "d": 64, "n": 64}
"""The bits of a register, by the letter of its constraint."""

_SPECIAL = re.compile(
    r"%(tid|ntid|ctaid|nctaid|cluster_ctaid|cluster_nctaid|clusterid|nclusterid)\.([xyz])"
    r"|%(laneid|n?warpid|n?smid|clock(?:64|_hi)?|globaltimer(?:_lo|_hi)?"
    r"|cluster_ctarank|cluster_nctarank"
    r"|lanemask_(?:eq|le|lt|ge|gt))"
)
_OPERAND = re.compile(r"\?\d{1,4}")
_INTEGER = re.compile(r"(-?)(0[xX][\da-fA-F]+|0[bB][01]+|\d+)U?")
_EXACT = re.compile(r"0(?:[fF]([\da-fA-F]{8})|[dD]([\da-fA-F]{16}))")
_REAL = re.compile(r"-?(?:\d+\.\d*|\.\d+|\d+)(?:[eE][+-]?\d+)?")
_SUM = re.compile(r"([^+\s]+)\s*(?:\+\s*(.+)|(-\s*\d\w*))?")


class Names:
    """The operands, registers and labels that an instruction can name at one place of a statement.

    Whatever the emulated GPU cannot run raises an `UnsupportedError`.
    """

    def __init__(self, operands: Sequence[Operand]) -> None:
        self._operands = operands
        self._scopes: list[dict[str, tuple[str, int]]] = [{}]
        self._reals: set[str] = {
            f"cuhost_r{k}" for k, operand in enumerate(operands) if operand.constraint in "fd"
        }
        self._count = 0
        self._labels: dict[str, str] = {}

    def label(self, labels: Sequence[str]) -> None:
        """Declare the labels of the statement."""
        self._labels = {label: f"cuhost_l{k}" for k, label in enumerate(labels)}
        if len(self._labels) < len(labels):
            raise UnsupportedError("asm with two labels of the same name")

    @property
    def labels(self) -> str:
        """C++ that declares the labels, at the beginning of the statement."""
        return f"__label__ {', '.join(self._labels.values())};" if self._labels else ""

    def jump(self, label: str) -> str:
        """Return the name of a label in C++."""
        if label not in self._labels:
            raise UnsupportedError(f"asm with a branch to {label}, which it does not have")
        return self._labels[label]

    def open(self) -> None:
        """Begin a scope of registers."""
        self._scopes.append({})

    def close(self) -> None:
        """End the innermost scope of registers."""
        if len(self._scopes) == 1:
            raise UnsupportedError("asm with a brace that nothing opens")
        self._scopes.pop()

    @property
    def depth(self) -> int:
        """The number of open scopes."""
        return len(self._scopes) - 1

    def declare(self, registers: Registers) -> str:
        """Return C++ that declares the registers."""
        made = []
        for name in registers.names:
            self._scopes[-1][name] = (f"cuhost_v{self._count}", registers.bits)
            if registers.real:
                self._reals.add(f"cuhost_v{self._count}")
            made.append(f"{HOST}b<{registers.bits}> cuhost_v{self._count};")
            self._count += 1
        return " ".join(made)

    def register(self, text: str) -> tuple[str, int]:
        """Return the variable of a register or operand, and its bits; a predicate has 1."""
        if _OPERAND.fullmatch(text):
            return f"cuhost_r{text[1:]}", BITS[self._operand(text).constraint]
        for scope in reversed(self._scopes):
            if text in scope:
                return scope[text]
        raise UnsupportedError(f"asm with the unknown register {text}")

    def target(self, text: str) -> str:
        """Return the variable that an instruction sets."""
        if text == "_":
            return "::cuhost::cuhost_Sink()"
        if _OPERAND.fullmatch(text) and not self._operand(text).access:
            raise UnsupportedError(f"asm that sets its input %{text[1:]}")
        return self.register(text)[0]

    def place(self, text: str) -> str:
        """Return the address of the variable of an output of the asm statement, of 32 bits."""
        if not _OPERAND.fullmatch(text) or BITS[self._operand(text).constraint] != 32:
            raise UnsupportedError(
                f"asm with {text.replace('?', '%')} as an accumulator, but no operand"
            )
        self.target(text)
        return f"(void*)&cuhost_o{text[1:]}"

    def write_back(self) -> str:
        """Return C++ that copies the registers of the outputs to their variables."""
        return " ".join(
            f"{HOST}set(cuhost_o{k}, cuhost_r{k});"
            for k, operand in enumerate(self._operands)
            if operand.access
        )

    def read_again(self) -> str:
        """Return C++ that reloads the registers of the outputs from their variables."""
        return " ".join(
            f"cuhost_r{k} = {HOST}operand<{HOST}b<{BITS[operand.constraint]}>>(cuhost_o{k});"
            for k, operand in enumerate(self._operands)
            if operand.access
        )

    def require_bits(self, *texts: str) -> None:
        """Refuse registers of floating-point numbers where ptxas refuses them."""
        for text in texts:
            named = _OPERAND.fullmatch(text) or any(text in scope for scope in self._scopes)
            if named and self.register(text)[0] in self._reals:
                shown = text.replace("?", "%")
                raise UnsupportedError(f"asm with {shown}, which is f32 or f64, as an integer")

    def _operand(self, text: str) -> Operand:
        number = int(text[1:])
        if number >= len(self._operands):
            raise UnsupportedError(f"asm without an operand {number}")
        return self._operands[number]

    def value(self, text: str, kind: str = _ANY) -> str:
        """Return the bits of an operand of a type such as ``f32``, which a literal takes."""
        if special := _SPECIAL.fullmatch(text):
            name = f"{special[1]}<'{special[2]}'>" if special[1] else special[3]
            return f"{HOST}{name}()"
        if exact := _EXACT.fullmatch(text):
            return f"0x{exact[1] or exact[2]}ull"
        if kind[0] == "f" and _REAL.fullmatch(text):
            word, number = ("<I", "<f") if kind == "f32" else ("<Q", "<d")
            return f"{struct.unpack(word, struct.pack(number, float(text)))[0]:#x}ull"
        if whole := _INTEGER.fullmatch(text):
            value = int(whole[2], 0) if not whole[2].isdecimal() else int(whole[2])
            return f"{(-value if whole[1] else value) & 0xFFFFFFFFFFFFFFFF:#x}ull"
        variable, bits = self.register(text)
        digits = re.search(r"\d+", kind)
        needed = (int(digits[0]) if digits else 1) * (2 if kind.endswith("x2") else 1)
        if bits < (needed if kind != _ANY else 2):
            what = "predicate" if bits == 1 else f"register of {bits} bits"
            raise UnsupportedError(f"asm with {text.replace('?', '%')}, a {what}, as {kind}")
        return variable

    def predicate(self, text: str) -> str:
        """Return a predicate, negated if ``!`` precedes it."""
        name = text.lstrip("! ")
        variable, bits = self.register(name)
        if bits != 1:
            raise UnsupportedError(f"asm with {name} as a predicate")
        return f"!{variable}" if text.startswith("!") else variable

    def constant(self, text: str) -> bool:
        """Return whether an operand is a number known at compile time."""
        if _OPERAND.fullmatch(text):
            return self._operand(text).constraint == "n"
        return _INTEGER.fullmatch(text) is not None

    def address(self, text: str, *, shared: bool) -> str:
        """Return the host address for the address in square brackets."""
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

    def host_address(self, text: str, modifiers: Collection[str]) -> str:
        """Return the host address for an address in the space that the modifiers name."""
        found = self.address(text, shared=any(name.startswith("shared") for name in modifiers))
        if "shared::cluster" in modifiers:
            return f"::cuhost::cuhost_cluster_place({found})"
        return found


def elements(text: str) -> list[str]:
    """Return the elements of a vector in braces; a single operand is its only element."""
    if not text.startswith("{"):
        return [text]
    return [part.strip() for part in text.strip("{} ").split(",")]
