"""How long a kernel of a template may take: a roofline with waves of blocks.

The estimate chooses where a search begins. It is no measurement, and nothing that is reported
depends on it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from pytest_gpuenergy.gemm.tiling import Tiling
from pytest_gpuenergy.tuning import Card
from pytest_gpuenergy.workloads import Gemm

_BUSY_WARPS = 12
"""Warps of a multiprocessor that hide the latency of multiplications and of shared memory."""
_STEP_CYCLES = 40
"""Of the barrier and the addresses of a step."""
_LOADED_BYTES_PER_CYCLE = 48
"""That a multiprocessor gets from the L2 while all of them load, about."""
_LATENCY_CYCLES = 700
"""From a load until its data are in shared memory, about."""
_FIRST_CYCLES = 1000
"""Until the first step of a tile is in shared memory."""
_LAUNCH_CYCLES = 10_000
"""Of the second launch, which adds the parts of shared tiles: with it, the times of 3668 kernels on
an H100 are as far from their estimates where tiles are shared as where they are not
(``gemm-first-trials.tar.gz`` in ``bench/results/nvidia-h100-2026-11-26``)."""
SCHEDULERS = 4
"""Of a multiprocessor, each of which issues an instruction per cycle (all from sm_70 on)."""
_PARTS_BYTES_PER_CYCLE = 16
"""At which a multiprocessor writes and reads parts, about."""
_LOADING_SHARE = 0.1
"""Of the cycles of loading that a step gets longer, though multiplications hide them."""
_SHARPNESS = 8
"""Of the corner where the power limit begins to hold a product back."""


@dataclass(frozen=True)
class Step:
    """What one block does in one step.

    Attributes:
        busy_cycles: that the multiprocessor's units need if nothing waits.
        warps: of the block.
        loaded_bytes: from global memory.
        alone_cycles: that a block takes with the multiprocessor to itself, if known.
        last_cycles: of a tile, besides its steps and what they wait for.
        energy_cycles: for which the step's energy lasts at the power limit, if known.
        issuing_warps: of the block, if the units that are busy are those of the schedulers, to
            which a multiprocessor's warps belong in turn.
    """

    busy_cycles: float
    warps: int
    loaded_bytes: int
    alone_cycles: float = 0.0
    last_cycles: float = 0.0
    energy_cycles: float = 0.0
    issuing_warps: int = 0

    def cycles(self, count: int, stages: int) -> float:
        """Cycles of `count` blocks together, with so many stages each."""
        idle = max(1.0, _BUSY_WARPS / max(1, count * self.warps))
        loading = count * self.loaded_bytes / _LOADED_BYTES_PER_CYCLE
        waiting = _LATENCY_CYCLES / (stages - 1)
        each, rest = divmod(count * self.issuing_warps, SCHEDULERS)
        uneven = (each + 1) / (each + rest / SCHEDULERS) if rest else 1.0
        busy = count * self.busy_cycles * idle * uneven + _STEP_CYCLES
        return max(busy, self.alone_cycles, loading, waiting) + _LOADING_SHARE * loading


def cycles_of(gemm: Gemm, tiling: Tiling, card: Card, step: Step, resident: int) -> float:
    """Clock cycles that a product is expected to take.

    Blocks come in waves of as many as the multiprocessors hold. The blocks of a multiprocessor
    share its units; the last wave may have fewer of them. All of them share the power.

    Args:
        gemm: the product.
        tiling: how it is divided.
        card: on which it runs.
        step: of a block.
        resident: blocks that a multiprocessor holds.
    """
    blocks = tiling.blocks_of(gemm) * tiling.cluster_blocks
    steps = tiling.most_steps(gemm)
    waves, rest = divmod(blocks, resident * card.multiprocessors)
    together = [(resident, waves), (math.ceil(rest / card.multiprocessors), 1 if rest else 0)]
    total = 0.0
    for count, times in together:
        each = step.cycles(count, tiling.stages)
        total += times * (steps * each + _FIRST_CYCLES + step.last_cycles)
    if tiling.shares_tiles(gemm):
        parts = 4 * 2 * blocks * tiling.tile_m * tiling.tile_n / card.multiprocessors
        total += _LAUNCH_CYCLES + parts / _PARTS_BYTES_PER_CYCLE
    every = tiling.tiles(gemm) * tiling.steps(gemm)
    limited = step.energy_cycles * every / card.multiprocessors
    return float(total * (1 + (limited / total) ** _SHARPNESS) ** (1 / _SHARPNESS))
