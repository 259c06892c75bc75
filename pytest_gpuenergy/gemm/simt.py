"""The template for CUDA cores: float32 products of any size, see cuda/gemm/simt.cu."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from pytest_gpuenergy.gemm.tiling import SCHEDULERS, Step, Tiling, copied_kernel, cycles_of
from pytest_gpuenergy.kernels import Kernel
from pytest_gpuenergy.support import InputError
from pytest_gpuenergy.tuning import FIRST_ASYNCHRONOUS, SHARED_BYTES_PER_CYCLE, WARP_LANES, Card
from pytest_gpuenergy.workloads import Gemm, Mode

_LANES = (4, 8)
"""Threads of a warp along M and along N."""
_WIDEST = 4
"""Elements of the widest load, 16 bytes; a thread's rows and columns come in pieces of as many."""
_TILES = (32, 64, 96, 128, 192, 256)
_THREAD_TILES = ((4, 4), (8, 4), (4, 8), (8, 8), (8, 12), (16, 8), (8, 16))
_ALONG = (8, 16, 32)
"""Elements of a row of A that neighbouring threads copy if they transpose it."""
_MOST_ROWS = 8
"""Of a thread that reads A by rows: it holds four elements of each."""
_SLICES = (1, 2, 4, 8)
_DEPTHS = (8, 16, 32, 64, 128)
_STAGES = (2, 3, 4)
_PRODUCTS = range(256, 2049)
"""Of a thread in a step, which is unrolled: more would not fit the cache of instructions, and with
fewer the rest of a step weighs too much."""
_LONGEST_SIDE = 4
"""Of a tile, as a multiple of the other."""
_MOST_REGISTERS = 255
"""Of a thread (all from sm_70 on)."""
_ENOUGH_WARPS = 12
_READ_CYCLES = 2
"""In which shared memory serves a load of 16 bytes by each lane of a warp, of which four lanes or
more read the same (see ``Thread`` in the text)."""
_BANKS = SHARED_BYTES_PER_CYCLE // 4
_COPY_INSTRUCTIONS, _STEP_INSTRUCTIONS = 3, 50
"""Of a copy to shared memory with its addresses, and of the rest of a step, about."""
# Fitted to the times of the records of 24 products on an H200 of 2026-11-23.
_PRODUCT_CYCLES = 1.15
"""Between the multiplications that a scheduler issues."""
_TRANSPOSED_SHARE = 0.87
"""Of these cycles, if A is transposed in shared memory, a scheduler issues a multiplication in each
cycle, and a thread has more than 4 x 4 sums: by the banks of registers (see
``studies/register_banks.py``)."""
_LINE_CYCLES = 0.4
"""For each row of which a warp copies elements to transpose them, by pairs of kernels on an
H100 (see ``docs/notes/products.md``)."""
_BARRIER_CYCLES = 250
"""From the end of a step to the first products of the next, in which only other blocks can work."""
_TILE_CYCLES = 1000
"""In which a tile begins and its sums are stored, besides what the first step waits for."""
# Fitted to the power in bench/results/nvidia-h200-2026-11-23/gemm.json: 194 W, and these energies.
_PRODUCT_PJ = 15.8
_READ_PJ = 6.2
"""Of an element that a thread reads from shared memory."""
_LOADED_BYTE_PJ = 36.0
"""Of a byte from the L2."""
_PJ_PER_CYCLE = 1940.0
"""That 700 W less 194 W leave to each of 132 multiprocessors at 1.98 GHz. Other cards count as
alike."""
_ALONE = 1.1
"""Cycles per instruction of a warp that has a scheduler to itself, about."""


@dataclass(frozen=True, kw_only=True)
class SimtParameters(Tiling):
    """What distinguishes one kernel of the template from another.

    Attributes:
        thread_m: rows of a tile that a thread computes; ``thread_n`` columns.
        slices: groups of warps that divide each step among them, and add their sums at the end.
        transpose_a: 0, or A is transposed on its way to shared memory if it is stored by rows, and
            neighbouring threads copy so many elements of a row: 8, 16 or 32.
        asynchronous: whether copies to shared memory bypass registers, which takes sm_80.

    Raises:
        InputError: no kernel can have these.
    """

    template: ClassVar[str] = "simt"
    modes: ClassVar[tuple[Mode, ...]] = ("float32",)
    least_capability: ClassVar[int] = 70
    added: ClassVar[Mapping[str, int]] = {"slices": 1, "transpose_a": 0}

    thread_m: int = 8
    thread_n: int = 4
    slices: int = 1
    transpose_a: int = 0
    asynchronous: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        lanes_m, lanes_n = _LANES
        whole = (
            self.thread_m >= _WIDEST
            and self.thread_n >= _WIDEST
            and not self.thread_m % _WIDEST
            and not self.thread_n % _WIDEST
            and not self.tile_m % (lanes_m * self.thread_m)
            and not self.tile_n % (lanes_n * self.thread_n)
        )
        if not whole:
            raise InputError(
                f"A tile of {self.tile_m} x {self.tile_n} cannot be divided among warps of "
                f"{lanes_m} x {lanes_n} threads with {self.thread_m} x {self.thread_n} elements "
                "each, in pieces of 4 x 4."
            )
        if self.slices < 1 or self.tile_k % (_WIDEST * self.slices) or self.thread_m % self.slices:
            raise InputError(
                f"A step of {self.tile_k} columns, and {self.thread_m} rows of a thread, cannot be "
                f"divided into {self.slices} slices, of which each has columns in pieces of 4."
            )

        if self.transpose_a not in (0, *_ALONG) or not self._copies_whole(self.transpose_a):
            raise InputError(
                f"transpose_a is {self.transpose_a}: choose 0, 8, or one of 16 and 32 that divides "
                f"the {self.tile_k // self.slices} columns of a slice and a quarter of the "
                f"{self.threads} threads."
            )

    @classmethod
    def fitting(cls, gemm: Gemm, card: Card) -> Iterator[SimtParameters]:
        """Parameters worth trying for a product on a card that has the resources for them."""
        asynchronous = card.capability >= FIRST_ASYNCHRONOUS
        for tile_m, tile_n, thread, slices, tile_k, stages in itertools.product(
            _TILES, _TILES, _THREAD_TILES, _SLICES, _DEPTHS, _STAGES
        ):
            if max(tile_m, tile_n) > _LONGEST_SIDE * min(tile_m, tile_n):
                continue
            if thread[0] * thread[1] * tile_k // slices not in _PRODUCTS:
                continue
            try:
                base = cls(
                    tile_m=tile_m,
                    tile_n=tile_n,
                    tile_k=tile_k,
                    stages=stages,
                    thread_m=thread[0],
                    thread_n=thread[1],
                    slices=slices,
                    asynchronous=asynchronous,
                )
            except InputError:  # warps do not fill the tile, or slices the step
                continue
            if gemm.layout == "nt" or thread[0] <= _MOST_ROWS:
                yield from base.divided(gemm, card)
            if gemm.layout == "nn":
                for along in base.worth_copying:
                    yield from replace(base, transpose_a=along).divided(gemm, card)

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return (self.tile_m // self.thread_m) * (self.tile_n // self.thread_n) * self.slices

    @property
    def products(self) -> int:
        """Multiplications of a thread in one step."""
        return self.thread_m * self.thread_n * self.tile_k // self.slices

    @property
    def worth_copying(self) -> tuple[int, ...]:
        """Values of ``transpose_a`` to try: the least, and the most that can be.

        On an H100, more than the least was up to 14 % faster in products up to 1152, as fast in
        larger ones, and 4 to 10 % slower where a thread has 12 columns.
        """
        least, *more = _ALONG
        found = [along for along in more if self._copies_whole(along)] if self.thread_n % 3 else []
        return (least, *found[-1:])

    def runs_on(self, card: Card) -> bool:
        """See `Tiling.runs_on`; asynchronous copies came with sm_80."""
        able = not self.asynchronous or card.capability >= FIRST_ASYNCHRONOUS
        return able and self.suits(card)

    def transposes(self, gemm: Gemm) -> bool:
        """Whether A is transposed on its way to shared memory."""
        return bool(self.transpose_a) and gemm.layout == "nn"

    def registers(self, gemm: Gemm) -> int:
        """Registers that a thread needs, about: as many as ptxas of CUDA 13.0 takes.

        Where A is read by rows, four of its columns are read at once. Then a thread with 128 sums
        would have more than there are; it still keeps all its sums in registers.
        """
        sums = self.thread_m * self.thread_n
        if gemm.layout == "nt" or self.transpose_a:
            return sums + 2 * (self.thread_m + self.thread_n) + 32
        return min(sums + 4 * self.thread_m + 10 * self.thread_n - 8, _MOST_REGISTERS)

    def shared_bytes(self, gemm: Gemm) -> int:
        """Shared memory of a block: its stages, and after them the sums of its slices."""
        if self.transposes(gemm):
            of_a = self.tile_k * (self.tile_m + _WIDEST)
        elif gemm.layout == "nt":
            of_a = self.tile_k * self.tile_m
        else:
            of_a = self.tile_m * (self.tile_k + (0 if self.tile_k % _BANKS else _WIDEST))
        sums = self.slices * self.tile_m * self.tile_n if self.slices > 1 else 0
        return 4 * max(self.stages * (of_a + self.tile_k * self.tile_n), sums)

    def cycles(self, gemm: Gemm, card: Card) -> float:
        """Clock cycles that the product is expected to take.

        A warp issues its multiplications, its loads of four elements from shared memory and what
        copies the next step there: four elements at once, or one of an A that it transposes, of as
        many rows at once as make a line of the cache. Slices write their sums to shared memory and
        read them again.
        Large products run at the power limit, where what counts is the energy of a step.
        """
        warps = self.threads // WARP_LANES
        depth = self.tile_k // self.slices
        per_product = _PRODUCT_CYCLES * SCHEDULERS * WARP_LANES / card.cores
        read = (self.thread_m + self.thread_n) * depth
        copied = self.tile_k * (self.tile_m + self.tile_n)
        pieces = copied / _WIDEST
        lines = 0.0
        if self.transposes(gemm):
            if card.cores == SCHEDULERS * WARP_LANES and self.thread_m * self.thread_n > _WIDEST**2:
                per_product *= _TRANSPOSED_SHARE
            pieces += self.tile_k * self.tile_m * (1 - 1 / _WIDEST)
            lines = self.tile_k * self.tile_m / self.transpose_a
        copies = pieces / self.threads * _COPY_INSTRUCTIONS
        issued = per_product * self.products + read / _WIDEST + copies + _STEP_INSTRUCTIONS
        serving = warps * read / _WIDEST * _READ_CYCLES + 4 * copied / SHARED_BYTES_PER_CYCLE
        sums = 2 * 4 * (self.slices - 1) * self.tile_m * self.tile_n
        energy_pj = (
            self.threads * (self.products * _PRODUCT_PJ + read * _READ_PJ)
            + 4 * copied * _LOADED_BYTE_PJ
        )
        step = Step(
            busy_cycles=max(issued * warps / SCHEDULERS, serving),
            warps=_ENOUGH_WARPS,
            loaded_bytes=4 * copied,
            alone_cycles=issued * max(math.ceil(warps / SCHEDULERS), _ALONE)
            + lines * _LINE_CYCLES
            + _BARRIER_CYCLES,
            last_cycles=_TILE_CYCLES + sums / SHARED_BYTES_PER_CYCLE,
            energy_cycles=energy_pj / _PJ_PER_CYCLE,
            issuing_warps=warps,
        )
        return cycles_of(gemm, self, card, step, self.resident(gemm, card))

    def _copies_whole(self, along: int) -> bool:
        """Whether four rows or more are copied at once, and slices begin with whole copies."""
        if along <= _ALONG[0]:
            return True
        return not self.tile_k // self.slices % along and not self.threads // _WIDEST % along

    def kernel(self, gemm: Gemm) -> Kernel:
        """The kernel for a product.

        Raises:
            InputError: the product is not in float32.
        """
        self.check_mode(gemm)
        constants = {
            "THREAD_M": self.thread_m,
            "THREAD_N": self.thread_n,
            "SLICES": self.slices,
            "TRANSPOSE_A": self.transpose_a,
            "ASYNCHRONOUS": self.asynchronous,
        }
        return copied_kernel(gemm, self, constants, self.shared_bytes(gemm))
