"""The template for Hopper: products of float32 matrices by wgmma, see cuda/gemm/wgmma_tf32.cu."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar, Self

from pytest_gpuenergy.kernels import Kernel
from pytest_gpuenergy.support import InputError
from pytest_gpuenergy.tuners.gemm.costs import Costs
from pytest_gpuenergy.tuners.gemm.hopper import (
    ALIGNMENT_BYTES,
    CLUSTERS,
    WARPGROUP,
    WARPGROUP_ROWS,
    HopperTiling,
    places_after,
    turned_copies,
)
from pytest_gpuenergy.tuners.gemm.mma import MIN_SPLIT_K
from pytest_gpuenergy.tuners.gemm.operands import OperandCopies
from pytest_gpuenergy.tuning import SHARED_BYTES_PER_CYCLE, CardResources, Constant
from pytest_gpuenergy.workloads import Gemm, Mode

_LINE = 32
"""The elements of a line in shared memory."""
_WIDEST = 256
"""The most rows of a tile."""
_TILES_M = (64, 96, 128, 160, 192, 256)
"""The rows of tiles that are tried besides those that divide a product evenly."""
_PIECE = 4
"""The elements of a piece: rows that warps copy are longer by one."""
_LEAST_ROWS = 8
"""The rows of a tile are a multiple of these, as those of an instruction and of a pattern are."""
_EVEN = 6
"""How many numbers of tiles are tried that divide the rows of a product evenly."""
_ROWS = 16
"""The registers of a thread for the rows of a step."""
_OTHER_REGISTERS = 32
"""The registers of a thread besides its sums and rows. ptxas of CUDA 13.0 spills nothing for a tile
of 96 rows with three consumers, where a thread has 160 registers."""
_OTHERS_OF_TWO_STEPS = 48
"""The same if a thread has two steps: ptxas spills 28 bytes in tiles of 88 rows in ``3xtf32``."""
_REGISTERS_TOGETHER: Mapping[bool, tuple[int, int, int]] = {
    False: (128, 40, 216),
    True: (128, 72, 184),
}
"""The registers of a thread at launch, of one that copies and of a consumer where two blocks share
those of a multiprocessor, by whether warps copy operands themselves."""
_PRODUCTS_PER_CYCLE = 1024
"""The products in TF32 on a multiprocessor: half as many as of 16-bit elements (H100
whitepaper)."""


@dataclass(frozen=True, kw_only=True)
class WgmmaTf32Parameters(HopperTiling):
    """The parameters of a kernel of the template.

    Each consumer computes 64 columns of the tile.

    Attributes:
        in_turn: whether consumers begin to multiply one after another, so that one adds its sums
            while another multiplies.
        copying: whether warps copy A and B themselves, whose rows may then be any distance apart.
        turned: whether A, which is stored transposed, is transposed by a launch before that of the
            product, rather than in shared memory.
        swapped: whether the transpose of C is computed. Then each consumer computes 64 rows of the
            tile, and it is B that must lie along K or be transposed.
        together: the blocks that a multiprocessor holds at once, 1 or 2: two with one consumer each
            share its registers, and one works while the other waits.
    """

    template: ClassVar[str] = "wgmma_tf32"
    family: ClassVar[str] = "hopper_tf32"
    modes: ClassVar[tuple[Mode, ...]] = ("tf32", "3xtf32")
    line: ClassVar[int] = _LEAST_ROWS
    columns: ClassVar[int] = _LINE
    barrier_bytes: ClassVar[int] = 24
    added: ClassVar[Mapping[str, int]] = {
        **HopperTiling.added,
        "copying": 0,
        "turned": 0,
        "swapped": 0,
        "together": 1,
    }
    least: ClassVar[Mapping[str, int]] = {**HopperTiling.least, "together": 1}
    splits: ClassVar[tuple[int, ...]] = (2, 3, 4, 6, 8)

    tile_k: int = _LINE
    stages: int = 3
    in_turn: bool = False
    copying: bool = False
    turned: bool = False
    swapped: bool = False
    together: int = 1

    @property
    def computed_tile(self) -> tuple[int, int]:
        tile = (self.tile_m, self.tile_n)
        return (tile[1], tile[0]) if self.swapped else tile

    def _across(self, gemm: Gemm) -> tuple[bool, bool]:
        """Return whether the operands that are multiplied, A and B, do not lie along K."""
        across = (gemm.a_transposed, not gemm.b_transposed)
        return (across[1], across[0]) if self.swapped else across

    def _check_tile(self) -> None:
        rows, columns = self.computed_tile
        whole = (
            not rows % _LEAST_ROWS
            and rows <= _WIDEST
            and columns == WARPGROUP_ROWS * self.consumers
            and not (self.swapped and (self.turned or self.cluster != (1, 1)))
            and self.tile_k == _LINE
            and self.consumers > self.in_turn
            and not (self.copying and (self.consumers > 2 or self.cluster != (1, 1)))
            and not (self.copying and self.turned)
            and self.together <= (2 if self.consumers == 1 and self.cluster == (1, 1) else 1)
        )
        if not whole:
            raise InputError(
                f"A tile of {self.tile_m} x {self.tile_n} x {self.tile_k} does not have a multiple "
                f"of {_LEAST_ROWS} rows, up to 256, 64 columns for each of {self.consumers} "
                "consumers, and steps of 32; only several consumers can take turns, and only "
                "blocks without a cluster and with up to two consumers copy operands themselves, "
                "which no launch then transposes. With swapped=1, rows and columns change places, "
                "and there is neither a cluster nor turned=1. Two blocks are on a multiprocessor "
                "together only with one consumer each and without a cluster."
            )

    @classmethod
    def refusal(cls, gemm: Gemm) -> str | None:
        """Return what a product lacks; short sums in 3xtf32 are left to mma.cu, which rounds."""
        if gemm.mode == "3xtf32" and gemm.K < MIN_SPLIT_K:
            return f"needs K to be at least {MIN_SPLIT_K} in mode 3xtf32, not {gemm.K}"
        return super().refusal(gemm)

    @classmethod
    def tiles_tried(cls, gemm: Gemm) -> Iterator[Mapping[str, int]]:
        rows = gemm.most_rows
        counts = range(-(-rows // _WIDEST), -(-rows // _TILES_M[0]) + 1)
        for turned in (False, True) if gemm.a_transposed and gemm.products == 1 else (False,):
            unit = _LINE if gemm.a_transposed and not turned else _LEAST_ROWS
            even = (-(-rows // (count * unit)) * unit for count in counts[:_EVEN])
            for in_turn, tile_m, consumers, (along_m, along_n) in itertools.product(
                (False, True), sorted({*_TILES_M, *even}), (1, 2, 3), CLUSTERS
            ):
                columns = WARPGROUP_ROWS * consumers
                tile = {"tile_m": tile_m, "tile_n": columns, "consumers": consumers}
                cluster = {"cluster_m": along_m, "cluster_n": along_n}
                yield {**tile, **cluster, "in_turn": in_turn, "turned": turned}
                if along_m * along_n > 1 or in_turn:
                    continue
                for split, together in itertools.product(
                    (1, *cls.splits_tried(gemm, tile_m, columns)), (1, 2)[: 3 - consumers]
                ):
                    if split * together > 1:
                        yield {**tile, "turned": turned, "split": split, "together": together}
                    if not turned:
                        yield {**tile, "copying": True, "split": split, "together": together}
        if not gemm.b_transposed or gemm.groups:
            return
        counts = range(-(-gemm.N // _WIDEST), -(-gemm.N // _TILES_M[0]) + 1)
        even = (-(-gemm.N // (count * _LEAST_ROWS)) * _LEAST_ROWS for count in counts[:_EVEN])
        for in_turn, tile_n, consumers in itertools.product(
            (False, True), sorted({*_TILES_M, *even}), (1, 2, 3)
        ):
            tile_m = WARPGROUP_ROWS * consumers
            tile = {"tile_m": tile_m, "tile_n": tile_n, "consumers": consumers, "swapped": True}
            if in_turn:
                yield {**tile, "in_turn": True}
                continue
            for split, together in itertools.product(
                (1, *cls.splits_tried(gemm, tile_m, tile_n)), (1, 2)[: 3 - consumers]
            ):
                yield {**tile, "split": split, "together": together}
                yield {**tile, "copying": True, "split": split, "together": together}

    @classmethod
    def fitting(cls, gemm: Gemm, card: CardResources) -> Iterator[Self]:
        fitting = super().fitting(gemm, card)
        yield from (one for one in fitting if one.together <= one.resident(gemm, card))

    def has_whole_lines(self, gemm: Gemm) -> bool:
        """Return whether the rows of a tile are whole lines of A if it lies along M."""
        along_k = self.turned or not self._across(gemm)[0]
        return along_k or self.computed_tile[0] % (_LINE * self.cluster_n) == 0

    @property
    def copies_operands(self) -> bool:
        return self.copying

    @property
    def register_counts(self) -> tuple[int, int, int]:
        if self.together > 1:
            return _REGISTERS_TOGETHER[self.copying]
        return super().register_counts

    def registers(self, gemm: Gemm) -> int:
        """Return the registers of a thread at launch; copying threads later give some away."""
        del gemm  # the same for all
        return self.register_counts[0]

    def copies(self, gemm: Gemm) -> OperandCopies:
        return turned_copies(gemm, "A") if self.turned else super().copies(gemm)

    def kernel(self, gemm: Gemm) -> Kernel:
        if self.turned and (gemm.products > 1 or not gemm.a_transposed):
            raise InputError(
                f"The template {self.template} transposes A before the product only where it is "
                f"stored transposed and there is one product, not for {gemm.name} in layout "
                f"{gemm.layout}."
            )
        return super().kernel(gemm)

    @property
    def instruction_sums(self) -> int:
        return self.computed_tile[0] // 2

    def consumer_registers(self, gemm: Gemm) -> int:
        """Return about how many registers a consumer's thread needs.

        For split elements, it keeps its sums twice: those of the present step, and the totals.
        """
        return self._registers(gemm, 2 if self.overlaps_steps(gemm) else 1)

    def _registers(self, gemm: Gemm, steps: int) -> int:
        """Return about how many registers a consumer's thread needs that keeps so many steps."""
        split = gemm.mode == "3xtf32"
        of_step = (1 + split) * _ROWS + split * self.instruction_sums
        if steps > 1:
            return self.instruction_sums + steps * of_step + _OTHERS_OF_TWO_STEPS
        return (1 + split) * (self.instruction_sums + _ROWS) + _OTHER_REGISTERS

    def overlaps_steps(self, gemm: Gemm) -> bool:
        """Return whether a consumer multiplies a step while it adds the sums of the one before.

        Only a single one does: of several, others multiply meanwhile. It then holds two stages, and
        warps that copy begin two others before one of them is ready.
        """
        enough = self._registers(gemm, 2) <= self.register_counts[2]
        return self.consumers == 1 and self.stages > 1 + self.copying and enough

    def dynamic_bytes(self, gemm: Gemm) -> int:
        (rows, columns), (a_across, b_across) = self.computed_tile, self._across(gemm)
        turned = a_across and not self.copying and not self.turned
        copies_of_a = 1 + turned + (gemm.mode == "3xtf32")
        step = self.tile_k * (copies_of_a * rows + columns)
        if self.copying:
            step += self.tile_k * rows  # as it is stored
            step += _PIECE * (self.tile_k if a_across else rows)
            step += _PIECE * (self.tile_k if b_across else columns)
        step_bytes = math.ceil(gemm.element_bytes * step / ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        return self.stages * step_bytes + ALIGNMENT_BYTES

    def peak_cycles(self, gemm: Gemm) -> float:
        products = _times(gemm) * self.tile_m * self.tile_n * self.tile_k
        return products / _PRODUCTS_PER_CYCLE

    def busy_cycles(self, gemm: Gemm, costs: Costs) -> float:
        """Return the clock cycles of a step if neither tensor cores nor shared memory wait.

        Each consumer reads the rows of A from shared memory once for each of its products, and its
        columns of B. Besides, sums are added to totals, and elements of B split.
        """
        times, (m, n), k = _times(gemm), self.computed_tile, self.tile_k
        loaded = gemm.element_bytes * k * (times * self.consumers * m + n)
        beside = costs.sums_share * m * n if times > 1 else 0.0
        beside += costs.split_share * k * n if times > 1 else 0.0
        beside *= costs.turns_share if self.in_turn else 1.0
        multiplying = costs.product_share * self.peak_cycles(gemm) + beside / WARPGROUP
        if not self.overlaps_steps(gemm):
            multiplying += costs.waiting_cycles / (self.consumers * self.together)
        return max(multiplying, costs.served_share * loaded / SHARED_BYTES_PER_CYCLE)

    def preparing_cycles(self, gemm: Gemm, costs: Costs) -> float:
        """Return the clock cycles of the warps that transpose A, split its elements, or copy."""
        share = costs.prepared_share if gemm.mode == "3xtf32" else 0.0
        if self._across(gemm)[0] and not self.copying:
            share = costs.transposed_share  # splitting hides behind it
        copying = self.copying * costs.copied_share * (self.tile_m + self.tile_n)
        return (share * self.computed_tile[0] + copying) * self.tile_k / WARPGROUP

    def instruction_constants(self, gemm: Gemm) -> dict[str, Constant]:
        if not self.has_whole_lines(gemm):
            raise InputError(
                f"The template {self.template} cannot compute tiles of {self.tile_m} rows in "
                f"layout {gemm.layout}, in clusters of {self.cluster_n} along N: its boxes have "
                f"lines of {_LINE} elements."
            )
        first, second, add = places_after(self.instruction_sums, 4, 1, 1)
        shape = f"m64n{self.computed_tile[0]}k8.f32.tf32.tf32"
        return {
            "IN_TURN": self.in_turn,
            "DOUBLED": self.overlaps_steps(gemm),
            "COPIED": self.copying,
            "TOGETHER": f"{self.together}",
            **(self.swapped_constants(gemm) if self.swapped else {}),
            "LDA": gemm.ldb if self.swapped else gemm.lda,
            "LDB": gemm.lda if self.swapped else gemm.ldb,
            "ASYNCHRONOUS": True,
            "SPLIT": gemm.mode == "3xtf32",
            "MULTIPLY_ADD": f'"wgmma.mma_async.sync.aligned.{shape}"',
            "FIRST_PLACES": first,
            "SECOND_PLACE": second,
            "ADD_PLACE": add,
        }


def _times(gemm: Gemm) -> int:
    """Return the number of products of TF32 numbers for each product of elements."""
    return 3 if gemm.mode == "3xtf32" else 1
