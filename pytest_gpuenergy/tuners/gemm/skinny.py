"""The template for products with few rows on Hopper, as in decoding; see cuda/gemm/skinny.cu."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from pytest_gpuenergy.kernels import Kernel, TensorMap
from pytest_gpuenergy.support import InputError
from pytest_gpuenergy.tuners.gemm.costs import Costs, costs_of
from pytest_gpuenergy.tuners.gemm.estimate import SHORT_ROWS, short_line_cycles, soft_maximum
from pytest_gpuenergy.tuners.gemm.hopper import (
    ALIGNMENT_BYTES,
    DEPTH_BYTES,
    WARPGROUP,
    WARPGROUP_ROWS,
    can_be_mapped,
    groups_are_boxed,
    matrix_map,
    places_after,
    sums_constants,
)
from pytest_gpuenergy.tuners.gemm.tiling import (
    FEW_ROWS,
    MAX_BLOCKS_OF_CLUSTER,
    Tiling,
    tiled_kernel,
)
from pytest_gpuenergy.tuners.gemm.wgmma import KINDS, PRODUCTS_PER_CYCLE
from pytest_gpuenergy.tuning import (
    SHARED_BYTES_PER_CYCLE,
    WARP_LANES,
    CardResources,
    Constant,
)
from pytest_gpuenergy.workloads import FLOAT8_MODES, SCALE_BLOCK, Gemm, Mode

_LINE = 64
"""The elements of a line in shared memory."""
_INSTRUCTION_M = 8
"""The least rows of C in one instruction, of which it has any multiple up to `_MOST_M`."""
_MOST_M = 256
"""The most rows of a tile."""
_MOST_ROWS_TRIED, _MOST_ROWS_OF_OTHERS = FEW_ROWS + 8, 2 * FEW_ROWS
"""The most rows of a product for which the template is tried, and of a group or an 8-bit product.
With 128 rows in ``bfloat16`` it was slower than others, and slower than estimated
(docs/notes/untuned.md)."""
_SHORT_LINE_CYCLES = 0.035
"""See `short_line_cycles`."""
_TILES_N = (64, 128, 256)
_TILES_K = (64, 128, 256)
_RESIDENT = (1, 2, 3, 4)
"""The blocks that a multiprocessor shall hold at once; their stages fill its shared memory."""
_MIN_STAGES, _MAX_STAGES = 3, 24
_COPYING_WARPS, _COPYING_WARPS_OF_A = (4, 8), (5,)
"""The warps that copy where no tensor map describes B, or only A has none: many loads have to be
under way. In the latter case, one of them has B copied."""
_CONSUMER_REGISTERS, _COPIER_REGISTERS = 50, 100
"""The registers of a thread besides its sums, and of one that copies (ptxas of CUDA 13.0)."""
_LOADED_AT_ONCE_BYTES = WARP_LANES * 6 * 16
"""What a warp that copies has under way: six pieces of 16 bytes of each thread."""
_BARRIER_BYTES = 16
_KEPT_BYTES = 40 << 20
"""The largest B that may stay in the L2, of which an H100 has 50 MB.

On an H200, 33.6 MB that could stay there were read 8 % faster the next time, and 8 % slower if
others had displaced them (docs/notes/decoding.md).
"""
_COPIED_BYTES_PER_CYCLE = 0.6
"""The bytes that a warp copies in a cycle if rows are not aligned: three products with 16 rows took
2.7 to 4.7 bytes with eight warps on an H200, where the estimate without it had up to 9."""
_CLUSTER_AREA = 16
"""The multiprocessors among which the blocks of a cluster must be: those of a GPC, of which an H100
has 16 or 18."""


@dataclass(frozen=True, kw_only=True)
class SkinnyParameters(Tiling):
    """The parameters of a kernel of the template.

    A cluster computes one tile; each consumer has 64 of its columns.

    Attributes:
        split: the blocks of a cluster, which divide the steps of its tile.
        copying_warps: the warps that copy; a single thread has tensor maps copied.
    """

    template: ClassVar[str] = "skinny"
    family: ClassVar[str] = "skinny"
    follows: ClassVar[bool] = True
    modes: ClassVar[tuple[Mode, ...]] = ("float16", "bfloat16", *FLOAT8_MODES)
    min_capability: ClassVar[int] = 90
    max_capability: ClassVar[int] = 90
    least: ClassVar[Mapping[str, int]] = {**Tiling.least, "split": 1, "copying_warps": 1}

    tile_m: int = 16
    tile_k: int = _LINE
    split: int = 1
    copying_warps: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        whole = (
            not self.tile_m % _INSTRUCTION_M
            and self.tile_m <= _MOST_M
            and self.tile_n in _TILES_N
            and not self.tile_k % _LINE
        )
        if not whole:
            raise InputError(
                f"The template {self.template} has tiles of 8 to 256 rows, a multiple of 8, of 64, "
                f"128 or 256 columns, and of a multiple of 64 products, not {self.tile_m} x "
                f"{self.tile_n} x {self.tile_k}."
            )
        if self.blocks or self.split > MAX_BLOCKS_OF_CLUSTER:
            raise InputError(
                f"The template {self.template} has a cluster of 1 to {MAX_BLOCKS_OF_CLUSTER} "
                f"blocks for each tile: blocks must be 0, and split no more than that, not "
                f"{self.blocks} and {self.split}."
            )

    @classmethod
    def refusal(cls, gemm: Gemm) -> str | None:
        """Return what a product lacks: 8-bit operands are only copied as they are."""
        along_k = gemm.layout == "tn" and not gemm.quantize
        if gemm.is_float8 and not (along_k and _mapped(gemm)):
            return (
                "multiplies 8-bit numbers only in layout tn, with rows a multiple of 16 bytes "
                "apart, and does not quantize A"
            )
        return None

    @classmethod
    def fitting(cls, gemm: Gemm, card: CardResources) -> Iterator[SkinnyParameters]:
        rows = gemm.most_rows
        others = gemm.groups or gemm.is_float8
        most = _MOST_ROWS_OF_OTHERS if others else _MOST_ROWS_TRIED
        if rows > most or cls.refusal(gemm):
            return
        heights = [
            math.ceil(rows / count / _INSTRUCTION_M) * _INSTRUCTION_M
            for count in ((1, 2) if rows > FEW_ROWS else (1,))
        ]
        tried = set()
        splits = range(1, MAX_BLOCKS_OF_CLUSTER + 1)
        copying: tuple[int, ...] = (1,)
        if not _b_mapped(gemm):
            copying = _COPYING_WARPS
        elif not _a_mapped(gemm):
            copying = _COPYING_WARPS_OF_A
        for tile_m, tile_n, tile_k, split, resident, warps in itertools.product(
            heights, _TILES_N, _depths(gemm), splits, _RESIDENT, copying
        ):
            base = cls(
                tile_m=tile_m, tile_n=tile_n, tile_k=tile_k, split=split, copying_warps=warps
            )
            room = card.shared_bytes // resident - card.reserved_shared_bytes
            room = min(room, card.shared_bytes_of_block) - ALIGNMENT_BYTES
            room -= base._sums_bytes() if split > 1 else 0
            stages = room // (base.loaded_bytes(gemm) + _BARRIER_BYTES)
            enough = max(2, base.max_steps(gemm))
            if split > base.steps(gemm) or stages < min(_MIN_STAGES, enough):
                continue
            stages = min(stages, _MAX_STAGES, enough)
            chosen = replace(base, stages=stages)
            if chosen not in tried and chosen.resident(gemm, card):
                tried.add(chosen)
                yield chosen

    @property
    def parts(self) -> int:
        return self.split

    @property
    def consumers(self) -> int:
        """The warpgroups that multiply."""
        return self.tile_n // WARPGROUP_ROWS

    @property
    def threads(self) -> int:
        return WARPGROUP * self.consumers + WARP_LANES * self.copying_warps

    def rotates(self, gemm: Gemm) -> bool:
        """Return whether tiles begin at different steps, see `SHORT_ROWS`.

        On an H200, 8 x 12288 x 4096 in ``nt`` took 34 instead of 44 us with 128 columns then, and
        28 instead of 32 with 256; with 64 rows, there was nothing to gain.
        """
        return gemm.a_transposed and gemm.most_rows <= SHORT_ROWS

    def registers(self, gemm: Gemm) -> int:
        consumer = self.tile_m // 2 + _CONSUMER_REGISTERS
        return consumer if _mapped(gemm) else max(consumer, _COPIER_REGISTERS)

    def _side_of_a(self, gemm: Gemm) -> int:
        """Return the rows of C in a stage; of A by columns, whole lines are copied."""
        return math.ceil(self.tile_m / _LINE) * _LINE if gemm.a_transposed else self.tile_m

    def loaded_bytes(self, gemm: Gemm) -> int:
        """Return the bytes of a stage."""
        return gemm.element_bytes * self.tile_k * (self._side_of_a(gemm) + self.tile_n)

    def _copied_bytes(self, gemm: Gemm) -> int:
        """Return the bytes of a stage that threads copy."""
        lines = 0 if _a_mapped(gemm) else self._side_of_a(gemm)
        lines += 0 if _b_mapped(gemm) else self.tile_n
        return gemm.element_bytes * self.tile_k * lines

    def _sums_bytes(self) -> int:
        """Return the shared memory of the sums that a block adds, those of all its cluster."""
        rows = math.ceil(self.tile_m / self.split) * self.split
        return 4 * rows * (self.tile_n + 4)

    def dynamic_bytes(self, gemm: Gemm) -> int:
        """Return a block's dynamic shared memory: stages, sums, and room to align them.

        The sums of a block alone come where its stages were.
        """
        stages, sums = self.stages * self.loaded_bytes(gemm), self._sums_bytes()
        return (max(stages, sums) if self.split == 1 else stages + sums) + ALIGNMENT_BYTES

    def shared_bytes(self, gemm: Gemm) -> int:
        """Return the shared memory of a block with its barriers, which the kernel declares."""
        return self.dynamic_bytes(gemm) + _BARRIER_BYTES * self.stages

    def cycles(self, gemm: Gemm, card: CardResources, costs: Costs | None = None) -> float:
        """Return the clock cycles that the product is expected to take.

        Blocks that run at once share what memory gives. One that is alone on its multiprocessor
        gets what its stages hold in each latency, or what the L2 gives a multiprocessor, and takes
        the time of a step's barriers and instructions.
        """
        costs = costs or costs_of(self.family)
        resident = self.resident(gemm, card)
        clusters = _CLUSTER_AREA * resident // self.split
        at_once = max(1, clusters * card.multiprocessors // _CLUSTER_AREA)
        tiles = self.tiles(gemm)
        waves, rest = divmod(tiles, at_once)
        steps = self.max_steps(gemm)
        loaded = self.loaded_bytes(gemm)
        depth = DEPTH_BYTES // gemm.element_bytes
        per_cycle = PRODUCTS_PER_CYCLE * 2 // gemm.element_bytes
        instruction = WARPGROUP_ROWS * depth * self.tile_m / per_cycle
        read = DEPTH_BYTES * (WARPGROUP_ROWS + self.tile_m) / SHARED_BYTES_PER_CYCLE
        busy = self.consumers * self.tile_k / depth * max(instruction, read)
        # Threads that copy wait for each batch of loads; the accelerator fills all stages at once.
        # All warps copy parts of a step or, where only A is copied, each the A of another step.
        together, in_turn = self.copying_warps, 1
        if _b_mapped(gemm):
            together, in_turn = 1, max(1, self.copying_warps - 1)
        batches = math.ceil(self._copied_bytes(gemm) / (together * _LOADED_AT_ONCE_BYTES)) / in_turn
        waiting = costs.latency_cycles * max(batches, 1 / (self.stages - 1))
        alone = costs.step_cycles + costs.product_share * busy / self.consumers
        if not _b_mapped(gemm):
            copying = self.copying_warps * _COPIED_BYTES_PER_CYCLE
            alone = max(alone, self._copied_bytes(gemm) / copying)
        moved = gemm.bytes_moved / (card.multiprocessors * costs.memory_bytes_per_cycle)
        sums = 4 * self.tile_m * self.tile_n / costs.parts_bytes_per_cycle
        beside = costs.first_cycles + sums + (costs.cluster_cycles + sums) * (self.split > 1)

        def wave_cycles(count: int, share: float) -> float:
            loading = count * loaded / costs.loaded_bytes_per_cycle
            multiplying = count * busy * costs.product_share
            of_step = (loading, waiting, multiplying, alone)
            return soft_maximum(share * moved, *(steps * cycles for cycles in of_step))

        # Of a wave's blocks, some begin and end while others load.
        total = costs.start_cycles - costs.early_cycles * self.begins_early(gemm)
        total += beside * (1 + max(0, waves + bool(rest) - 1) / resident)
        total += waves * wave_cycles(resident, at_once / tiles)
        if rest:
            count = math.ceil(rest * self.split / card.multiprocessors)
            total += wave_cycles(count, rest / tiles)
        return float(total) + short_line_cycles(gemm, tiles, _SHORT_LINE_CYCLES)

    def kernel(self, gemm: Gemm) -> Kernel:
        self.check_product(gemm)
        if self.tile_k not in _depths(gemm):
            raise InputError(
                f"The template {self.template} has no steps of {self.tile_k} for {gemm.name}."
            )
        kind = KINDS[gemm.mode]
        count = self.tile_m // 2
        depth = DEPTH_BYTES // gemm.element_bytes
        shape = f"m64n{self.tile_m}k{depth}.f32.{kind}.{kind}"
        along = f'", {int(not gemm.b_transposed)}, {int(gemm.a_transposed)}"'
        left, right, add = places_after(count, 1, 1, 1)
        constants: dict[str, Constant] = {
            "LDA": gemm.lda,
            "LDB": gemm.ldb,
            "CONSUMERS": self.consumers,
            "COPYING_WARPS": self.copying_warps,
            "ROTATED": f"{self.rotates(gemm):d}",
            "B_KEPT": gemm.element_bytes * gemm.products * gemm.K * gemm.N <= _KEPT_BYTES,
            "A_MAPPED": _a_mapped(gemm),
            "B_MAPPED": _b_mapped(gemm),
            "MULTIPLY_ADD": f'"wgmma.mma_async.sync.aligned.{shape}"',
            **sums_constants(count),
            "LEFT_PLACE": left,
            "RIGHT_PLACE": right,
            "ADD_PLACE": add,
            "ALONG": '""' if gemm.is_float8 else along,
            "PROMOTED": gemm.is_float8 and gemm.accumulation != "fast",
            "B_SCALE_ROW": f"{gemm.shapes_of_scales[1][-1]}",
        }
        texts = ("hopper/barriers", "gemm/pieces", "gemm/skinny")
        return tiled_kernel(
            gemm, self, constants, texts, self.dynamic_bytes(gemm), self._tensor_maps(gemm)
        )

    def _tensor_maps(self, gemm: Gemm) -> tuple[TensorMap, ...]:
        """Return the tensor maps of the matrices that can be mapped."""
        maps = []
        if _a_mapped(gemm):
            dims = (gemm.M, gemm.K) if gemm.a_transposed else (gemm.K, gemm.M)
            height = self.tile_k if gemm.a_transposed else self.tile_m
            maps.append(matrix_map("A", gemm, dims, gemm.lda, height))
        if _b_mapped(gemm):
            dims = (gemm.K, gemm.N) if gemm.b_transposed else (gemm.N, gemm.K)
            height = self.tile_n if gemm.b_transposed else self.tile_k
            maps.append(matrix_map("B", gemm, dims, gemm.ldb, height))
        return tuple(maps)


def _depths(gemm: Gemm) -> tuple[int, ...]:
    """Return the products of a step that are tried; sums that are scaled or promoted have one."""
    if not gemm.is_float8:
        return _TILES_K
    return (SCALE_BLOCK, 2 * SCALE_BLOCK) if gemm.accumulation == "fast" else (SCALE_BLOCK,)


def _a_mapped(gemm: Gemm) -> bool:
    """Return whether a tensor map describes A, in boxes that begin where groups do."""
    return can_be_mapped(gemm, gemm.lda) and groups_are_boxed(gemm)


def _b_mapped(gemm: Gemm) -> bool:
    """Return whether a tensor map describes B."""
    return can_be_mapped(gemm, gemm.ldb)


def _mapped(gemm: Gemm) -> bool:
    """Return whether tensor maps describe both A and B."""
    return _a_mapped(gemm) and _b_mapped(gemm)
