"""The template for CUDA cores: float32 products of any size, see cuda/gemm/simt.cu."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from pytest_gpuenergy.kernels import Kernel
from pytest_gpuenergy.support import InputError
from pytest_gpuenergy.tuners.gemm.costs import Costs, costs_of
from pytest_gpuenergy.tuners.gemm.estimate import (
    SCHEDULERS,
    BlockStep,
    copying_cycles,
    product_cycles,
)
from pytest_gpuenergy.tuners.gemm.operands import COPY_TEXTS, OperandCopies, copy_of
from pytest_gpuenergy.tuners.gemm.tiling import (
    THREADS_TRIED,
    Tiling,
    copied_kernel,
    copy_width,
    copy_width_of_a,
)
from pytest_gpuenergy.tuning import (
    FIRST_ASYNCHRONOUS,
    SHARED_BYTES_PER_CYCLE,
    WARP_LANES,
    CardResources,
    Constant,
)
from pytest_gpuenergy.workloads import Gemm, Mode

_LANES = (4, 8)
"""The threads of a warp along M and along N."""
_WIDEST = 4
"""The elements of the widest load, 16 bytes; a thread's rows and columns come in pieces of four."""
_TILES = (32, 64, 96, 128, 192, 256)
_THREAD_TILES = ((4, 4), (8, 4), (4, 8), (8, 8), (8, 12), (16, 8), (8, 16))
_ALONG = (8, 16, 32)
"""The elements of a row of A that neighbouring threads copy if they transpose it."""
_MAX_ROWS = 8
"""The most rows of a thread that reads A by rows: it holds four elements of each."""
_LEAST_TURNED = 192
"""Half the sides of a square C from which on copying operands may pay."""
_LEAST_SPREAD = 16
"""The least columns of a slice's step between whose multiplications copies are spread."""
_LEAST_TURNED_TILE = 64
"""The least side of the tiles that are then tried: such products are large."""
_COPYING_FAMILY = "hopper"
"""The templates whose costs tell how long a launch takes that copies: there it was fitted."""
_SLICES = (1, 2, 4, 8)
_DEPTHS = (8, 16, 32, 64, 128)
_STAGES = (2, 3, 4)
_PRODUCTS = range(256, 2049)
"""The multiplications of a thread in a step that are worth trying. The step is unrolled: more would
not fit the instruction cache, and with fewer the rest of a step weighs too much."""
_LONGEST_SIDE = 4
"""The longer side of a tile, as a multiple of the other."""
_MAX_REGISTERS = 255
"""The most registers of a thread (from sm_70 on)."""
_ENOUGH_WARPS = 12
_READ_CYCLES = 2
"""The cycles in which shared memory serves a load of 16 bytes by each lane of a warp, if at least
four lanes read the same (see ``Thread`` in the text)."""
_BANKS = SHARED_BYTES_PER_CYCLE // 4
_STEP_INSTRUCTIONS = 50
"""The approximate instructions of a step besides its multiplications, reads and copies."""
_TRANSPOSED_SHARE = 0.87
"""The share of a multiplication's cycles that remains if threads read columns of A, a scheduler
issues a multiplication in each cycle, and a thread has more than 4 x 4 sums. The reason is the
banks of registers (see ``studies/register_banks.py``)."""
_LINE_CYCLES = 0.4
"""The cycles for each row whose elements a warp copies to transpose them, measured with pairs of
kernels on an H100 (see ``docs/notes/products.md``)."""
_TILE_CYCLES = 1000
"""The cycles to begin a tile and to store its sums, besides the wait for the first step."""
# Fitted to the energies of kernels under steady load on H100s and H200s in bench/results, and to a
# power of 201 W without them.
_PRODUCT_PJ = 14.7
"""The energy of a multiplication."""
_READ_PJ = 15.8
"""The energy of an element that a thread reads from shared memory."""
_LOADED_BYTE_PJ = 16.6
"""The energy of a byte from the L2."""
_INSTRUCTION_PJ = 10.0
"""The energy of another instruction of a thread, roughly."""
_PJ_PER_CYCLE = 1909.0
"""The energy that 700 W less 201 W leave to each of 132 multiprocessors at 1.98 GHz. Other cards
are treated alike."""
_ALONE = 1.1
"""The approximate cycles per instruction of a warp that has a scheduler to itself."""
TRAITS = (
    *("resident", "waves", "last", "together", "warps", "warps_together", "stages"),
    *("steps", "tiles_of_block", "parts_of_cycles", "copied_of_product", "products", "registers"),
    *("tile_m", "tile_n", "tile_k", "thread_m", "thread_n", "slices", "sums_of_thread", "depth"),
    *("slices_sums_of_cycles", "stored_transposed", "transposes", "transpose_a"),
    *("transposes_b", "narrow_of_product", "turned", "spread", "turned_pieces"),
    *("turned_of_product", "filled", "divided"),
)
"""The names of `SimtParameters.traits`, in this order."""


@dataclass(frozen=True, kw_only=True)
class SimtParameters(Tiling):
    """The parameters of a kernel of the template.

    Attributes:
        thread_m: the rows of a tile that a thread computes.
        thread_n: the columns of a tile that a thread computes.
        slices: the groups of warps that divide each step among them, and add their sums at the end.
        transpose_a: the number of elements of a row that neighbouring threads copy (8, 16 or 32) if
            A, stored by rows, is transposed on its way to shared memory; 0 if it is not. A
            transposed B is transposed back in the same way, by at least 8 elements.
        asynchronous: whether copies to shared memory bypass registers, which needs sm_80.
        turned: whether operands are copied by a launch before that of the product, which then
            computes the layout ``nt``: those whose rows lie along K are transposed, and those
            whose rows are not a multiple of 16 bytes apart are aligned. Copies have whole tiles.
        spread: whether copies to shared memory are spread between the multiplications of a step
            (see `worth_spreading`).
    """

    template: ClassVar[str] = "simt"
    corrections: ClassVar[str] = "simt"
    family: ClassVar[str] = "simt"
    modes: ClassVar[tuple[Mode, ...]] = ("float32",)
    min_capability: ClassVar[int] = 70
    added: ClassVar[Mapping[str, int]] = {"slices": 1, "transpose_a": 0, "turned": 0, "spread": 0}

    thread_m: int = 8
    thread_n: int = 4
    slices: int = 1
    transpose_a: int = 0
    asynchronous: bool = True
    turned: bool = False
    spread: bool = False

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
    def fitting(cls, gemm: Gemm, card: CardResources) -> Iterator[SimtParameters]:
        asynchronous = card.capability >= FIRST_ASYNCHRONOUS
        worth_turning = _worth_turning(gemm)
        for tile_m, tile_n, thread, slices, tile_k, stages in itertools.product(
            _TILES, _TILES, _THREAD_TILES, _SLICES, _DEPTHS, _STAGES
        ):
            if max(tile_m, tile_n) > _LONGEST_SIDE * min(tile_m, tile_n):
                continue
            if thread[0] * thread[1] * tile_k // slices not in _PRODUCTS:
                continue
            if (tile_m // thread[0]) * (tile_n // thread[1]) * slices not in THREADS_TRIED:
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
            tried: list[dict[str, int]] = []
            if gemm.layout != "tt" and (gemm.a_transposed or thread[0] <= _MAX_ROWS):
                tried.append({})
            if worth_turning and min(tile_m, tile_n) >= _LEAST_TURNED_TILE and slices == 1:
                tried.append({"turned": True})
            if gemm.layout != "nt":
                tried += ({"transpose_a": along} for along in base.worth_copying)
            for changes in tried:
                one = cls.__new__(cls)  # there are thousands, and all are valid
                vars(one).update(vars(base), **changes)
                vars(one)["spread"] = one.worth_spreading(gemm)
                yield from one.divided(gemm, card)

    @property
    def threads(self) -> int:
        return (self.tile_m // self.thread_m) * (self.tile_n // self.thread_n) * self.slices

    @property
    def products(self) -> int:
        """The multiplications of a thread in one step."""
        return self.thread_m * self.thread_n * self.tile_k // self.slices

    @property
    def worth_copying(self) -> tuple[int, ...]:
        """The values of ``transpose_a`` to try: the least, and the largest that is possible.

        On an H100, more than the least was up to 14 % faster in products up to 1152, as fast in
        larger ones, and 4 to 10 % slower where a thread has 12 columns.
        """
        least, *more = _ALONG
        longer = [along for along in more if self._copies_whole(along)] if self.thread_n % 3 else []
        return (least, *longer[-1:])

    def worth_spreading(self, gemm: Gemm) -> bool:
        """Return whether copies that are spread would make the kernel faster.

        On H200s, kernels of two draws of products took 5 % less time in the mean where aligned
        operands are transposed on their way to shared memory. Where they are not, they took 3 %
        less with steps of at least 16 columns in a slice, and up to 20 % more with shorter ones:
        these have as many parts, of fewer multiplications. Copies of less than 16 bytes, and
        threads with 12 columns, mostly lost.
        """
        computed = self.computed(gemm)
        if _unaligned(computed):
            return False
        deep = self.tile_k // self.slices >= _LEAST_SPREAD and self.thread_n % 3 > 0
        return deep or self.transposes(computed) or computed.b_transposed

    def computed(self, gemm: Gemm) -> Gemm:
        """Return the product of the operands' copies, if there are any."""
        return _turned(gemm, self.tile_m, self.tile_n) if self.turned else gemm

    def runs_on(self, card: CardResources) -> bool:
        """Return whether the card has the instructions; asynchronous copies came with sm_80."""
        able = not self.asynchronous or card.capability >= FIRST_ASYNCHRONOUS
        return able and self.suits(card)

    def transposes(self, gemm: Gemm) -> bool:
        """Return whether A is transposed on its way to shared memory."""
        return bool(self.transpose_a) and not gemm.a_transposed

    def registers(self, gemm: Gemm) -> int:
        """Return how many registers a thread needs, fitted to ptxas of CUDA 13.0.

        If A is read by rows, four of its columns are read at once. A thread with 128 sums would
        then need more registers than it can have; it still keeps all its sums in registers.
        """
        gemm = self.computed(gemm)
        sums = self.thread_m * self.thread_n
        if gemm.a_transposed or self.transpose_a:
            return sums + 2 * (self.thread_m + self.thread_n) + 32
        return min(sums + 4 * self.thread_m + 10 * self.thread_n - 8, _MAX_REGISTERS)

    def shared_bytes(self, gemm: Gemm) -> int:
        """Return the shared memory of a block: its stages, and later the sums of its slices."""
        gemm = self.computed(gemm)
        if self.transposes(gemm):
            of_a = self.tile_k * (self.tile_m + _WIDEST)
        elif gemm.a_transposed:
            of_a = self.tile_k * self.tile_m
        else:
            of_a = self.tile_m * (self.tile_k + (0 if self.tile_k % _BANKS else _WIDEST))
        of_b = self.tile_k * (self.tile_n + (_WIDEST if gemm.b_transposed else 0))
        sums = self.slices * self.tile_m * self.tile_n if self.slices > 1 else 0
        return 4 * max(self.stages * (of_a + of_b), sums)

    def cycles(self, gemm: Gemm, card: CardResources, costs: Costs | None = None) -> float:
        """Return the clock cycles that the product is expected to take.

        A warp issues its multiplications, its loads of four elements from shared memory, and the
        copies of the next step to shared memory. A copy has four elements, or one if the warp
        transposes A; it then takes as many rows at once as make a line of the cache. Slices write
        their sums to shared memory and read them again.

        Large products run at the power limit, where the energy of a step determines its time.
        """
        costs = costs or costs_of(self.family)
        copied = self._copies(gemm).nbytes if self.turned else 0
        copying = copying_cycles(copied, card, costs_of(_COPYING_FAMILY)) if copied else 0.0
        gemm = self.computed(gemm)
        tile = (self.tile_m, self.tile_n, self.tile_k)
        thread = (self.thread_m, self.thread_n)
        turned = (self.transposes(gemm), gemm.b_transposed)
        along = self.transpose_a or _ALONG[0]
        by_columns = bool(gemm.a_transposed or self.transpose_a)
        step = _step(
            tile,
            thread,
            self.slices,
            turned,
            by_columns,
            along,
            card.cores,
            costs.product_share,
            costs.copy_instructions,
            costs.turning_instructions,
            costs.barrier_cycles,
        )
        more = self._narrow_pieces(gemm) / self.threads * costs.narrow_instructions
        if more:
            per_scheduler = self.threads / WARP_LANES / SCHEDULERS
            step = replace(
                step,
                busy_cycles=step.busy_cycles + more * per_scheduler,
                alone_cycles=step.alone_cycles + more * max(math.ceil(per_scheduler), _ALONE),
            )
        return product_cycles(gemm, self, card, step, costs) + copying

    def _narrow_pieces(self, gemm: Gemm) -> float:
        """Return how many more pieces a step copies than if all were of four elements.

        Rows that are not a multiple of 16 bytes apart are copied in smaller pieces.
        """
        of_a = 0 if self.transposes(gemm) else self.tile_m / copy_width_of_a(gemm)
        of_b = 0 if gemm.b_transposed else self.tile_n / copy_width(gemm, gemm.ldb)
        kept = self.tile_m * (not self.transposes(gemm)) + self.tile_n * (not gemm.b_transposed)
        return self.tile_k * (of_a + of_b - kept / _WIDEST)

    def traits(self, gemm: Gemm, card: CardResources, cycles: float) -> tuple[float, ...]:
        """Return what may explain how far the estimate of `cycles` is off, by `TRAITS`."""
        gemm = self.computed(gemm)
        resident, blocks = self.resident(gemm, card), self.block_count(gemm)
        tiles, transposes = self.tiles(gemm), self.transposes(gemm)
        waves, rest = divmod(blocks, resident * card.multiprocessors)
        last = -(-rest // card.multiprocessors)
        together = resident if waves else last
        copied = self.tile_k * (self.tile_m + self.tile_n)
        warps = self.threads // WARP_LANES
        products = self.tile_m * self.tile_n * self.tile_k
        sums = self.tile_m * self.tile_n
        parts = blocks * sums / card.multiprocessors if self.shares_tiles(gemm) else 0.0
        along_k = self.tile_m * transposes + self.tile_n * gemm.b_transposed
        turned_pieces = self.tile_k * along_k / self.threads
        return (
            *(resident, waves, last, together, warps, warps * together, self.stages),
            *(self.max_steps(gemm), tiles / blocks, parts / cycles),
            *(copied / products, self.products, self.registers(gemm)),
            *(self.tile_m, self.tile_n, self.tile_k, self.thread_m, self.thread_n, self.slices),
            *(self.thread_m * self.thread_n, self.tile_k // self.slices),
            *((self.slices - 1) * sums / cycles, gemm.a_transposed, transposes),
            self.transpose_a if transposes else 0,
            *(gemm.b_transposed, self._narrow_pieces(gemm) / products, self.turned),
            *(self.spread, turned_pieces, turned_pieces / self.products),
            *(gemm.products * gemm.M * gemm.N / (tiles * sums), self.blocks > 0),
        )

    def _copies_whole(self, along: int) -> bool:
        """Return whether four rows or more are copied at once, and slices have whole copies."""
        if along <= _ALONG[0]:
            return True
        return not self.tile_k // self.slices % along and not self.threads // _WIDEST % along

    def kernel(self, gemm: Gemm) -> Kernel:
        self.check_product(gemm)
        constants: dict[str, Constant] = {
            "THREAD_M": self.thread_m,
            "THREAD_N": self.thread_n,
            "SLICES": self.slices,
            "TRANSPOSE_A": self.transpose_a,
            "ASYNCHRONOUS": self.asynchronous,
            "SPREAD": self.spread,
        }
        if not self.turned or not _copied(gemm):
            return copied_kernel(gemm, self, constants, self.shared_bytes(gemm))
        if gemm.products > 1:
            raise InputError(f"The template {self.template} copies operands of one product only.")
        copies = self._copies(gemm)
        constants |= copies.constants | {f"{name}_WHOLE": True for name in copies.spaces}
        size = self.shared_bytes(gemm)
        return copies.before(copied_kernel(self.computed(gemm), self, constants, size, COPY_TEXTS))

    def _copies(self, gemm: Gemm) -> OperandCopies:
        return _copies(gemm, self.tile_m, self.tile_n, self.tile_k)


def _along_k(gemm: Gemm) -> str:
    """Return the names of the operands whose rows lie along K."""
    return "A" * (not gemm.a_transposed) + "B" * gemm.b_transposed


def _copied(gemm: Gemm) -> str:
    """Return the names of the operands that are copied: others can be read 16 bytes at once."""
    return "".join(sorted({*_along_k(gemm), *_unaligned(gemm)}))


def _unaligned(gemm: Gemm) -> str:
    """Return the names of the operands whose rows are not a multiple of 16 bytes apart."""
    return "A" * (gemm.lda % _WIDEST > 0) + "B" * (gemm.ldb % _WIDEST > 0)


def _worth_turning(gemm: Gemm) -> bool:
    """Return whether copying operands could be a small part of a product's time."""
    large = gemm.products == 1 and gemm.M * gemm.N >= _LEAST_TURNED * (gemm.M + gemm.N)
    return large and bool(_copied(gemm))


@functools.lru_cache(maxsize=256)  # thousands of tilings of a product ask for it
def _turned(gemm: Gemm, tile_m: int, tile_n: int) -> Gemm:
    """Return the product of the operands' copies, whose rows lie across K."""
    copied = _copied(gemm)
    lda = math.ceil(gemm.M / tile_m) * tile_m if "A" in copied else gemm.lda
    ldb = math.ceil(gemm.N / tile_n) * tile_n if "B" in copied else gemm.ldb
    return replace(gemm, layout="nt", lda=lda, ldb=ldb)


@functools.lru_cache(maxsize=256)
def _copies(gemm: Gemm, tile_m: int, tile_n: int, tile_k: int) -> OperandCopies:
    """Return the copies, which have all elements of the tiles and steps."""
    rows, product = math.ceil(gemm.K / tile_k) * tile_k, _turned(gemm, tile_m, tile_n)
    distances = {"A": product.lda, "B": product.ldb}
    spaces = {name: copy_of(name, gemm, (rows, distances[name])) for name in _copied(gemm)}
    return OperandCopies(gemm, spaces, _along_k(gemm))


@functools.lru_cache(maxsize=4096)  # of as many steps, a search considers ten thousand divisions
def _step(
    tile: tuple[int, int, int],
    thread: tuple[int, int],
    slices: int,
    turned: tuple[bool, bool],
    by_columns: bool,
    along: int,
    cores: int,
    product_share: float,
    copy_instructions: float,
    turning_instructions: float,
    barrier_cycles: float,
) -> BlockStep:
    """Return the work of a block in one step.

    Args:
        tile: the rows and columns of a tile, and its depth.
        thread: the rows and columns of a thread.
        slices: the groups of warps.
        turned: whether A and B are transposed while they are copied.
        by_columns: whether threads read pieces of columns of A.
        along: the elements that are then copied along a row.
        cores: the cores of a multiprocessor.
        product_share: the first of four `Costs`.
        copy_instructions: the second one.
        turning_instructions: the third one.
        barrier_cycles: the last one.
    """
    (tile_m, tile_n, tile_k), (thread_m, thread_n) = tile, thread
    threads = (tile_m // thread_m) * (tile_n // thread_n) * slices
    products = thread_m * thread_n * tile_k // slices
    warps = threads // WARP_LANES
    per_product = product_share * SCHEDULERS * WARP_LANES / cores
    read = (thread_m + thread_n) * (tile_k // slices)
    copied = tile_k * (tile_m + tile_n)
    kept = copied - tile_k * (tile_m * turned[0] + tile_n * turned[1])
    if by_columns and cores == SCHEDULERS * WARP_LANES and thread_m * thread_n > _WIDEST**2:
        per_product *= _TRANSPOSED_SHARE
    sides = tile_m * turned[0] + tile_n * turned[1]
    lines = tile_k * sides / along
    copies = kept / _WIDEST * copy_instructions
    copies += tile_k * sides * turning_instructions
    copies /= threads
    issued = per_product * products + read / _WIDEST + copies + _STEP_INSTRUCTIONS
    serving = warps * read / _WIDEST * _READ_CYCLES + 4 * copied / SHARED_BYTES_PER_CYCLE
    sums = 2 * 4 * (slices - 1) * tile_m * tile_n
    energy_pj = threads * (products * _PRODUCT_PJ + read * _READ_PJ) + 4 * copied * _LOADED_BYTE_PJ
    energy_pj += threads * copies * _INSTRUCTION_PJ
    return BlockStep(
        busy_cycles=max(issued * warps / SCHEDULERS, serving),
        warps=_ENOUGH_WARPS,
        loaded_bytes=4 * copied,
        alone_cycles=issued * max(math.ceil(warps / SCHEDULERS), _ALONE)
        + lines * _LINE_CYCLES
        + barrier_cycles,
        last_cycles=_TILE_CYCLES + sums / SHARED_BYTES_PER_CYCLE,
        energy_cycles=energy_pj / _PJ_PER_CYCLE,
        issuing_warps=warps,
    )
