"""Tilings for Hopper: the roles of warpgroups, and matrices in tensor maps.

The tensor memory accelerator copies matrices in boxes of swizzled lines.
"""

from __future__ import annotations

import functools
import itertools
import math
import operator
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, Self

from pytest_gpuenergy.kernels import Kernel, TensorMap
from pytest_gpuenergy.support import InputError
from pytest_gpuenergy.tuners.gemm.costs import Costs, costs_of
from pytest_gpuenergy.tuners.gemm.estimate import (
    BlockStep,
    copying_cycles,
    product_cycles,
    short_line_cycles,
)
from pytest_gpuenergy.tuners.gemm.operands import COPY_TEXTS, OperandCopies, copy_of
from pytest_gpuenergy.tuners.gemm.tiling import (
    FEW_ROWS,
    MAX_BLOCKS_OF_CLUSTER,
    Tiling,
    tiled_kernel,
)
from pytest_gpuenergy.tuning import CardResources, Constant
from pytest_gpuenergy.workloads import Gemm, Mode, stored_as

LINE_BYTES: Literal[128] = 128
"""The length of the lines in shared memory whose pieces are swizzled."""
DEPTH_BYTES = 32
"""The bytes of an operand's row in one instruction (PTX ISA, ``wgmma.mma_async``)."""
ROW_BYTES = 16
"""The distance of rows in a matrix that a tensor map describes is a multiple of this."""
WARPGROUP = 128
"""The threads of a warpgroup."""
WARPGROUP_ROWS = 64
"""The rows that a warpgroup computes in one instruction."""
_ENOUGH_WARPS = 16
"""The warps of a block in the estimate: one instruction keeps the tensor cores busy for long."""
LINES_OF_PATTERN = 8
"""The lines after which the pattern of swizzled pieces repeats."""
ALIGNMENT_BYTES = 1024
"""The alignment of stages in shared memory."""
_WITHOUT_ROWS_SHARES: Mapping[int, float] = {1: 0.085, 2: 0.035}
"""By the bytes of an element, how much longer products with few rows take whose transpose is not
computed, since instructions then have 64 rows: 3 % with 64 rows to 8 % with 1 in ``e4m3``, and 1
to 4 % in ``bfloat16``, in the means of 34 pairs of kernels on H200s."""
_SHORT_LINE_CYCLES = 0.055
"""See `short_line_cycles`."""
_STAGES = (7, 6, 5, 4, 3, 2)
_MOST_TILES: Mapping[int, int] = {2: 66, 3: 39, 4: 29, 6: 16, 8: 14}
"""By the number of blocks that divide the steps of a tile, the most tiles of such a product: about
as many clusters of that size run at once on 132 multiprocessors, which come in pairs."""
CLUSTERS = ((2, 1), (1, 2), (1, 1))
"""The clusters worth trying: larger ones do not fill the multiprocessors of a card."""
_REGISTERS: Mapping[int, tuple[int, int, int]] = {
    1: (240, 240, 240),
    2: (168, 40, 232),
    3: (128, 32, 160),
}
"""Registers of a thread by the number of consumers: at launch, of a copying thread, of a consumer.

A block's threads have no more than the 64 Ki registers of a multiprocessor.
"""
_COPYING_REGISTERS: Mapping[int, tuple[int, int, int]] = {1: (240, 240, 240), 2: (168, 72, 216)}
"""The same where a warpgroup copies operands itself, for which its threads need addresses."""
OTHER_REGISTERS = 34
"""The registers of a thread besides its sums and operands, as ptxas of CUDA 13.0 reports."""
_OTHERS_OF_INSTRUCTION = 30
"""The registers that an instruction takes besides its sums, all within those at launch (ptxas)."""


_LONG_ROW_BYTES = 1024
"""The length from which rows of copies are a multiple of `LINE_BYTES` apart: shorter ones would
become much longer."""


def can_be_mapped(gemm: Gemm, row: int) -> bool:
    """Return whether a tensor map can describe a matrix whose rows are ``row`` elements apart."""
    return row * gemm.element_bytes % ROW_BYTES == 0


def groups_are_boxed(gemm: Gemm) -> bool:
    """Return whether boxes of A can begin where groups do, at multiples of 16 bytes in a line.

    Where A is stored transposed, groups begin within its lines. An H200 ends a kernel with an
    illegal instruction at other places.
    """
    first = math.gcd(*gemm.groups[:-1]) if gemm.a_transposed else 0
    return first * gemm.element_bytes % ROW_BYTES == 0


def copied_row(gemm: Gemm, length: int) -> int:
    """Return the distance between the rows of a copy with so many elements in a row.

    Long rows begin with a line of the L2.
    """
    nbytes = length * gemm.element_bytes
    unit = LINE_BYTES if nbytes >= _LONG_ROW_BYTES else ROW_BYTES
    return math.ceil(nbytes / unit) * unit // gemm.element_bytes


@functools.lru_cache(maxsize=32)
def _straddles(gemm: Gemm) -> tuple[float, float]:
    """Return the shares of the lines of A and of B that lie in two lines of the L2."""
    of_a, of_b = (
        1 - math.gcd(row * gemm.element_bytes, LINE_BYTES) / LINE_BYTES
        for row in (gemm.lda, gemm.ldb)
    )
    return of_a, of_b


@functools.lru_cache(maxsize=32)  # thousands of tilings of a product ask for them
def aligned_copies(gemm: Gemm, lined: bool = False) -> OperandCopies:
    """Return copies of the operands whose rows tensor maps cannot describe.

    Args:
        gemm: the product.
        lined: whether long rows are copied, too, that do not begin with a line of the L2.
    """
    lengths = {"A": gemm.row_of_a, "B": gemm.row_of_b}
    spaces = {}
    for name, stored in ((tensor.name, tensor.shape) for tensor in gemm.inputs):
        if name not in lengths:
            continue
        row = copied_row(gemm, lengths[name])
        straddles = lined and row * gemm.element_bytes % LINE_BYTES == 0 and stored[-1] % row
        if straddles or not can_be_mapped(gemm, stored[-1]):
            spaces[name] = copy_of(name, gemm, (*stored[:-1], row))
    return OperandCopies(gemm, spaces)


@functools.lru_cache(maxsize=32)
def turned_copies(gemm: Gemm, operands: str = "AB") -> OperandCopies:
    """Return copies of operands with rows along K, and of those whose rows are not aligned.

    Args:
        gemm: the product, which is a single one.
        operands: the names of the operands that must lie along K.
    """
    across = "A" * gemm.a_transposed + "B" * (not gemm.b_transposed)
    turned = "".join(name for name in operands if name in across)
    spaces = {}
    for name, height, distance, length in (
        ("A", gemm.M, gemm.lda, gemm.row_of_a),
        ("B", gemm.N, gemm.ldb, gemm.row_of_b),
    ):
        if name in turned:
            spaces[name] = copy_of(name, gemm, (height, copied_row(gemm, gemm.K)))
        elif not can_be_mapped(gemm, distance):
            rows = gemm.K if name in across else height
            spaces[name] = copy_of(name, gemm, (rows, copied_row(gemm, length)))
    return OperandCopies(gemm, spaces, turned)


def matrix_map(
    tensor: str,
    gemm: Gemm,
    dims: tuple[int, ...],
    row: int,
    height: int,
    line_bytes: Literal[64, 128] = LINE_BYTES,
) -> TensorMap:
    """Return the map of a matrix with rows ``row`` elements apart, in boxes of ``height`` lines.

    Where there are several products, it has a third dimension, so that no box has parts of two
    matrices; groups have one A and one C.
    """
    dtype = gemm.output_type if tensor == "C" else gemm.dtype
    itemsize = stored_as(dtype).itemsize
    box: tuple[int, ...] = (line_bytes // itemsize, height)
    strides: tuple[int, ...] = (itemsize * row,)
    if gemm.products > 1:
        matrices = gemm.products if gemm.is_batch or tensor == "B" else 1
        strides, box = (*strides, strides[0] * dims[1]), (*box, 1)
        dims = (*dims, matrices)
    return TensorMap(
        f"{tensor.lower()}_map",
        tensor,
        dtype,
        dims,
        strides,
        box,
        line_bytes,
    )


@dataclass(frozen=True, kw_only=True)
class HopperTiling(Tiling):
    """Parameters of a template for Hopper.

    Attributes:
        consumers: the number of warpgroups that multiply; one more copies.
        whole_tiles: whether blocks compute only whole tiles, instead of equal parts of the last
            ones.
        cluster_m: the blocks of a cluster along M; they copy parts of the same columns of B for
            one another.
        cluster_n: the blocks of a cluster along N; they share rows of A in the same way.
        split: the blocks of a cluster that divide the steps of each tile, and add their sums
            through each other's shared memory, or 1.
    """

    modes: ClassVar[tuple[Mode, ...]]
    family: ClassVar[str] = "hopper"
    line: ClassVar[int]
    """The rows by which blocks of a cluster divide a tile, and the columns: the most of a line."""
    columns: ClassVar[int] = 0
    """The columns by which they divide it, if they are fewer."""
    barrier_bytes: ClassVar[int]
    """The shared memory of a stage's barriers."""
    splits: ClassVar[tuple[int, ...]] = ()
    """The numbers of blocks that are tried for dividing the steps of a tile."""
    added: ClassVar[Mapping[str, int]] = {"cluster_m": 1, "cluster_n": 1, "split": 1}
    least: ClassVar[Mapping[str, int]] = {**Tiling.least, "split": 1}
    min_capability: ClassVar[int] = 90
    max_capability: ClassVar[int] = 90

    tile_m: int = 128
    tile_n: int = 128
    tile_k: int = 64
    stages: int = 4
    consumers: int = 2
    whole_tiles: bool = False
    cluster_m: int = 1
    cluster_n: int = 1
    split: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.consumers not in _REGISTERS:
            raise InputError(
                f"The template {self.template} needs 1 to {max(_REGISTERS)} consumers, not "
                f"{self.consumers}."
            )
        self._check_tile()
        line = self.line
        (rows, columns), (along_rows, along_columns) = self.computed_tile, self.computed_cluster
        if (
            not 1 <= self.cluster_blocks <= MAX_BLOCKS_OF_CLUSTER
            or rows % (line * along_columns)
            or columns % ((self.columns or line) * along_rows)
        ):
            raise InputError(
                f"A cluster of {self.cluster_m} x {self.cluster_n} blocks cannot share tiles of "
                f"{self.tile_m} x {self.tile_n} in pieces of {line}, or has more than "
                f"{MAX_BLOCKS_OF_CLUSTER} blocks."
            )
        if self.instruction_sums + _OTHERS_OF_INSTRUCTION > self.register_counts[0]:
            raise InputError(
                f"The template {self.template} cannot compute tiles of {self.tile_m} x "
                f"{self.tile_n} with {self.consumers} consumers: a thread has too few registers."
            )
        alone = not self.blocks and self.cluster == (1, 1)
        if self.split > 1 and (not alone or not self._sums_fit()):
            raise InputError(
                f"The template {self.template} divides the steps of a tile among {self.split} "
                "blocks only with blocks=0, in clusters of no others, and if float32 sums of the "
                "tile fit where its stages are."
            )

    def _sums_fit(self) -> bool:
        """Return whether stages have room for a tile's sums, whatever the type of elements."""
        step = LINE_BYTES * (self.tile_m + self.tile_n)  # of the least columns
        return 4 * self.tile_m * self.tile_n <= self.stages * step

    @abstractmethod
    def _check_tile(self) -> None:
        """Raise an `InputError` if warpgroups do not fill the tile."""

    @property
    def computed_tile(self) -> tuple[int, int]:
        """The rows and columns of a tile as instructions compute it."""
        return self.tile_m, self.tile_n

    @property
    def computed_cluster(self) -> tuple[int, int]:
        """The blocks of a cluster along the rows and columns that instructions compute."""
        return self.cluster

    def next_share(self, gemm: Gemm) -> float:
        """Return what a further tile adds to its steps, relative to the cycles of storing it."""
        del gemm  # stored in boxes, or by as many instructions as others
        return 1.0

    @property
    def copies_operands(self) -> bool:
        """Whether warps copy A and B, instead of the tensor memory accelerator."""
        return False

    @property
    def register_counts(self) -> tuple[int, int, int]:
        """The registers of a thread: at launch, of one that copies, and of a consumer."""
        return (_COPYING_REGISTERS if self.copies_operands else _REGISTERS)[self.consumers]

    @property
    @abstractmethod
    def instruction_sums(self) -> int:
        """The number of sums that a thread has in one instruction."""

    @abstractmethod
    def has_whole_lines(self, gemm: Gemm) -> bool:
        """Return whether the boxes in which a product is copied and stored fill a tile."""

    @abstractmethod
    def consumer_registers(self, gemm: Gemm) -> int:
        """Return about how many registers a consumer's thread needs."""

    @abstractmethod
    def dynamic_bytes(self, gemm: Gemm) -> int:
        """Return the dynamic shared memory of a block: its stages, and room to align them."""

    @abstractmethod
    def busy_cycles(self, gemm: Gemm, costs: Costs) -> float:
        """Return the clock cycles of a step if neither tensor cores nor shared memory wait."""

    def preparing_cycles(self, gemm: Gemm, costs: Costs) -> float:
        """Return the clock cycles of a step in which warps write what others multiply."""
        del gemm, costs  # most templates multiply what was loaded
        return 0.0

    @abstractmethod
    def peak_cycles(self, gemm: Gemm) -> float:
        """Return the clock cycles of a step's multiplications at the peak rate."""

    @abstractmethod
    def instruction_constants(self, gemm: Gemm) -> dict[str, Constant]:
        """Return the constants that describe the instruction that multiplies."""

    def swapped_constants(self, gemm: Gemm) -> dict[str, Constant]:
        """Return the constants that differ where the product of the transposes is computed."""
        if gemm.groups or gemm.scaling == "block":
            raise InputError(
                f"The template {self.template} computes no transpose of C for groups or scales of "
                "blocks."
            )
        along_rows, along_columns = self.computed_cluster
        return {
            "SWAPPED": True,
            "M": gemm.N,
            "N": gemm.M,
            "ALL_M": gemm.N % (along_rows * self.tile_n) == 0,
            "CLUSTER_M": along_rows,
            "CLUSTER_N": along_columns,
            "A_TRANSPOSED": not gemm.b_transposed,
            "B_TRANSPOSED": not gemm.a_transposed,
            "TILE_M": self.tile_n,
            "TILE_N": self.tile_m,
        }

    @classmethod
    @abstractmethod
    def tiles_tried(cls, gemm: Gemm) -> Iterator[Mapping[str, int]]:
        """Yield parameters that may be worth trying, without stages; no kernel has some of them."""

    @classmethod
    def splits_tried(cls, gemm: Gemm, tile_m: int, tile_n: int) -> Iterator[int]:
        """Yield numbers of blocks that may divide the steps of a product's few tiles."""
        tiles = math.ceil(gemm.most_rows / tile_m) * math.ceil(gemm.N / tile_n)
        if gemm.products == 1:
            yield from (split for split in cls.splits if tiles <= _MOST_TILES[split])

    @classmethod
    def refusal(cls, gemm: Gemm) -> str | None:
        """Return what a product lacks: groups that begin where boxes can."""
        if groups_are_boxed(gemm):
            return None
        rows = ROW_BYTES // gemm.element_bytes
        return f"needs groups of multiples of {rows} rows in layout {gemm.layout}"

    @classmethod
    def fitting(cls, gemm: Gemm, card: CardResources) -> Iterator[Self]:
        if cls.refusal(gemm):
            return
        tried = set()
        usual = {**cls().numbers, "tile_k": LINE_BYTES // gemm.element_bytes}
        for numbers, stages in itertools.product(cls.tiles_tried(gemm), _STAGES):
            try:
                base = cls.of({**usual, **numbers, "stages": stages})
            except InputError:
                continue
            # Of pipelines with which equally many blocks fit, only the longest is kept: the first.
            key = (base.resident(gemm, card), replace(base, stages=_STAGES[0]))
            if key in tried or base.consumer_registers(gemm) > base.register_counts[2]:
                continue
            needless = base.copies_operands and not aligned_copies(gemm).spaces
            if needless or not base.has_whole_lines(gemm):
                continue
            tried.add(key)
            yield from base.divided(gemm, card)

    def divided(self, gemm: Gemm, card: CardResources) -> Iterator[Self]:
        """Yield the tiling with each number of blocks worth trying; none if the card cannot run it.

        If there are more tiles than the card holds blocks, fewer blocks that compute several tiles
        are better: they copy the next tile while they store one.
        """
        at_once = self.at_once(gemm, card)
        if self.split > 1:
            if self.split <= self.steps(gemm) and self.tiles(gemm) <= at_once:
                yield self
            return
        # The height of a group, in tiles, that makes it roughly square minimizes traffic for A, B.
        tile, cluster = self.computed_tile, self.computed_cluster
        rows, columns = (blocks * side for blocks, side in zip(cluster, tile, strict=True))
        computed_rows = gemm.most_rows if tile == (self.tile_m, self.tile_n) else gemm.N
        most = math.ceil(computed_rows / rows)
        square = max(1, min(most, round(math.sqrt(at_once * columns / rows))))
        for tiling in super().divided(gemm, card):
            if tiling.blocks == 0 and self.tiles(gemm) > at_once:
                for group in sorted({self.group, square}):
                    yield replace(tiling, blocks=at_once, whole_tiles=True, group=group)
            else:
                yield tiling

    @property
    def cluster(self) -> tuple[int, int]:
        return self.cluster_m, self.cluster_n

    @property
    def parts(self) -> int:
        return self.split

    def max_steps(self, gemm: Gemm) -> int:
        """Return the steps of the block that has the most."""
        if self.parts > 1 or not self.whole_tiles:
            return super().max_steps(gemm)
        return math.ceil(self.tiles(gemm) / self.block_count(gemm)) * self.steps(gemm)

    def whole_tile_count(self, gemm: Gemm) -> int:
        """Return how many tiles blocks compute whole; the steps of the other tiles are divided.

        One or two tiles per block are left to be divided, so each block shares two at most.
        """
        tiles, blocks = self.tiles(gemm), self.block_count(gemm)
        return tiles if self.whole_tiles else max(0, tiles // blocks - 1) * blocks

    def shares_tiles(self, gemm: Gemm) -> bool:
        return not self.whole_tiles and super().shares_tiles(gemm)

    def block_count(self, gemm: Gemm) -> int:
        """Return the number of blocks; each has at least one step, or one whole tile."""
        blocks = super().block_count(gemm)
        return min(blocks, self.tiles(gemm)) if self.whole_tiles else blocks

    @property
    def text(self) -> str:
        """The name of the template's text in ``cuda/gemm``."""
        return self.template

    @property
    def threads(self) -> int:
        return WARPGROUP * (self.consumers + 1)

    def registers(self, gemm: Gemm) -> int:
        """Return the registers of a thread at launch; copying threads later give some away."""
        own = self.consumer_registers(gemm)
        return own if self.consumers == 1 else self.register_counts[0]

    def shared_bytes(self, gemm: Gemm) -> int:
        """Return the shared memory of a block with its barriers, which the kernel declares."""
        return self.dynamic_bytes(gemm) + self.barrier_bytes * self.stages

    def copied_lines(self, gemm: Gemm) -> tuple[int, int]:
        """Return the rows of A and columns of B that a block copies at a time, see ``hopper.cu``.

        If there are fewer than in a tile, what lies outside is left out: copying zeros takes time.
        """
        lines = LINES_OF_PATTERN * self.cluster_n
        few = self.tile_m > gemm.M and gemm.element_bytes <= 2 and not gemm.a_transposed
        rows = math.ceil(gemm.M / lines) * lines if few else self.tile_m
        return rows // self.cluster_n, self.tile_n // self.cluster_m

    def loaded_bytes(self, gemm: Gemm) -> int:
        """Return the bytes that a block copies for a step; the others of its cluster copy more."""
        return gemm.element_bytes * self.tile_k * sum(self.copied_lines(gemm))

    def cycles(self, gemm: Gemm, card: CardResources, costs: Costs | None = None) -> float:
        costs = costs or costs_of(self.family)
        copies = self.copies(gemm)
        copying = copying_cycles(copies.nbytes, card, costs) if copies.spaces else 0.0
        gemm = copies.product
        stored = stored_as(gemm.output_type).itemsize * self.tile_m * self.tile_n
        storing = stored / costs.stored_bytes_per_cycle
        of_parts = 4 * self.tile_m * self.tile_n * (self.parts - 1) / self.parts
        adding = of_parts / costs.parts_bytes_per_cycle
        adding += costs.dividing_cycles * (self.parts > 1)
        loaded = self.loaded_bytes(gemm)
        lines, straddles = self.copied_lines(gemm), _straddles(gemm)
        slower = sum(map(operator.mul, lines, straddles)) / sum(lines) * costs.straddling_share
        slower += (costs.divided_share - 1) * (self.parts > 1)
        energy = costs.energy_shares.get(gemm.mode, 0.0) * self.peak_cycles(gemm)
        step = BlockStep(
            busy_cycles=self.busy_cycles(gemm, costs),
            warps=_ENOUGH_WARPS,
            loaded_bytes=round(loaded * (1 + slower)),
            preparing_cycles=self.preparing_cycles(gemm, costs),
            last_cycles=storing / self.parts + adding,
            next_cycles=self.next_share(gemm) * storing,
            energy_cycles=energy + costs.loaded_energy_cycles * loaded,
        )
        waiting = short_line_cycles(gemm, self.tiles(gemm), _SHORT_LINE_CYCLES)
        cycles = product_cycles(gemm, self, card, step, costs)
        if gemm.most_rows <= FEW_ROWS and self.computed_tile == (self.tile_m, self.tile_n):
            without_rows = 1 - gemm.most_rows / (2 * FEW_ROWS)
            cycles *= 1 + _WITHOUT_ROWS_SHARES.get(gemm.element_bytes, 0.0) * without_rows
        return cycles + copying + waiting

    def copies(self, gemm: Gemm) -> OperandCopies:
        """Return the copies of operands that a launch makes before that of the product."""
        return OperandCopies(gemm, {}) if self.copies_operands else aligned_copies(gemm)

    def kernel(self, gemm: Gemm) -> Kernel:
        self.check_product(gemm)
        self.check_parts(gemm)
        copies = self.copies(gemm)
        computed = copies.product
        _, others, consumers = self.register_counts
        constants: dict[str, Constant] = {
            "CONSUMERS": f"{self.consumers}",
            "OTHER_REGISTERS": f"{others}",
            "CONSUMER_REGISTERS": f"{consumers}",
            **sums_constants(self.instruction_sums),
            **self.instruction_constants(computed),
        }
        texts = ["hopper/barriers", "gemm/hopper", f"gemm/{self.text}"]
        if self.copies_operands:
            texts.insert(0, "gemm/copies")
        if copies.spaces:
            texts += COPY_TEXTS
            constants |= copies.constants
        size, maps = self.dynamic_bytes(computed), self._tensor_maps(computed)
        kernel = tiled_kernel(computed, self, constants, texts, size, maps)
        return copies.before(kernel) if copies.spaces else kernel

    def _tensor_maps(self, gemm: Gemm) -> tuple[TensorMap, ...]:
        """Return the tensor maps of the matrices that the kernel takes in boxes of lines."""
        if self.copies_operands:
            return ()
        maps: list[TensorMap] = []
        of_a, of_b = self.copied_lines(gemm)
        for name, rows, distance, along_k, height in (
            ("A", gemm.M, gemm.lda, not gemm.a_transposed, of_a),
            ("B", gemm.N, gemm.ldb, gemm.b_transposed, of_b),
        ):
            dims = (gemm.K, rows) if along_k else (rows, gemm.K)
            lines = height if along_k else self.tile_k
            maps.append(matrix_map(name, gemm, dims, distance, lines))
        return tuple(maps)


def sums_constants(count: int) -> dict[str, Constant]:
    """Return the constants of an instruction's sums: their places in PTX, and operands in C++."""
    places = range(count)
    return {
        "SUMS_PLACES": f'"{", ".join(f"%{place}" for place in places)}"',
        "SUMS_OPERANDS": ", ".join(f'"+f"(sums[{place}])' for place in places),
        "SUMS_RESULTS": ", ".join(f'"=f"(sums[{place}])' for place in places),
    }


def places_after(sums: int, *counts: int) -> list[str]:
    """Return the places in PTX of the operands after the sums, given each one's registers."""
    places, first = [], sums
    for count in counts:
        places.append(f'"{", ".join(f"%{place}" for place in range(first, first + count))}"')
        first += count
    return places
