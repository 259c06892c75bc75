"""How long a kernel of a template may take: latency, and the busiest of three units.

The estimate chooses where a search begins. It is no measurement, and nothing that is reported
depends on it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from pytest_gpuenergy.conv.tile import Tile
from pytest_gpuenergy.tuning import WARP_LANES, Card
from pytest_gpuenergy.workloads import Conv2d

_SCHEDULERS = 4
"""Of a multiprocessor, each of which issues an instruction per cycle (all from sm_70 on)."""
_LOADED_BYTES_PER_CYCLE = 48
"""That a multiprocessor gets from the L2 while all of them load, about."""
_LAUNCH_CYCLES = 2500
"""Between the kernels of a graph, about 1.3 µs."""
_LATENCY_CYCLES = 900
"""From the start of a block to its first product, and from its last to its end, about."""
_ALONE = 2.0
"""Cycles per instruction of a warp that has a scheduler to itself, about."""
_BLOCK_CYCLES = 25
"""Between the starts of two blocks of a multiprocessor, about."""
_THREAD_INSTRUCTIONS, _ROW_INSTRUCTIONS = 40, 2
"""For the addresses of a thread, and for the conditions of a row of its window, about."""


@dataclass(frozen=True)
class Work:
    """What a thread does.

    Attributes:
        instructions: that it issues.
        wavefronts: cycles for which a warp occupies the L1 or shared memory.
        block_bytes: that a block reads and writes in the L2.
    """

    instructions: float
    wavefronts: float
    block_bytes: float


def window_work(conv: Conv2d, tile: Tile) -> tuple[float, float]:
    """Instructions and wavefronts with which a thread reads its window.

    Lanes read pieces that lie a tile apart: a load takes as many cycles as there are lines of 128
    bytes that it touches, and as its pieces have elements.
    """
    rows, pieces = tile.window(conv)[0], tile.pieces(conv)
    distance = min(tile.columns * conv.shape.strides, WARP_LANES)
    loads = rows * pieces
    return loads + _ROW_INSTRUCTIONS * rows, loads * max(distance, tile.in_width(conv))


def store_work(conv: Conv2d, tile: Tile) -> tuple[float, float]:
    """Instructions and wavefronts with which a thread writes its tile."""
    stores = tile.rows * tile.columns / tile.out_width(conv)
    return stores + _ROW_INSTRUCTIONS * tile.rows, stores * max(tile.columns, tile.out_width(conv))


def plane_bytes(conv: Conv2d, tile: Tile) -> tuple[float, float]:
    """Bytes of a plane of the input, and of the output, that threads with one Z need."""
    s = conv.shape
    height = min(s.H, tile.threads_y * tile.rows * s.strides + s.window[0] - s.strides)
    width = min(s.W, tile.threads_x * tile.columns * s.strides + s.window[1] - s.strides)
    of_output = min(s.OH, tile.threads_y * tile.rows) * min(s.OW, tile.threads_x * tile.columns)
    return 4.0 * height * width, 4.0 * of_output


def cycles_of(conv: Conv2d, tile: Tile, card: Card, work: Work) -> float:
    """Clock cycles that a convolution is expected to take.

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
