"""What multiplications wait for in the machine code of the template for float32 products.

    python studies/register_banks.py bench/records/nvidia-h200 --layout nn > banks.md

For the best record of each product, as it is and the other way round (with A transposed in shared
memory, or by rows), prints a row of a Markdown table: cycles of a scheduler per multiplication in
the main loop, by two banks of registers that are each read once in a cycle, and by those and all
other instructions; and the speed of the record. Nothing is run: it takes CuPy, NVRTC and nvdisasm,
and no GPU.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from study_command import in_one_sentence

from pytest_gpuenergy.devices import NvrtcCompiler, sass_listing
from pytest_gpuenergy.kernels import Kernel
from pytest_gpuenergy.support import InputError, UnavailableError
from pytest_gpuenergy.tuners import TEMPLATE_FORM, SimtParameters, load_records
from pytest_gpuenergy.workloads import Gemm

_LABEL = re.compile(r"^(\.L_\w+):")
_INSTRUCTION = re.compile(r"/\*[0-9a-f]{4,}\*/\s+(.+?)\s*;")
_BRANCH = re.compile(r"\bBRA\b.*\((\.L_\w+)\)")
_MULTIPLICATION = re.compile(r"\bFFMA\S* (?:R\d+|RZ), (.+)")
_REGISTER = re.compile(r"[-|]*R(\d+)\b(.*)")
_LARGE = 0.3
"""A loop with this share of the multiplications of the largest one is no loop around it."""


@dataclass(frozen=True)
class Loop:
    """The main loop of a kernel.

    Attributes:
        instructions: their number.
        multiplications: FFMA among them.
        bank_cycles: in which these read their registers.
    """

    instructions: int
    multiplications: int
    bank_cycles: int

    @property
    def banks(self) -> float:
        """Cycles per multiplication for its registers."""
        return self.bank_cycles / self.multiplications

    @property
    def cycles(self) -> float:
        """Cycles per multiplication if each other instruction takes one, and none waits."""
        return self.banks + (self.instructions - self.multiplications) / self.multiplications


def main_loop(sass: str, entry: str = "gemm") -> Loop:
    """The innermost loop with multiplications, of those with many.

    Args:
        sass: as ``nvdisasm -c`` prints it.
        entry: the kernel.

    Raises:
        InputError: there is none.
    """
    instructions: list[str] = []
    labels: dict[str, int] = {}
    for line in sass.partition(f".text.{entry}:")[2].partition("\n.section")[0].splitlines():
        if label := _LABEL.match(line):
            labels[label[1]] = len(instructions)
        elif found := _INSTRUCTION.search(line):
            instructions.append(found[1])
    loops = []
    for last, text in enumerate(instructions):
        branch = _BRANCH.search(text)
        if branch and labels.get(branch[1], last + 1) <= last:
            body = instructions[labels[branch[1]] : last + 1]
            loops.append((body, sum(1 for one in body if _MULTIPLICATION.search(one))))
    most = max((count for _, count in loops), default=0)
    if not most:
        raise InputError(f"The machine code has no loop of {entry} with multiplications.")
    body, count = min(
        (one for one in loops if one[1] >= _LARGE * most), key=lambda one: len(one[0])
    )
    return Loop(len(body), count, bank_cycles(body))


def bank_cycles(instructions: Sequence[str]) -> int:
    """Cycles in which multiplications read their registers.

    Even registers are one bank and odd ones the other, and each is read once in a cycle. An operand
    that is marked ``.reuse`` need not be read by the next multiplication in the same place.
    """
    kept: dict[int, int] = {}
    cycles = 0
    for text in instructions:
        multiplication = _MULTIPLICATION.search(text)
        if not multiplication:
            continue
        reads: set[int] = set()
        next_kept: dict[int, int] = {}
        for place, operand in enumerate(multiplication[1].split(",")):
            register = _REGISTER.match(operand.strip())
            if not register:
                continue
            number = int(register[1])
            if "reuse" in register[2]:
                next_kept[place] = number
            if kept.get(place) != number:
                reads.add(number)
        kept = next_kept
        odd = sum(number % 2 for number in reads)
        cycles += max(1, odd, len(reads) - odd)
    return cycles


def rows(folder: Path, layout: str, architecture: str) -> Iterator[str]:
    """Those of the table, by size."""
    compiler = NvrtcCompiler()
    found = [
        (file, file.workload) for file in map(load_records, sorted(folder.glob("gemm_*.json")))
    ]
    products = [(file, one) for file, one in found if isinstance(one, Gemm)]
    for file, gemm in sorted(products, key=lambda pair: pair[1].flops):
        if gemm.layout != layout or gemm.mode != "float32" or file.tuner != TEMPLATE_FORM.tuner:
            continue
        recipe = file.record(1).recipe
        parameters = TEMPLATE_FORM.parameters(recipe)
        assert isinstance(parameters, SimtParameters)
        tflops = gemm.flops / TEMPLATE_FORM.time_ms(recipe) / 1e9
        turned = 0 if parameters.transpose_a or layout == "nt" else 8
        for one in dict.fromkeys([parameters, replace(parameters, transpose_a=turned)]):
            code = sass(compiler, one.kernel(gemm), architecture)
            speed = f"{tflops:.1f}" if one == parameters else ""
            yield row(gemm, one, main_loop(code), speed)


def sass(compiler: Any, kernel: Kernel, architecture: str) -> str:
    """The machine code of a kernel as text.

    Raises:
        UnavailableError: there is no nvdisasm.
        KernelFault: it does not compile.
    """
    code, _ = compiler.compile(kernel.source, ["gemm"], architecture)
    with TemporaryDirectory() as folder:
        cubin = Path(folder) / "kernel.cubin"
        cubin.write_bytes(code)
        listing = sass_listing(cubin)
    if listing is None:
        raise UnavailableError(
            "nvdisasm is not on the PATH, or cannot read the machine code: install the package "
            "nvidia-cuda-nvdisasm."
        )
    return listing


def row(gemm: Gemm, one: SimtParameters, loop: Loop, speed: str) -> str:
    """Of one kernel."""
    size = f"{gemm.M} x {gemm.N} x {gemm.K}"
    tile = f"{one.tile_m} x {one.tile_n} x {one.tile_k}, {one.thread_m} x {one.thread_n}"
    kept = "columns" if one.transpose_a or gemm.layout == "nt" else "rows"
    return f"| {size} | {tile} | {kept} | {loop.banks:.2f} | {loop.cycles:.2f} | {speed} |"


@in_one_sentence
def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("records", type=Path, help="Folder of record files")
    parser.add_argument("--layout", choices=("nn", "nt"), default="nn", help="Of the products")
    parser.add_argument("--architecture", default="sm_90", help="For which kernels are compiled")
    options = parser.parse_args(arguments)
    columns = ("M x N x K", "tile, of a thread", "A", "cycles by banks", "in all", "TFLOP/s")
    print(f"| {' | '.join(columns)} |")
    print("|---|---|---|---:|---:|---:|")
    for line in rows(options.records, options.layout, options.architecture):
        print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main())
