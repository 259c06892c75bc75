"""The template for tensor cores: products in TF32 and half precision, see cuda/gemm/mma.cu."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from pytest_gpuenergy.kernels import Kernel
from pytest_gpuenergy.support import InputError
from pytest_gpuenergy.tuners.gemm.costs import Costs, costs_of
from pytest_gpuenergy.tuners.gemm.estimate import SCHEDULERS, BlockStep, product_cycles
from pytest_gpuenergy.tuners.gemm.tiling import (
    MAX_BLOCKS_OF_CLUSTER,
    Tiling,
    copied_kernel,
    copy_width,
    copy_width_of_a,
)
from pytest_gpuenergy.tuning import SHARED_BYTES_PER_CYCLE, WARP_LANES, CardResources
from pytest_gpuenergy.workloads import Gemm, Mode

_PIECE = 16
"""The side of the square pieces that make up a warp's part of a tile."""
_TILES = (32, 64, 128, 256)
_WARPS = (16, 32, 64)
_ROW_BYTES = (64, 128)
_STAGES = (2, 3, 4, 5)
_FEW_TILES = (32, 64)
_FEW_WARPS = ((16, 16), (32, 16), (32, 32))
_SLICES = (1, 4, 8)
_SLICE_BYTES = (64, 128)
_FEW_SPLITS = (1, 4, 6, 8)
_FEW_STAGES = (2, 3, 4)
_FEW_THREADS = range(128, 513)
"""What is tried where tiles are few: tiles, warps, slices, the bytes of a row that a slice has in a
step, blocks that divide the steps of a tile, stages, and threads. Tiles of 128, warps of 16 x 32,
two slices, two or three blocks, and five stages were fastest for none of 38 products on an H200
(``gemm-trials-untuned-tenth.jsonl.gz`` in ``bench/results``)."""
_MOST_BLOCKS = 4
"""The most blocks for each multiprocessor with which slices are tried."""
_FIRST_WITH_CLUSTERS = 90
_PRODUCTS_PER_CYCLE = {80: 1024, 86: 512, 87: 512, 89: 512}
"""The products of 16-bit elements that ``mma.sync`` computes on a multiprocessor per cycle, by
compute capability (NVIDIA A100 and GA102 whitepapers)."""
_LATEST_PRODUCTS_PER_CYCLE = 1024
_LEAST_ASYNCHRONOUS_BYTES = 4
"""The least that an asynchronous copy copies (PTX ISA, ``cp.async``)."""
MIN_SPLIT_K = 32
"""The fewest products in a sum for which the lower bits of split elements are cut off, not rounded.
Leaving out the product of the smaller parts loses up to 2^-20 of a product, and the lowest bits of
each smaller part lose 3 * 2^-23: more than the error bounds of up to ten products allow. Over a
whole step the errors average out."""
_SPLITTING: Mapping[Mode, float] = {"3xtf32": 1.0, "tf32": 0.25}
"""The instructions by which each warp makes TF32 numbers of its elements, relative to splitting."""
_CUT_OFF = 0.4
"""The time of splitting without rounding, relative to splitting with it, whose two conversions have
half the rate of other instructions."""
_COST: Mapping[Mode, int] = {"tf32": 2, "3xtf32": 6, "float16": 1, "bfloat16": 1}
"""The time of a product, as a multiple of one of 16-bit elements."""


def products_per_cycle(mode: Mode, card: CardResources) -> float:
    """Return the products in a mode that ``mma.sync`` computes on a multiprocessor per cycle."""
    return _PRODUCTS_PER_CYCLE.get(card.capability, _LATEST_PRODUCTS_PER_CYCLE) / _COST[mode]


@dataclass(frozen=True, kw_only=True)
class MmaParameters(Tiling):
    """The parameters of a kernel of the template.

    Attributes:
        warp_m: the rows of a tile that a warp computes.
        warp_n: the columns of a tile that a warp computes.
        slices: the groups of warps that divide the products of each step.
        split: the blocks of a cluster that divide the steps of each tile, or 1.
    """

    template: ClassVar[str] = "mma"
    family: ClassVar[str] = "mma"
    modes: ClassVar[tuple[Mode, ...]] = ("tf32", "3xtf32", "float16", "bfloat16")
    min_capability: ClassVar[int] = 80
    added: ClassVar[Mapping[str, int]] = {"slices": 1, "split": 1}
    least: ClassVar[Mapping[str, int]] = {**Tiling.least, **added}

    tile_k: int = 32
    warp_m: int = 32
    warp_n: int = 32
    slices: int = 1
    split: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        whole = (
            self.warp_m > 0
            and self.warp_n > 0
            and not self.warp_m % _PIECE
            and not self.warp_n % _PIECE
            and not self.tile_m % self.warp_m
            and not self.tile_n % self.warp_n
            and not self.tile_k % (_PIECE * self.slices)
        )
        if not whole:
            raise InputError(
                f"A tile of {self.tile_m} x {self.tile_n} x {self.tile_k} cannot be divided among "
                f"{self.slices} slices of warps of {self.warp_m} x {self.warp_n} in pieces of "
                "16 x 16 x 16."
            )
        if self.split > 1 and (self.blocks or self.split > MAX_BLOCKS_OF_CLUSTER):
            raise InputError(
                f"The template {self.template} divides the steps of a tile among up to "
                f"{MAX_BLOCKS_OF_CLUSTER} blocks, and only with blocks=0."
            )

    @classmethod
    def fitting(cls, gemm: Gemm, card: CardResources) -> Iterator[MmaParameters]:
        yield from cls._of_few_tiles(gemm, card)
        depths = [row // gemm.element_bytes for row in _ROW_BYTES]
        for tile_m, tile_n, tile_k, warp_m, warp_n, stages in itertools.product(
            _TILES, _TILES, depths, _WARPS, _WARPS, _STAGES
        ):
            if tile_m % warp_m or tile_n % warp_n:
                continue
            base = cls(
                tile_m=tile_m,
                tile_n=tile_n,
                tile_k=tile_k,
                stages=stages,
                warp_m=warp_m,
                warp_n=warp_n,
            )
            yield from base.divided(gemm, card)

    @classmethod
    def _of_few_tiles(cls, gemm: Gemm, card: CardResources) -> Iterator[MmaParameters]:
        """Yield parameters with slices, and with clusters that divide the steps of a tile."""
        for tile_m, tile_n, (warp_m, warp_n), slices, depth in itertools.product(
            _FEW_TILES, _FEW_TILES, _FEW_WARPS, _SLICES, _SLICE_BYTES
        ):
            if tile_m % warp_m or tile_n % warp_n:
                continue
            tile_k = slices * depth // gemm.element_bytes
            warps = {"warp_m": warp_m, "warp_n": warp_n, "slices": slices}
            one = cls(tile_m=tile_m, tile_n=tile_n, tile_k=tile_k, **warps)
            for split, stages in itertools.product(_FEW_SPLITS, _FEW_STAGES):
                base = replace(one, stages=stages, split=split)
                blocks, steps = base.tiles(gemm) * split, base.max_steps(gemm)
                few = slices * split > 1 and blocks <= _MOST_BLOCKS * card.multiprocessors
                useful = split <= base.steps(gemm) and stages <= max(2, steps + 1)
                runs = base.threads in _FEW_THREADS and base.runs_on(card)
                if few and useful and runs and base.resident(gemm, card):
                    yield base

    def runs_on(self, card: CardResources) -> bool:
        """Return whether the card has clusters, if the kernel needs them."""
        return self.suits(card) and (self.split == 1 or card.capability >= _FIRST_WITH_CLUSTERS)

    @property
    def parts(self) -> int:
        return self.split

    @property
    def threads(self) -> int:
        warps = (self.tile_m // self.warp_m) * (self.tile_n // self.warp_n)
        return WARP_LANES * warps * self.slices

    def registers(self, gemm: Gemm) -> int:
        """Return about how many registers a thread needs, for its sums, operands and addresses."""
        sums = self.warp_m * self.warp_n // WARP_LANES
        operands = (self.warp_m + self.warp_n) // 4  # of one instruction's depth
        parts = 4 + self.warp_n // 4 + self.warp_n // 2 if gemm.mode == "3xtf32" else 0
        return sums + operands + parts + 40

    def shared_bytes(self, gemm: Gemm) -> int:
        row = self.tile_k + 16 // gemm.element_bytes
        of_a = self.tile_k * (self.tile_m + 8) if gemm.a_transposed else self.tile_m * row
        of_b = self.tile_n * row if gemm.b_transposed else self.tile_k * (self.tile_n + 8)
        left = 4 * self.slices * self.tile_m * (self.tile_n + 8)
        gathered = self.slices * self.split > 1
        return max(gemm.element_bytes * self.stages * (of_a + of_b), left * gathered)

    def rounds(self, gemm: Gemm) -> bool:
        """Return whether elements are rounded to TF32, rather than that lower bits are cut off."""
        return gemm.mode == "tf32" or gemm.K < MIN_SPLIT_K

    def cycles(self, gemm: Gemm, card: CardResources, costs: Costs | None = None) -> float:
        """Return the clock cycles that the product is expected to take.

        A warp that computes w_m x w_n elements loads w_m + w_n from shared memory for each column
        of A and row of B. In the modes of TF32, it splits or rounds them first.
        """
        costs = costs or costs_of(self.family)
        products = self.tile_m * self.tile_n * self.tile_k
        multiplying = costs.product_share * products / products_per_cycle(gemm.mode, card)
        widths = copy_width_of_a(gemm), copy_width(gemm, gemm.ldb)
        instructions = sum(
            tile / width * (costs.copy_instructions if asynchronous else costs.kept_instructions)
            for tile, width in ((self.tile_m, widths[0]), (self.tile_n, widths[1]))
            for asynchronous in [gemm.element_bytes * width >= _LEAST_ASYNCHRONOUS_BYTES]
        )
        warps = self.threads // WARP_LANES // self.slices  # that compute with all of K
        split = costs.split_share * _SPLITTING.get(gemm.mode, 0.0) * warps
        split *= 1.0 if self.rounds(gemm) else _CUT_OFF
        splitting = split * self.tile_k * (self.warp_m + self.warp_n) / WARP_LANES / SCHEDULERS
        copying = self.tile_k * instructions / WARP_LANES / SCHEDULERS
        loaded = gemm.element_bytes * products * (1 / self.warp_m + 1 / self.warp_n)
        storing = gemm.element_bytes * self.tile_m * self.tile_n / costs.stored_bytes_per_cycle
        sums = 4 * self.tile_m * self.tile_n
        gathered = self.slices * self.split > 1
        gathering = gathered * self.slices * sums * 2 / SHARED_BYTES_PER_CYCLE
        gathering += sums * (self.split - 1) / self.split / costs.parts_bytes_per_cycle
        slower = costs.divided_share if self.split > 1 else 1.0
        row = gemm.element_bytes * self.tile_k
        step = BlockStep(
            busy_cycles=max(
                multiplying + splitting + copying,
                costs.served_share * loaded / SHARED_BYTES_PER_CYCLE,
            ),
            warps=self.threads // WARP_LANES,
            loaded_bytes=round(slower * row * (self.tile_m + self.tile_n)),
            last_cycles=storing / self.split + gathering,
            next_cycles=storing,
            waits_for_copies=gemm.element_bytes * min(widths) < _LEAST_ASYNCHRONOUS_BYTES,
        )
        return product_cycles(gemm, self, card, step, costs)

    def kernel(self, gemm: Gemm) -> Kernel:
        self.check_product(gemm)
        constants = {
            "WARP_M": self.warp_m,
            "WARP_N": self.warp_n,
            "HALVES": gemm.element_bytes == 2,
            "BFLOAT16": gemm.mode == "bfloat16",
            "SPLIT": gemm.mode == "3xtf32",
            "ROUNDED": self.rounds(gemm),
            "SLICES": self.slices,
            "ASYNCHRONOUS": True,
        }
        self.check_parts(gemm)
        before = ["hopper/barriers"] * (self.split > 1)
        return copied_kernel(gemm, self, constants, self.shared_bytes(gemm), texts_before=before)
