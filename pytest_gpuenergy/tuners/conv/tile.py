"""Tiles of a convolution: how threads and blocks divide the output, and the estimated time.

This is what all templates for convolutions share. The estimate has the latency and the busiest of
three units. It chooses where a search begins; nothing that is reported depends on it.
"""

from __future__ import annotations

import functools
import itertools
import math
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from pytest_gpuenergy.kernels import Dim3, Kernel, Launch, Origin
from pytest_gpuenergy.support import InputError
from pytest_gpuenergy.tuners.conv.windows import ELEMENTS
from pytest_gpuenergy.tuning import (
    TEMPLATE,
    WARP_LANES,
    CardResources,
    Constant,
    TemplateParameters,
    template_text,
)
from pytest_gpuenergy.workloads import Conv2d

WIDEST_LOAD_BYTES = 16
_MAX_THREADS = 1024
_MAX_THREADS_Z = 64
_MAX_BLOCKS_Y = 65_535
"""The most blocks along Y, and along Z; along X there can be 2^31 - 1 (CUDA C++ Programming
Guide)."""
_MAX_PRODUCTS = 1 << 13
"""The most multiplications of a thread with one plane of the input: they are unrolled."""
_OTHER_REGISTERS = 24
"""The approximate registers of a thread for addresses and conditions."""
_TILE_ROWS = (1, 2, 3, 4, 6, 7, 8)
_TILE_COLUMNS = (1, 2, 4, 7, 8)
_THREADS_X = (4, 8, 16, 32, 64)
_THREADS_Y = (1, 2, 4, 8, 16, 32)
_THREADS_Z = (1, 2, 4, 8, 16, 32, 64)
_THREADS = range(64, 513)
_MAX_TRIED_PRODUCTS = 1024


@dataclass(frozen=True, kw_only=True)
class Tile(TemplateParameters[Conv2d]):
    """The part of a template's parameters that divides the work.

    Attributes:
        rows: the rows of an output plane that a thread computes.
        columns: the columns of an output plane that a thread computes.
        threads_x: the threads of a block that have neighbouring columns.
        threads_y: the threads of a block that have neighbouring rows.
        threads_z: the threads of a block that have different channels: in NHWC, neighbouring ones.
        spread: whether rows and columns are as far apart as taps of dilated windows, which they
            share then.
    """

    added: ClassVar[Mapping[str, int]] = {"spread": 0}
    least: ClassVar[Mapping[str, int]] = {
        "rows": 1,
        "columns": 1,
        "threads_x": 1,
        "threads_y": 1,
        "threads_z": 1,
    }

    rows: int = 1
    columns: int = 1
    threads_x: int = 32
    threads_y: int = 1
    threads_z: int = 1
    spread: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.threads > _MAX_THREADS or self.threads_z > _MAX_THREADS_Z:
            raise InputError(
                f"A block of {self.threads_x} x {self.threads_y} x {self.threads_z} threads is too "
                f"large: it can have {_MAX_THREADS} threads, and {_MAX_THREADS_Z} along Z."
            )

    @property
    def threads(self) -> int:
        """The number of threads of a block."""
        return self.threads_x * self.threads_y * self.threads_z

    @property
    def warps(self) -> int:
        """The number of warps of a block."""
        return math.ceil(self.threads / WARP_LANES)

    def rows_apart(self, conv: Conv2d) -> int:
        """Return how far apart the rows of a tile are."""
        return _apart(conv, self.rows, conv.shape.KH) if self.spread else 1

    def columns_apart(self, conv: Conv2d) -> int:
        """Return how far apart the columns of a tile are."""
        return _apart(conv, self.columns, conv.shape.KW) if self.spread else 1

    def tiles(self, conv: Conv2d) -> tuple[int, int]:
        """Return the tiles of an output plane, along the columns and along the rows."""
        across, down = self.columns_apart(conv), self.rows_apart(conv)
        return (
            math.ceil(conv.shape.OW / (self.columns * across)) * across,
            math.ceil(conv.shape.OH / (self.rows * down)) * down,
        )

    def grid(self, conv: Conv2d) -> Dim3:
        """Return the grid: blocks of channels and images, along the rows, and along the columns."""
        along_x, along_y = self.tiles(conv)
        of_rows, of_columns = (
            math.ceil(along_y / self.threads_y),
            math.ceil(along_x / self.threads_x),
        )
        return self.channel_blocks(conv), of_rows, of_columns

    def blocks(self, conv: Conv2d) -> int:
        """Return the number of blocks."""
        return math.prod(self.grid(conv))

    def window(self, conv: Conv2d) -> tuple[int, int]:
        """Return the rows and columns of the input that a tile depends on."""
        s, (down, across) = conv.shape, self._walks(conv)
        return (
            (self.rows - 1) * down.stride + (s.KH - 1) * down.dilation + 1,
            (self.columns - 1) * across.stride + (s.KW - 1) * across.dilation + 1,
        )

    def _walks(self, conv: Conv2d) -> tuple[_Walk, _Walk]:
        """Return how the window of a tile is walked, along rows and along columns."""
        return _walk(conv, self.rows_apart(conv)), _walk(conv, self.columns_apart(conv))

    def in_width(self, conv: Conv2d) -> int:
        """Return how many elements of an input row can be read at once."""
        if self.columns_apart(conv) > 1:
            return 1
        return math.gcd(_widest(conv), conv.shape.W, self.columns * conv.shape.strides)

    def out_width(self, conv: Conv2d) -> int:
        """Return how many elements of an output row can be written at once."""
        if self.columns_apart(conv) > 1:
            return 1
        return math.gcd(_widest(conv), conv.shape.OW, self.columns)

    def loads(self, conv: Conv2d) -> tuple[int, int]:
        """Return the rows of the window that have factors, and the loads of such a row.

        Between the taps of a dilated window may be rows and columns that are not read.
        """
        s, width, (down, across) = conv.shape, self.in_width(conv), self._walks(conv)
        rows = _pieces_with_factors(self.rows, s.KH, down.stride, down.dilation)
        columns = _pieces_with_factors(
            self.columns, s.KW, across.stride, across.dilation, -s.padding % width, width
        )
        return rows, columns

    def products(self, conv: Conv2d) -> int:
        """Return a thread's multiplications with one plane of the input for one of the output."""
        return self.rows * self.columns * conv.shape.KH * conv.shape.KW

    def window_registers(self, conv: Conv2d) -> int:
        """Return the number of registers that hold a window."""
        return math.prod(self.loads(conv)) * self.in_width(conv)

    @abstractmethod
    def channel_blocks(self, conv: Conv2d) -> int:
        """Return the number of blocks along the output's channels, in all images."""

    @abstractmethod
    def kept(self, conv: Conv2d) -> int:
        """Return how many numbers a thread keeps in registers: windows, weights and sums."""

    def registers(self, conv: Conv2d) -> int:
        """Return about how many registers a thread needs."""
        return self.kept(conv) + _OTHER_REGISTERS

    def shared_bytes(self, conv: Conv2d) -> int:
        """Return 0: no shared memory is needed by default."""
        del conv
        return 0

    def choices(self, conv: Conv2d) -> dict[str, object]:
        return {
            **self.numbers,
            "tile": (self.rows, self.columns),
            "warps": self.warps,
            "warps of all blocks": round(math.log2(self.warps * self.blocks(conv))),
        }

    def text(self, conv: Conv2d, constants: Mapping[str, Constant]) -> Kernel:
        """Return the kernel of the template.

        Args:
            conv: the convolution.
            constants: the constants of the template's text, besides those of ``window.cu``.

        Raises:
            InputError: these parameters have no kernel.
        """
        s, grid = conv.shape, self.grid(conv)
        if max(grid[1:]) > _MAX_BLOCKS_Y:
            raise InputError(f"{conv.name} has too many tiles in a plane: choose larger ones.")
        if self.products(conv) > _MAX_PRODUCTS or math.prod(self.window(conv)) > _MAX_PRODUCTS:
            raise InputError(
                f"A tile of {self.rows} x {self.columns} is too large for {conv.name}: choose a "
                "smaller one."
            )
        last, (down, across) = conv.layout == "nhwc", self._walks(conv)
        every = {
            "NHWC": last,
            "CI": s.CI,
            "CO": s.CO,
            "WITH_BIAS": conv.bias,
            "WITH_RELU": conv.relu,
            "H": s.H,
            "W": s.W,
            "OH": s.OH,
            "OW": s.OW,
            "KH": s.KH,
            "KW": s.KW,
            "STRIDE": s.strides,
            "PADDING": s.padding,
            "ROWS": self.rows,
            "COLUMNS": self.columns,
            "ROWS_APART": self.rows_apart(conv),
            "COLUMNS_APART": self.columns_apart(conv),
            **down.constants("ROW"),
            **across.constants("COLUMN"),
            "THREADS_X": self.threads_x,
            "THREADS_Y": self.threads_y,
            "THREADS_Z": self.threads_z,
            "IN_WIDTH": self.in_width(conv),
            "OUT_WIDTH": self.out_width(conv),
            **constants,
        }
        block = (self.threads_x, self.threads_y, self.threads_z)
        tensors = ("data", "weight", *(["bias"] if conv.bias else []), "output")
        texts = ("conv/window", f"conv/{self.template}")
        return Kernel(
            template_text(every, texts, [ELEMENTS[conv.dtype]]),
            (Launch(self.template, grid, block[::-1] if last else block, tensors),),
            origin=Origin(TEMPLATE, None, {"template": self.template, **self.numbers}),
        )


@dataclass(frozen=True)
class _Walk:
    """The distances in the window of a tile.

    Attributes:
        step: the elements of the input between two neighbouring ones of the window.
        stride: the elements of the window between two neighbouring outputs.
        dilation: the elements of the window between two neighbouring taps.
    """

    step: int
    stride: int
    dilation: int

    def constants(self, name: str) -> dict[str, Constant]:
        """Return the constants of `cuda/conv/window.cu`."""
        return {f"{name}_{what.upper()}": value for what, value in vars(self).items()}


def _apart(conv: Conv2d, outputs: int, taps: int) -> int:
    """Return how far apart outputs are spread, so that their taps are the same elements."""
    s = conv.shape
    return s.dilation // math.gcd(s.strides, s.dilation) if min(outputs, taps) > 1 else 1


def _walk(conv: Conv2d, apart: int) -> _Walk:
    """Return the distances in a window whose outputs are ``apart`` rows or columns apart."""
    s = conv.shape
    if apart == 1:
        return _Walk(1, s.strides, s.dilation)
    return _Walk(s.dilation, s.strides * apart // s.dilation, 1)


@functools.cache
def _pieces_with_factors(
    outputs: int, taps: int, stride: int, dilation: int, lead: int = 0, width: int = 1
) -> int:
    """Return how many pieces of a window's row have factors of products."""
    factors = itertools.product(range(outputs), range(taps))
    return len({(lead + number * stride + tap * dilation) // width for number, tap in factors})


def _widest(conv: Conv2d) -> int:
    """Return how many neighbouring elements of a row are read at once, at most."""
    return 1 if conv.layout == "nhwc" else WIDEST_LOAD_BYTES // conv.element_bytes


def tiles_tried(conv: Conv2d, most_z: int) -> Iterator[dict[str, Any]]:
    """Yield the parameters of a `Tile` that may be worth trying.

    Args:
        conv: the convolution.
        most_z: the most threads along Z that a block has work for.
    """
    s = conv.shape
    columns_tried = sorted({columns for columns in _TILE_COLUMNS if columns <= s.OW})
    for rows in (rows for rows in _TILE_ROWS if rows <= s.OH):
        for columns in columns_tried:
            if rows * columns * s.KH * s.KW > max(_MAX_TRIED_PRODUCTS, s.KH * s.KW):
                continue
            tile = {"rows": rows, "columns": columns}
            apart = max(_apart(conv, rows, s.KH), _apart(conv, columns, s.KW))
            yield from (
                {**tile, **threads, "spread": spread}
                for threads in _blocks_tried(
                    math.ceil(s.OW / columns), math.ceil(s.OH / rows), most_z
                )
                for spread in (False, True)[: 1 + (apart > 1)]
            )


@functools.cache
def _blocks_tried(along_x: int, along_y: int, most_z: int) -> tuple[dict[str, int], ...]:
    """Return the numbers of threads worth trying, for these tiles along the columns and rows."""
    all_x = {min(along_x, threads) for threads in (*_THREADS_X, math.ceil(along_x / 2))}
    all_y = {min(along_y, threads) for threads in (*_THREADS_Y, math.ceil(along_y / 2))}
    all_z = {min(most_z, threads) for threads in _THREADS_Z}
    blocks = [
        {"threads_x": x, "threads_y": y, "threads_z": z}
        for x, y, z in itertools.product(*map(sorted, (all_x, all_y, all_z)))
        if x * y * z in _THREADS
    ]
    if not blocks:  # a layer with few outputs
        x, y = min(along_x, max(_THREADS_X)), min(along_y, 8)
        z = min(most_z, max(_THREADS) // (x * y))
        blocks.append({"threads_x": x, "threads_y": y, "threads_z": z})
    return tuple(blocks)


_SCHEDULERS = 4
"""The schedulers of a multiprocessor; each issues an instruction per cycle (from sm_70 on)."""
_LOADED_BYTES_PER_CYCLE = 48
"""The approximate bytes that a multiprocessor gets from the L2 while all multiprocessors load."""
_SECTOR_BYTES, _LINE_BYTES = 32, 128
_KEPT_OUTPUT_BYTES = 25 << 20
"""The output of which the L2 of an H200 keeps all lines until they are complete: half of it."""
_MEMORY_SHARE = 3.0
"""How much longer bytes take to or from memory than from the L2, about."""
_LAUNCH_CYCLES = 2500
"""The cycles between the kernels of a graph, about 1.3 µs."""
_LATENCY_CYCLES = 900
"""The approximate cycles of a block before its first product and after its last."""
_ALONE = 2.0
"""The approximate cycles per instruction of a warp that has a scheduler to itself."""
_BLOCK_CYCLES = 25
"""The approximate cycles between the starts of two blocks of a multiprocessor."""
_ROWS_PER_CYCLE = 2
"""The rows that lanes of a warp read in a cycle."""
_THREAD_INSTRUCTIONS, _ROW_INSTRUCTIONS = 40, 2
"""The approximate instructions for the addresses of a thread, and for the conditions of a row."""


@dataclass(frozen=True)
class ThreadWork:
    """The work of a thread, and of its block.

    Attributes:
        instructions: the instructions that the thread issues.
        wavefronts: the cycles for which a warp occupies the L1 or shared memory.
        block_bytes: the bytes that a block reads and writes in the L2.
    """

    instructions: float
    wavefronts: float
    block_bytes: float


def window_work(conv: Conv2d, tile: Tile) -> tuple[float, float]:
    """Return the instructions and wavefronts with which a thread reads its window.

    Lanes read pieces that are a tile apart, or in NHWC those of neighbouring channels. A load takes
    one cycle for each line of 128 bytes that it touches in a row, at least as many cycles as its
    pieces have elements, and one for every two rows, by trials on an H200.
    """
    rows, pieces = tile.loads(conv)
    loads = rows * pieces
    if conv.layout == "nhwc":
        return loads + _ROW_INSTRUCTIONS * rows, loads * _lines_of_channels(tile)
    distance = min(tile.columns * conv.shape.strides, WARP_LANES)
    touched = WARP_LANES / min(tile.threads_x, WARP_LANES)
    waves = max(distance, tile.in_width(conv), touched / _ROWS_PER_CYCLE)
    return loads + _ROW_INSTRUCTIONS * rows, loads * waves


def _lines_of_channels(tile: Tile) -> int:
    """Return how many lines a warp touches whose threads have neighbouring channels."""
    return math.ceil(WARP_LANES / tile.threads_z)


def store_work(conv: Conv2d, tile: Tile) -> tuple[float, float]:
    """Return the instructions and wavefronts with which a thread writes its tile."""
    stores = tile.rows * tile.columns / tile.out_width(conv)
    last = conv.layout == "nhwc"
    lines = _lines_of_channels(tile) if last else max(tile.columns, tile.out_width(conv))
    return stores + _ROW_INSTRUCTIONS * tile.rows, stores * lines


def plane_bytes(conv: Conv2d, tile: Tile) -> tuple[float, float]:
    """Return the bytes of an input plane and of an output plane that threads with one Z need.

    Those of the output count as often as a block's part of a row makes them longer to write, and as
    often as a sector is written, by stores of a thread's columns one after the other.
    """
    s = conv.shape
    height = min(s.H, tile.threads_y * tile.rows * s.strides + s.window[0] - s.strides)
    width = min(s.W, tile.threads_x * tile.columns * s.strides + s.window[1] - s.strides)
    of_output = min(s.OH, tile.threads_y * tile.rows) * min(s.OW, tile.threads_x * tile.columns)
    written = conv.element_bytes * of_output * _share_of_parts(conv, tile)
    if conv.layout == "nchw":
        together = tile.out_width(conv) * tile.columns_apart(conv)
        written *= max(1, min(tile.columns, _SECTOR_BYTES // conv.element_bytes / together))
    return float(conv.element_bytes * height * width), float(written)


def _share_of_parts(conv: Conv2d, tile: Tile) -> float:
    """Return how much longer it takes to write parts of rows than whole rows.

    Neighbouring blocks write other parts of the same sector, or of the same line, much later if the
    output is larger than the L2. It then is in memory meanwhile, and has to be read again.
    """
    s = conv.shape
    part = conv.element_bytes * tile.threads_x * tile.columns
    if conv.layout == "nhwc" or tile.threads_x * tile.columns >= s.OW:
        return 1.0
    if conv.element_bytes * s.N * s.CO * s.OH * s.OW < _KEPT_OUTPUT_BYTES:
        return 1 + (_SECTOR_BYTES - conv.element_bytes) / part
    return _MEMORY_SHARE * max(1.0, _LINE_BYTES / part)


def conv_cycles(conv: Conv2d, tile: Tile, card: CardResources, work: ThreadWork) -> float:
    """Return the clock cycles that a convolution is expected to take.

    Blocks come in waves of as many as the multiprocessors hold, each of which waits for memory
    once. All blocks of a multiprocessor share its units.
    """
    blocks, at_once = tile.blocks(conv), tile.resident(conv, card)
    of_one = math.ceil(blocks / card.multiprocessors)
    waves = math.ceil(of_one / at_once)
    warps = of_one * tile.warps
    instructions = work.instructions + _THREAD_INSTRUCTIONS
    busy = max(
        warps * instructions / _SCHEDULERS,
        warps * work.wavefronts,
        of_one * work.block_bytes / _LOADED_BYTES_PER_CYCLE,
    )
    alone = _ALONE * instructions
    return _LAUNCH_CYCLES + waves * (_LATENCY_CYCLES + alone) + busy + of_one * _BLOCK_CYCLES
