"""Which parameters of the template are likely to be fast: a roofline with waves of blocks.

The estimate chooses where to begin. It is no measurement, and nothing that is reported depends on
it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

from pytest_gpuenergy.gemm.card import FIRST_ASYNCHRONOUS, REGISTERS_PER_SM, Card
from pytest_gpuenergy.gemm.simt import SimtParameters
from pytest_gpuenergy.support.errors import InputError
from pytest_gpuenergy.workloads.gemm import Gemm

_TILES = (32, 64, 128, 256)
_THREAD_TILES = ((4, 4), (8, 4), (4, 8), (8, 8), (16, 8), (8, 16))
_DEPTHS = (8, 16, 32)
_STAGES = (2, 3, 4)
_SPLITS = (1, 2, 3, 4, 6, 8)
_LEAST_THREADS, _MOST_THREADS = 64, 512
_MOST_REGISTERS = 255
_MOST_BLOCKS_OF_SM = 32
_BUSY_WARPS = 12
"""Warps of a multiprocessor that hide the latency of multiplications and of shared memory."""
_STEP_CYCLES = 40
"""Of the barrier and the addresses of a step."""
_LAUNCH_CYCLES = 4000
"""Of the second launch, which adds the parts of shared tiles."""


def ranked(gemm: Gemm, card: Card) -> list[SimtParameters]:
    """Parameters that fit the card, the most promising first; those of equal estimate as listed.

    Raises:
        InputError: none fit.
    """
    found = sorted(_fitting(gemm, card), key=lambda one: cycles(gemm, one, card))
    if not found:
        raise InputError(f"No parameters of the template fit {gemm.name} on this GPU.")
    return found


def cycles(gemm: Gemm, parameters: SimtParameters, card: Card) -> float:
    """Clock cycles that the product is expected to take.

    Multiplications run at one per core and cycle, while a thread that computes t_m x t_n elements
    loads t_m + t_n from shared memory for each t_m t_n of them, at a quarter of that rate. Blocks
    come in waves of as many as the multiprocessors hold.
    """
    p = parameters
    resident = _resident(gemm, p, card)
    blocks = p.blocks_of(gemm)
    steps = math.ceil(p.tiles(gemm) * p.steps(gemm) / blocks)
    loads = 4 * (p.thread_m + p.thread_n) / (p.thread_m * p.thread_n)
    step = p.tile_m * p.tile_n * p.tile_k / card.cores * max(1.0, loads)
    waves, rest = divmod(blocks, resident * card.multiprocessors)
    # A multiprocessor's blocks share its cores; the last wave may have fewer.
    together = [resident] * waves + ([math.ceil(rest / card.multiprocessors)] if rest else [])
    total = 0.0
    for count in together:
        idle = max(1.0, _BUSY_WARPS / (count * p.threads / 32))
        total += steps * (count * step * idle + _STEP_CYCLES)
    if p.shares_tiles(gemm):
        parts = 4 * 2 * blocks * p.tile_m * p.tile_n / card.multiprocessors
        total += _LAUNCH_CYCLES + parts / 16
    return total


def _fitting(gemm: Gemm, card: Card) -> Iterator[SimtParameters]:
    asynchronous = card.capability >= FIRST_ASYNCHRONOUS
    for tile_m, tile_n, thread, tile_k, stages in itertools.product(
        _TILES, _TILES, _THREAD_TILES, _DEPTHS, _STAGES
    ):
        try:
            base = SimtParameters(tile_m, tile_n, tile_k, *thread, stages)
        except InputError:  # warps do not fill the tile
            continue
        if _LEAST_THREADS <= base.threads <= _MOST_THREADS and _fits(gemm, base, card):
            tiles = base.tiles(gemm)
            choices = {0 if split == 1 else tiles * split for split in _SPLITS}
            choices.add(card.multiprocessors * _resident(gemm, base, card))
            for blocks in sorted(choices):
                if blocks <= tiles * base.steps(gemm):
                    yield SimtParameters(
                        tile_m,
                        tile_n,
                        tile_k,
                        *thread,
                        stages,
                        blocks,
                        asynchronous=asynchronous,
                    )


def _fits(gemm: Gemm, parameters: SimtParameters, card: Card) -> bool:
    return (
        parameters.shared_bytes(gemm) <= card.shared_bytes_of_block
        and parameters.registers <= _MOST_REGISTERS
        and parameters.registers * parameters.threads <= REGISTERS_PER_SM
    )


def _resident(gemm: Gemm, parameters: SimtParameters, card: Card) -> int:
    """Blocks that a multiprocessor holds at once."""
    return (
        min(
            card.threads // parameters.threads,
            card.shared_bytes // (parameters.shared_bytes(gemm) + 1024),
            REGISTERS_PER_SM // (parameters.registers * parameters.threads),
            _MOST_BLOCKS_OF_SM,
        )
        or 1
    )
