"""Reads the machine code of kernels: tensor-core instructions, variables, and a listing."""

from __future__ import annotations

import shutil
import struct
import subprocess
from collections.abc import Collection, Iterator
from pathlib import Path

from pytest_gpuenergy.support import run_captured, scratch_folder, section_sizes, sections

_INSTRUCTION_BYTES = 16
"""The length of an instruction, from sm_70 on."""
_OPCODE = 0x1FF
_TEXT = ".text."
_VARIABLES = ".nv.global"
_ELF = b"\x7fELF"
_FAT_BINARY = ".nv_fatbin"
_HEADER_BYTES = 64
"""The length of an ELF header."""
_TIMEOUT_S = 60.0
"""The time limit for nvdisasm."""
# The names by the lower nine bits of an instruction. NVIDIA does not document them; they were read
# from what ptxas of CUDA 13.0 generates for mma, wgmma and tcgen05.mma from sm_75 to sm_120.
_TENSOR_CORES = {
    0x037: "IMMA",
    0x03C: "HMMA",
    0x03D: "BMMA",
    0x03F: "DMMA",
    0x07A: "QMMA",
    0x1EA: "UTCMMA",
    0x1F0: "HGMMA",
    0x1F1: "IGMMA",
    0x1F3: "QGMMA",
}
# The bits of the upper half of an instruction that tell its types: the bit that stands for sums in
# float32, and a field with the operands. They were read from the same; all architectures have them.
_TYPES = {"HMMA": (12, 18, ("F16", "BF16", "TF32")), "HGMMA": (11, 12, ("F16", "BF16", "TF32"))}


def tensor_core_instructions(
    cubin: bytes, symbols: Collection[str] | None = None
) -> frozenset[str]:
    """Return the names of the tensor-core instructions in functions of a cubin.

    Those of HMMA and HGMMA have the types of the sums and of the operands, such as
    ``HMMA.F32.TF32``.

    Args:
        cubin: the machine code, for sm_70 or later.
        symbols: the symbols of the functions; None for all functions.
    """
    wanted = None if symbols is None else {f"{_TEXT}{symbol}" for symbol in symbols}
    found = set()
    for name, code in sections(cubin):
        if name.startswith(_TEXT) and (wanted is None or name in wanted):
            for at in range(0, len(code) - 1, _INSTRUCTION_BYTES):
                opcode = struct.unpack_from("<H", code, at)[0] & _OPCODE
                if opcode in _TENSOR_CORES:
                    upper = code[at + _INSTRUCTION_BYTES // 2 : at + _INSTRUCTION_BYTES]
                    found.add(_with_types(_TENSOR_CORES[opcode], int.from_bytes(upper, "little")))
    return frozenset(found)


def _with_types(name: str, upper: int) -> str:
    """Return the name of an instruction with its types, given its upper half."""
    if name not in _TYPES:
        return name
    sums, operands, types = _TYPES[name]
    of_operands = upper >> operands & 3
    if of_operands >= len(types):
        return name
    return f"{name}.{'F32' if upper >> sums & 1 else 'F16'}.{types[of_operands]}"


def variable_bytes(cubin: bytes) -> int:
    """Return the bytes of variables in device memory that start as zero and outlive a launch.

    Variables with initial values are not counted: they share a section with constants.
    """
    return sum(size for name, size in section_sizes(cubin) if name == _VARIABLES)


def host_program_cubins(program: bytes) -> Iterator[bytes]:
    """Yield the cubins in a host program; each is followed by the rest of its section.

    Args:
        program: a shared object that nvcc has built without compressing the machine code.
    """
    for name, content in sections(program):
        if name == _FAT_BINARY:
            at = content.find(_ELF)
            while at >= 0:
                yield content[at:]
                at = content.find(_ELF, at + 1)


def sass_listing(cubin: Path) -> str | None:
    """Return the instructions in a cubin as text, or None if nvdisasm is missing or fails."""
    nvdisasm = shutil.which("nvdisasm")
    if nvdisasm is None:
        return None
    try:
        content = cubin.read_bytes()
        if len(content) >= _HEADER_BYTES:
            (offset,) = struct.unpack_from("<Q", content, 32)  # of the program headers in ELF-64
            size, count = struct.unpack_from("<HH", content, 54)
            # CuPy 14 drops the last byte, a zero, which nvdisasm requires.
            if len(content) + 1 == offset + size * count:
                content += b"\0"
        with scratch_folder(len(content)) as folder:
            copy = folder / "kernel.cubin"
            copy.write_bytes(content)
            done = run_captured([nvdisasm, "-c", copy], timeout_s=_TIMEOUT_S)
            done.check_returncode()
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout
