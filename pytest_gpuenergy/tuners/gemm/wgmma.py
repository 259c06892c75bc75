"""The template for Hopper: products by wgmma from shared memory, see cuda/gemm/wgmma.cu."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

from pytest_gpuenergy.kernels import TensorMap
from pytest_gpuenergy.support import InputError
from pytest_gpuenergy.tuners.gemm.costs import Costs
from pytest_gpuenergy.tuners.gemm.hopper import (
    ALIGNMENT_BYTES,
    CLUSTERS,
    DEPTH_BYTES,
    LINE_BYTES,
    LINES_OF_PATTERN,
    OTHER_REGISTERS,
    ROW_BYTES,
    WARPGROUP,
    WARPGROUP_ROWS,
    HopperTiling,
    matrix_map,
    places_after,
    turned_copies,
)
from pytest_gpuenergy.tuners.gemm.operands import OperandCopies
from pytest_gpuenergy.tuning import SHARED_BYTES_PER_CYCLE, Constant
from pytest_gpuenergy.workloads import Gemm, Mode, stored_as

_LINE, _LEAST_LINE = 64, 32
"""The elements of a line in shared memory, with 16 bits and in TF32."""
_WIDEST = 256
"""The most columns of one instruction."""
_TILES_M = (64, 128, 192, 256)
_TILES_N = (64, 96, 128, 160, 192, 224, 256)
_TILES_SWAPPED = (96, 160, 224)
"""The rows of tiles of C's transpose that are tried besides those that divide few rows evenly."""
_EVEN = 5
"""How many numbers of tiles are tried that divide them evenly."""
_NEXT_SWAPPED_SHARE = 2.5
"""The share for such tiles where threads store them, see `next_share`: 520 of them in ``e4m3`` took
1.3 times as long as others on an H200."""
_LEAST_ROWS = 16
"""The rows of such tiles are a multiple of these, as a warp transposes so many sums at once."""
_C_BOX_ROWS = 16
"""The rows of a box in which C is stored."""
_C_BOX_BYTES = 2 * _C_BOX_ROWS * _LINE
_STORED_BYTES = 16
"""The most that a thread writes to C at once."""
_C_BOXES = 8
"""The boxes of a consumer: two for each of its warps."""
PRODUCTS_PER_CYCLE = 2048
"""The products of 16-bit elements on a multiprocessor: 989 TFLOP/s on 132 of them at 1830 MHz (H100
whitepaper); there are half as many in TF32."""
KINDS: Mapping[str, str] = {
    "float16": "f16",
    "bfloat16": "bf16",
    "tf32": "tf32",
    "e4m3": "e4m3",
    "e5m2": "e5m2",
}
"""The modes, as instructions call the type of the elements."""


@dataclass(frozen=True, kw_only=True)
class WgmmaParameters(HopperTiling):
    """The parameters of a kernel of the template.

    Each consumer computes an equal part of the tile's rows.

    Attributes:
        turned: whether operands whose rows do not lie along K are transposed by a launch before
            that of the product: instructions in TF32 take no others.
        swapped: whether the transpose of C is computed. Then each consumer computes an equal part
            of the tile's columns, and a tile may have any multiple of 16 rows.
    """

    template: ClassVar[str] = "wgmma"
    follows: ClassVar[bool] = True
    modes: ClassVar[tuple[Mode, ...]] = ("float16", "bfloat16", "tf32")
    line: ClassVar[int] = _LINE
    columns: ClassVar[int] = 16
    added: ClassVar[Mapping[str, int]] = {**HopperTiling.added, "turned": 0, "swapped": 0}
    splits: ClassVar[tuple[int, ...]] = (2, 3, 4)

    turned: bool = False
    swapped: bool = False
    barrier_bytes: ClassVar[int] = 16

    def _check_tile(self) -> None:
        rows, columns = self.computed_tile
        whole = (
            not rows % (WARPGROUP_ROWS * self.consumers)
            and rows <= _WIDEST
            and not columns % (_LEAST_ROWS if self.swapped else _LEAST_LINE)
            and columns <= _WIDEST
            and not (self.swapped and self.turned)
            and not self.tile_k % _LEAST_LINE
            and self.tile_k <= _WIDEST
        )
        if not whole:
            raise InputError(
                f"A tile of {self.tile_m} x {self.tile_n} x {self.tile_k} cannot be divided among "
                f"{self.consumers} warpgroups in pieces of 64 x {_LEAST_LINE} x {_LEAST_LINE}, "
                "up to 256 in each direction; with swapped=1, in pieces of 16 x 64, and without "
                "turned=1."
            )

    @property
    def computed_tile(self) -> tuple[int, int]:
        tile = (self.tile_m, self.tile_n)
        return (tile[1], tile[0]) if self.swapped else tile

    @property
    def computed_cluster(self) -> tuple[int, int]:
        return (self.cluster_n, self.cluster_m) if self.swapped else self.cluster

    @classmethod
    def refusal(cls, gemm: Gemm) -> str | None:
        """Return what a product lacks: where there are several, operands are not transposed."""
        if gemm.mode == "tf32" and gemm.layout != "tn" and gemm.products > 1:
            return f"needs the layout tn in mode tf32 for several products, not {gemm.layout}"
        return super().refusal(gemm)

    @classmethod
    def tiles_tried(cls, gemm: Gemm) -> Iterator[Mapping[str, int]]:
        turned = gemm.mode == "tf32" and gemm.layout != "tn"
        for tile_m, tile_n, consumers, (along_m, along_n) in itertools.product(
            _TILES_M, _TILES_N, (1, 2, 3), CLUSTERS
        ):
            tile = {"tile_m": tile_m, "tile_n": tile_n, "consumers": consumers}
            yield {**tile, "cluster_m": along_m, "cluster_n": along_n, "turned": turned}
            if (along_m, along_n) == (1, 1):
                for split in cls.splits_tried(gemm, tile_m, tile_n):
                    yield {**tile, "turned": turned, "split": split}
        if gemm.a_transposed or gemm.groups or gemm.mode == "tf32" or gemm.scaling == "block":
            return
        for tile_m, tile_n, consumers in itertools.product(
            cls._heights_swapped(gemm), _TILES_M, (1, 2, 3)
        ):
            tile = {"tile_m": tile_m, "tile_n": tile_n, "consumers": consumers, "swapped": True}
            for along_m, along_n in CLUSTERS:
                yield {**tile, "cluster_m": along_m, "cluster_n": along_n}
            for split in cls.splits_tried(gemm, tile_m, tile_n):
                yield {**tile, "split": split}

    @classmethod
    def _heights_swapped(cls, gemm: Gemm) -> list[int]:
        """Return the rows of tiles that are tried with `swapped`.

        Of few rows, these are the ones that divide them evenly; of many, any may be those with
        which the tiles fill all multiprocessors.
        """
        rows = gemm.M
        if rows > _WIDEST:
            return list(range(_TILES_SWAPPED[0], _WIDEST + 1, _LEAST_ROWS))
        even = (-(-rows // (count * _LEAST_ROWS)) * _LEAST_ROWS for count in range(1, 1 + _EVEN))
        return sorted({*_TILES_SWAPPED, *even})

    def next_share(self, gemm: Gemm) -> float:
        return _NEXT_SWAPPED_SHARE if self.swapped and not _boxed(gemm) else 1.0

    @property
    def instruction_sums(self) -> int:
        return self.computed_tile[1] // 2

    def consumer_registers(self, gemm: Gemm) -> int:
        del gemm  # the same for all
        sums = self.tile_m * self.tile_n // (WARPGROUP * self.consumers)
        return sums + OTHER_REGISTERS

    def dynamic_bytes(self, gemm: Gemm) -> int:
        """Return a block's dynamic shared memory: stages, boxes of C, and room to align them."""
        step = self.tile_k * (self.tile_m + self.tile_n)
        boxes = self.consumers * _C_BOXES * _C_BOX_BYTES
        return gemm.element_bytes * self.stages * step + boxes + ALIGNMENT_BYTES

    def peak_cycles(self, gemm: Gemm) -> float:
        products = self.tile_m * self.tile_n * self.tile_k
        return products * gemm.element_bytes / 2 / PRODUCTS_PER_CYCLE

    def busy_cycles(self, gemm: Gemm, costs: Costs) -> float:
        """Return the clock cycles of a step if neither tensor cores nor shared memory wait.

        Each instruction reads 64 rows of A and all columns of B from shared memory.
        """
        rows, columns = self.computed_tile
        loaded = gemm.element_bytes * self.tile_k * (rows + rows // WARPGROUP_ROWS * columns)
        served = costs.served_share * loaded / SHARED_BYTES_PER_CYCLE
        return max(costs.product_share * self.peak_cycles(gemm), served)

    def has_whole_lines(self, gemm: Gemm) -> bool:
        """Return whether a tile's columns are whole lines of C, and of B if it lies along N."""
        if self.swapped:
            return not gemm.a_transposed or self.tile_m % _LINE == 0
        of_b = (
            1
            if gemm.b_transposed or self.turned
            else LINE_BYTES // gemm.element_bytes * self.cluster_m
        )
        return self.tile_n % math.lcm(_LEAST_LINE, of_b) == 0

    def copied_lines(self, gemm: Gemm) -> tuple[int, int]:
        if not self.swapped:
            return super().copied_lines(gemm)
        few = self.tile_n > gemm.N and gemm.element_bytes <= 2 and gemm.b_transposed
        lines = LINES_OF_PATTERN * self.cluster_m
        columns = math.ceil(gemm.N / lines) * lines if few else self.tile_n
        return self.tile_m // self.cluster_n, columns // self.cluster_m

    def copies(self, gemm: Gemm) -> OperandCopies:
        return turned_copies(gemm) if self.turned else super().copies(gemm)

    def instruction_constants(self, gemm: Gemm) -> dict[str, Constant]:
        if gemm.mode == "tf32" and gemm.layout != "tn":
            raise InputError(
                f"The template {self.template} needs the layout tn in mode tf32, not "
                f"{gemm.layout}, or turned=1."
            )
        if self.tile_k * gemm.element_bytes % LINE_BYTES:
            raise InputError(
                f"The template {self.template} needs tile_k to be a multiple of "
                f"{LINE_BYTES // gemm.element_bytes} in mode {gemm.mode}, not {self.tile_k}."
            )
        if not self.has_whole_lines(gemm):
            raise InputError(
                f"The template {self.template} cannot compute tiles of {self.tile_n} columns in "
                f"mode {gemm.mode} and layout {gemm.layout}, in clusters of {self.cluster_m} along "
                f"M: its boxes have lines of {LINE_BYTES} bytes."
            )
        kind, stored_bytes = KINDS[gemm.mode], stored_as(gemm.output_type).itemsize
        shape = f"m64n{self.computed_tile[1]}k{DEPTH_BYTES // gemm.element_bytes}.f32.{kind}.{kind}"
        across = gemm.a_transposed, not gemm.b_transposed
        along = ", ".join(("", *(str(int(one)) for one in across[:: -1 if self.swapped else 1])))
        of_a, of_b, add = places_after(self.instruction_sums, 1, 1, 1)
        return {
            **(self.swapped_constants(gemm) if self.swapped else {}),
            "MULTIPLY_ADD": f'"wgmma.mma_async.sync.aligned.{shape}"',
            "ALONG": f'"{along}"' if gemm.element_bytes == 2 else '""',
            "HALVES": stored_bytes == 2,
            "A_PLACE": of_a,
            "B_PLACE": of_b,
            "ADD_PLACE": add,
            "BOXED_C": _boxed(gemm),
            "C_WIDTH": math.gcd(_STORED_BYTES // stored_bytes, gemm.ldc),
            "ROWS_STORED": self._rows_stored(gemm),
            "PACK": f'"cvt.rn.{KINDS.get(gemm.output_type, kind)}x2.f32"',
            "PROMOTED": False,
            "DOUBLED": False,
        }

    def _rows_stored(self, gemm: Gemm) -> bool:
        """Return whether boxes of C could have rows of two groups, which are then stored apart."""
        height = self.cluster_m * self.tile_m
        return _boxed(gemm) and any(rows % height for rows in gemm.groups)

    def _tensor_maps(self, gemm: Gemm) -> tuple[TensorMap, ...]:
        operands = super()._tensor_maps(gemm)
        if not _boxed(gemm):
            return operands
        halves = stored_as(gemm.output_type).itemsize == 2
        in_halves = halves and self.tile_n % _LINE and not self.swapped
        box = (gemm.ldc, _C_BOX_ROWS, 64 if in_halves else LINE_BYTES)
        return *operands, matrix_map("C", gemm, (gemm.N, gemm.M), *box)


def _boxed(gemm: Gemm) -> bool:
    """Return whether the tensor memory accelerator stores C.

    It writes the last 16 bytes of a row as a whole, also what lies between N and ``ldc``.
    """
    return math.gcd(gemm.N, gemm.ldc) * stored_as(gemm.output_type).itemsize % ROW_BYTES == 0
