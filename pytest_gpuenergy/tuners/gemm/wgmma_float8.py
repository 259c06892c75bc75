"""The template for Hopper's products of 8-bit matrices, see cuda/gemm/wgmma.cu and float8.cu."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from pytest_gpuenergy.kernels import Kernel, Launch
from pytest_gpuenergy.support import InputError
from pytest_gpuenergy.tuners.gemm.costs import Costs, costs_of
from pytest_gpuenergy.tuners.gemm.estimate import copying_cycles
from pytest_gpuenergy.tuners.gemm.hopper import (
    LINE_BYTES,
    OTHER_REGISTERS,
    WARPGROUP,
    aligned_copies,
    copied_row,
)
from pytest_gpuenergy.tuners.gemm.operands import OperandCopies
from pytest_gpuenergy.tuners.gemm.tiling import with_copies
from pytest_gpuenergy.tuners.gemm.wgmma import WgmmaParameters
from pytest_gpuenergy.tuning import CardResources, Constant, template_text
from pytest_gpuenergy.workloads import FLOAT8_MODES, SCALE_BLOCK, Gemm, Mode, Tensor, largest

_MAKERS = 256
"""The threads of a block that turns or quantizes an operand."""
_SQUARE = 64
"""The rows and columns that a block turns."""
_OTHERS_OF_TOTALS = 32
"""The registers of a thread besides its totals and the sums of a step. ptxas of CUDA 13.0 spills
nothing for a tile of 192 x 128 with three consumers, where a thread has 160 registers."""
_LARGEST_PARTS = 1024
"""The most blocks that look for the largest element of A."""


@dataclass(frozen=True, kw_only=True)
class WgmmaFloat8Parameters(WgmmaParameters):
    """The parameters of a kernel of the template.

    A step is as long as a block of elements with a scale in common, after which sums are added to
    totals in float32 unless the product's accumulation is ``fast``. What does not lie along K is
    transposed in any case; with ``turned``, long rows are copied as well that do not begin with a
    line of the L2.
    """

    template: ClassVar[str] = "wgmma_float8"
    family: ClassVar[str] = "float8"
    modes: ClassVar[tuple[Mode, ...]] = FLOAT8_MODES
    tile_k: int = LINE_BYTES

    def _check_tile(self) -> None:
        super()._check_tile()
        if self.tile_k != SCALE_BLOCK:
            raise InputError(
                f"The template {self.template} needs steps of {SCALE_BLOCK}, not {self.tile_k}."
            )

    @property
    def text(self) -> str:
        return "wgmma"

    @classmethod
    def tiles_tried(cls, gemm: Gemm) -> Iterator[Mapping[str, int]]:
        several = (False, True) if aligned_copies(multiplied(gemm), lined=True).spaces else (False,)
        for tile, turned in itertools.product(super().tiles_tried(gemm), several):
            yield {**tile, "turned": turned}

    def copies(self, gemm: Gemm) -> OperandCopies:
        return aligned_copies(gemm, lined=self.turned)

    @classmethod
    def refusal(cls, gemm: Gemm) -> str | None:
        """Return what a product lacks: what quantizes A reads it along K."""
        if gemm.quantize and gemm.a_transposed:
            return f"quantizes A only where it is stored along K, not in layout {gemm.layout}"
        return None

    def consumer_registers(self, gemm: Gemm) -> int:
        """Return about how many registers a consumer's thread needs for sums and totals."""
        if gemm.accumulation == "fast":
            return self._registers(gemm, 1)
        return self._registers(gemm, 3 if self.overlaps_steps(gemm) else 2)

    def _registers(self, gemm: Gemm, kept: int) -> int:
        """Return about how many registers a consumer's thread needs that keeps so many sums."""
        sums = self.tile_m * self.tile_n // (WARPGROUP * self.consumers)
        columns = max(self.tile_n // 64, self.tile_n // math.gcd(self.tile_n, SCALE_BLOCK))
        factors = self.tile_m // (WARPGROUP // 4 * self.consumers) + columns
        scaled = gemm.scaling == "block"
        others = _OTHERS_OF_TOTALS if kept == 2 else OTHER_REGISTERS
        return kept * sums + others + max(0, kept - 1) * factors * scaled

    def overlaps_steps(self, gemm: Gemm) -> bool:
        """Return whether a thread has registers for totals and for the sums of two steps."""
        promoted = gemm.accumulation != "fast"
        return promoted and self._registers(gemm, 3) <= self.register_counts[2]

    def busy_cycles(self, gemm: Gemm, costs: Costs) -> float:
        """Return the clock cycles of a step if neither tensor cores nor shared memory wait.

        While a consumer adds its sums to totals, others multiply, and it does so itself if it has
        registers for the sums of two steps.
        """
        busy = super().busy_cycles(gemm, costs)
        if gemm.accumulation == "fast":
            return busy
        adding = costs.sums_share * self.tile_m * self.tile_n / WARPGROUP
        if self.overlaps_steps(gemm):
            return max(busy, adding)
        return max(busy, (busy + adding) / self.consumers)

    def cycles(self, gemm: Gemm, card: CardResources, costs: Costs | None = None) -> float:
        inner = multiplied(gemm)
        cycles = super().cycles(inner, card, costs)
        made = [*made_operands(gemm).values(), *_other_workspaces(gemm)]
        if not made:
            return cycles
        costs = costs or costs_of(self.family)
        return cycles + sum(copying_cycles(tensor.nbytes, card, costs) for tensor in made)

    def instruction_constants(self, gemm: Gemm) -> dict[str, Constant]:
        return {
            **super().instruction_constants(gemm),
            "PROMOTED": gemm.accumulation != "fast",
            "DOUBLED": self.overlaps_steps(gemm),
            "B_SCALE_ROW": f"{gemm.shapes_of_scales[1][-1]}",
        }

    def kernel(self, gemm: Gemm) -> Kernel:
        self.check_product(gemm)
        kernel = super().kernel(multiplied(gemm))
        made = made_operands(gemm)
        if not made:
            return kernel
        turned = {name: made[name].shape[1] if name in made else 0 for name in "AB"}
        constants: dict[str, Constant] = {
            "A_ROWS": gemm.M,
            "B_COLUMNS": gemm.N,
            "A_TURNED": f"{0 if gemm.quantize else turned['A']}",
            "B_TURNED": f"{turned['B']}",
            "A_QUANTIZED": f"{turned['A'] if gemm.quantize else 0}",
            "STORED_LDA": f"{gemm.lda}",
            "STORED_LDB": f"{gemm.ldb}",
            "QUANTIZE": f'"cvt.rn.satfinite.{gemm.mode}x2.f32"',
            "LARGEST_EXPONENT": f"{math.frexp(largest(gemm.dtype))[1] - 1}",
            "LARGEST_PARTS": f"{_largest_parts(gemm)}",
        }
        text = f"{kernel.source}\n{template_text(constants, ['gemm/float8'])}"
        kernel = replace(kernel, source=text)
        return with_copies(kernel, _making_launches(gemm), made, _other_workspaces(gemm))


@functools.lru_cache(maxsize=16)  # thousands of tilings of a product ask for them
def made_operands(gemm: Gemm) -> Mapping[str, Tensor]:
    """Return the operands, by their names, that are turned or quantized before the product."""
    made = {}
    if gemm.a_transposed or gemm.quantize:
        made["A"] = _copy("a_quantized" if gemm.quantize else "a_turned", gemm.M, gemm)
    if not gemm.b_transposed:
        made["B"] = _copy("b_turned", gemm.N, gemm)
    return made


def _copy(name: str, rows: int, gemm: Gemm) -> Tensor:
    return Tensor(name, (rows, copied_row(gemm, gemm.K)), gemm.dtype, "workspace")


@functools.lru_cache(maxsize=16)
def multiplied(gemm: Gemm) -> Gemm:
    """Return the product of the operands that have been made, which are stored along K."""
    made = made_operands(gemm)
    if not made:
        return gemm
    lda, ldb = (
        made[name].shape[1] if name in made else distance
        for name, distance in (("A", gemm.lda), ("B", gemm.ldb))
    )
    return replace(gemm, layout="tn", quantize=False, lda=lda, ldb=ldb)


def _other_workspaces(gemm: Gemm) -> Sequence[Tensor]:
    """Return what quantizing A needs beside its copy."""
    if not gemm.quantize:
        return ()
    scale = Tensor("a_scale", gemm.shapes_of_scales[0], "float32", "workspace")
    parts = Tensor("largest_parts", (_largest_parts(gemm),), "float32", "workspace")
    return (scale, *([parts] if gemm.scaling == "tensor" else []))


def _largest_parts(gemm: Gemm) -> int:
    return min(gemm.M, _LARGEST_PARTS)


def _making_launches(gemm: Gemm) -> Iterator[Launch]:
    block = (_MAKERS, 1, 1)
    along_k = math.ceil(copied_row(gemm, gemm.K) / _SQUARE)
    if gemm.quantize:
        parts = ("largest_parts",) if gemm.scaling == "tensor" else ()
        if parts:
            yield Launch("gemm_largest", (_largest_parts(gemm), 1, 1), block, ("A", *parts))
        blocks = gemm.M
        if gemm.scaling == "block":
            blocks = math.ceil(gemm.M * math.ceil(gemm.K / SCALE_BLOCK) / (_MAKERS // 32))
        arguments = ("A", *parts, "a_quantized", "a_scale")
        yield Launch("gemm_quantize", (blocks, 1, 1), block, arguments)
    elif gemm.a_transposed:
        grid = (along_k * math.ceil(gemm.M / _SQUARE), 1, 1)
        yield Launch("gemm_turn_a", grid, block, ("A", "a_turned"))
    if not gemm.b_transposed:
        grid = (along_k * math.ceil(gemm.N / _SQUARE), 1, 1)
        yield Launch("gemm_turn_b", grid, block, ("B", "b_turned"))
