"""The estimated time of a product, by which kernels are ranked before any is compiled.

The estimate is a roofline with waves of blocks; what it takes for granted of a card are `Costs`.
Regression trees correct what the estimate of CUDA cores still gets wrong. The estimate chooses
kernels; no figure that is reported depends on it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, cast

from pytest_gpuenergy.tuners.gemm.costs import Costs, FittedCosts
from pytest_gpuenergy.tuners.gemm.tiling import FEW_ROWS, Tiling
from pytest_gpuenergy.tuning import CardResources
from pytest_gpuenergy.workloads import Gemm

SHORT_ROWS = 32
"""The most rows of a product whose A has short lines if it is stored transposed. A step of all
blocks then lies in few lines of the L2, which all of them ask for at once. On an H200, five
launches of `skinny` with 0.2 to 0.9 million such lines took 4 to 18 us more than B takes to be
read, and two of `wgmma`, whose tiles all begin at the same step, with 0.2 and 0.4 million 9 and 11.
"""
SCHEDULERS = 4
"""The schedulers of a multiprocessor; each issues an instruction per cycle (from sm_70 on)."""
_SHARPNESS = 8
"""The sharpness of the corner where one bound of a time becomes larger than another, such as where
the power limit begins to hold a product back."""
_PREPARING_BESIDE = 0.4
"""How much longer warps prepare a step for each further block, whose warps do so meanwhile."""
_FIRST_CORRECTED = 512
"""The kernels that are corrected first where only the best one is of interest; then come twice as
many, and so on, as long as one of them could still be the best."""


@dataclass(frozen=True)
class BlockStep:
    """The work of one block in one step.

    Attributes:
        busy_cycles: the cycles that the multiprocessor's units need if nothing waits.
        warps: the warps of the block.
        loaded_bytes: the bytes that are loaded from global memory.
        alone_cycles: the cycles that a block takes with the multiprocessor to itself, if known.
        preparing_cycles: the cycles in which warps of their own write what others then multiply.
        last_cycles: the cycles of a tile besides its steps and what they wait for.
        next_cycles: the cycles of each further tile of the block besides its steps.
        energy_cycles: the cycles for which the step's energy lasts at the power limit, if known.
        issuing_warps: the warps of the block if the schedulers are the busy units; a
            multiprocessor's warps are assigned to its schedulers in turn.
        waits_for_copies: whether warps copy through registers, so that a step begins only when what
            it copies has arrived.
    """

    busy_cycles: float
    warps: int
    loaded_bytes: int
    alone_cycles: float = 0.0
    preparing_cycles: float = 0.0
    last_cycles: float = 0.0
    next_cycles: float = 0.0
    energy_cycles: float = 0.0
    issuing_warps: int = 0
    waits_for_copies: bool = False

    def cycles(self, count: int, stages: int, costs: Costs) -> float:
        """Return the cycles of `count` blocks together, each with `stages` stages."""
        idle = max(1.0, costs.busy_warps / max(1, count * self.warps))
        loading = count * self.loaded_bytes / costs.loaded_bytes_per_cycle
        waiting = (costs.latency_cycles + self.preparing_cycles) / (stages - 1)
        if self.waits_for_copies:
            waiting = costs.latency_cycles + self.busy_cycles
        each, rest = divmod(count * self.issuing_warps, SCHEDULERS)
        uneven = (each + 1) / (each + rest / SCHEDULERS) if rest else 1.0
        busy = count * self.busy_cycles * idle * uneven + costs.step_cycles
        preparing = (1 + _PREPARING_BESIDE * (count - 1)) * self.preparing_cycles
        others = max(self.alone_cycles, preparing, loading, waiting)
        return max(busy, others) + costs.loading_share * loading


def product_cycles(
    gemm: Gemm, tiling: Tiling, card: CardResources, step: BlockStep, costs: Costs
) -> float:
    """Return the clock cycles that a product is expected to take.

    Blocks come in waves of as many as the multiprocessors hold. The blocks of a multiprocessor
    share its units; the last wave may have fewer of them. All of them share the power.

    Args:
        gemm: the product.
        tiling: how the product is divided.
        card: the resources of the card.
        step: the work of a block in one step.
        costs: what the work costs.
    """
    resident, tiles = tiling.resident(gemm, card), tiling.tiles(gemm)
    clusters, steps = tiling.block_count(gemm), tiling.max_steps(gemm)
    blocks = clusters * tiling.cluster_blocks
    waves, rest = divmod(blocks, resident * card.multiprocessors)
    along_m, along_n = tiling.cluster
    shared = tiling.shares_tiles(gemm)
    share = costs.sharing_share if shared else 1.0
    beside = costs.first_cycles + step.last_cycles
    if along_m * along_n > 1:
        share *= costs.cluster_m_share if along_m > 1 else costs.cluster_n_share
    if tiling.cluster_blocks > 1:
        beside += costs.cluster_cycles
    further = -(-tiles // clusters) - 1
    if shared and clusters % tiles:
        further += 1  # a block ends one tile and begins another
    beside += further * step.next_cycles
    total = costs.start_cycles
    if waves:
        total += waves * (share * steps * step.cycles(resident, tiling.stages, costs) + beside)
    if rest:
        count = -(-rest // card.multiprocessors)
        total += share * steps * step.cycles(count, tiling.stages, costs) + beside
    if shared:
        parts = 4 * 2 * blocks * tiling.tile_m * tiling.tile_n / card.multiprocessors
        total += costs.launch_cycles + parts / costs.parts_bytes_per_cycle
    every = tiles * tiling.steps(gemm) * along_m * along_n
    limited = step.energy_cycles * every / card.multiprocessors
    bounds = [limited]
    if gemm.most_rows <= FEW_ROWS:
        moved = gemm.bytes_moved / (card.multiprocessors * costs.memory_bytes_per_cycle)
        bounds.append(costs.start_cycles + costs.first_cycles + moved)
    return soft_maximum(total, *bounds) - costs.early_cycles * tiling.begins_early(gemm)


def soft_maximum(*bounds: float) -> float:
    """Return about the largest bound, and more where others are near to it.

    Of two kernels with the same largest bound, the one that is further away from the others has
    fewer cycles.
    """
    largest = max(bounds)
    total = sum((bound / largest) ** _SHARPNESS for bound in bounds)
    return float(largest * total ** (1 / _SHARPNESS))


def copying_cycles(nbytes: int, card: CardResources, costs: Costs) -> float:
    """Return the clock cycles that a launch is expected to take which copies so many bytes."""
    moved = 2 * nbytes / card.multiprocessors
    return costs.launch_cycles + moved / costs.copied_bytes_per_cycle


def short_line_cycles(gemm: Gemm, tiles: int, each: float) -> float:
    """Return the clock cycles for which lines of A hold a launch up, see `SHORT_ROWS`.

    Args:
        gemm: the product.
        tiles: the tiles of the product.
        each: the cycles for each line that is read for a tile, by all multiprocessors together.
    """
    short = gemm.a_transposed and gemm.most_rows <= SHORT_ROWS
    return each * tiles * gemm.K if short else 0.0


class _Corrected(Protocol):
    """Parameters whose estimate can be corrected."""

    def traits(self, gemm: Gemm, card: CardResources, cycles: float) -> tuple[float, ...]:
        """Return what may explain how far the estimate is off."""


def estimated_cycles(
    gemm: Gemm,
    card: CardResources,
    tilings: Sequence[Tiling],
    estimate: FittedCosts,
    *,
    of_best: bool = False,
) -> list[float]:
    """Return the clock cycles that kernels are expected to take, with the estimate's corrections.

    Args:
        gemm: the product.
        card: the resources of the card.
        tilings: the parameters of the kernels.
        estimate: what was fitted to stored trials.
        of_best: whether only the kernel with the fewest cycles is of interest. Kernels that no
            correction can make the best are then left as they are, or with infinite cycles.
    """
    import numpy as np

    cycles = [tiling.cycles(gemm, card, estimate.costs[tiling.family]) for tiling in tilings]
    for kind, trees in estimate.corrections.items():
        places = [place for place, tiling in enumerate(tilings) if tiling.corrections == kind]
        if of_best:
            places.sort(key=cycles.__getitem__)
        least, best = trees.least_factor, math.inf
        begin, count = 0, _FIRST_CORRECTED if of_best else len(places)
        while batch := [
            place for place in places[begin : begin + count] if least * cycles[place] <= best
        ]:
            traits = [
                cast("_Corrected", tilings[place]).traits(gemm, card, cycles[place])
                for place in batch
            ]
            sums = trees.sums(np.array(traits, dtype=float))
            for place, factor in zip(batch, np.exp(sums).tolist(), strict=True):
                cycles[place] *= factor
            best = min(best, *(cycles[place] for place in batch)) if of_best else best
            begin, count = begin + len(batch), 2 * count
        for place in places[begin:]:
            cycles[place] = math.inf
    return cycles
