"""The cards' figures for the estimate of products: fitted costs, and trees that correct it.

Both were fitted to stored trials by ``studies/fit_estimate.py``, which writes ``estimate.json``.
"""

from __future__ import annotations

import functools
import math
from importlib import resources
from typing import TYPE_CHECKING

from msgspec import Struct

from pytest_gpuenergy.support import decode

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


class Costs(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The costs of a template's work; the defaults are those of CUDA cores.

    Attributes:
        product_share: the time of a multiplication, relative to that at the peak rate.
        served_share: the time of a byte from shared memory, relative to that at the peak rate.
        busy_warps: the warps of a multiprocessor that hide the latency of multiplications and
            shared memory.
        step_cycles: the cycles of the barrier and the addresses of a step.
        loaded_bytes_per_cycle: the bytes that a multiprocessor gets from the L2 in a cycle while
            all multiprocessors load.
        memory_bytes_per_cycle: the share of a multiprocessor in what memory gives in a cycle, which
            only estimates of products with few rows know.
        divided_share: the time of loads where blocks of a cluster divide the steps of a tile, and
            none of them loads what another one does, relative to others. On an H200, 100 to 132
            blocks loaded 9 to 11 TB/s then, and 16 TB/s in clusters of none.
        straddling_share: how much longer loads take where each line of a box lies in two lines of
            the L2, since rows are not a multiple of its length apart. In ``e4m3``, a multiprocessor
            of an H200 got 24 to 26 bytes in a cycle with K = 4112 and 4304, with or without a
            cluster.
        loading_share: the share of the loading cycles that lengthens a step although
            multiplications hide them.
        latency_cycles: the cycles from a load until its data are in shared memory.
        first_cycles: the cycles until the first step of a tile is in shared memory.
        stored_bytes_per_cycle: the rate at which a multiprocessor stores its tiles, where a
            template does not estimate this itself.
        launch_cycles: the cycles of the second launch, which adds the parts of shared tiles. With
            10,000, the estimates of 3668 kernels on an H100 are as good for shared tiles as for
            others (``gemm-first-trials.tar.gz`` in ``bench/results/nvidia-h100-2026-11-26``).
        parts_bytes_per_cycle: the rate at which a multiprocessor writes and reads parts.
        copied_bytes_per_cycle: the rate at which a multiprocessor reads and writes operands that a
            launch copies before that of the product.
        sharing_share: the time of a step where blocks share tiles, relative to others: these blocks
            are at different columns of A, and find less in the caches.
        start_cycles: the cycles of a launch in which no block works.
        early_cycles: the cycles that a launch saves which begins while the one before it ends.
        cluster_cycles: the cycles until the blocks of a cluster have begun.
        dividing_cycles: the cycles in which blocks that divide the steps of a tile wait for one
            another to add their sums, besides reading these.
        cluster_m_share: the time of a step in a cluster of blocks along M, relative to others.
        cluster_n_share: the same along N.
        sums_share: the cycles in which a warpgroup adds 128 sums of a step to the totals.
        split_share: the cycles in which those that multiply split 128 elements for ``3xtf32``.
        prepared_share: the cycles in which 128 elements of A are split by warps of their own.
        transposed_share: the cycles in which these warps transpose 128 elements of A.
        copied_share: the cycles in which they copy 128 elements of A or B that are not aligned.
        waiting_cycles: the cycles of a step in which a warpgroup that adds the sums of each step
            waits for its own products; others multiply meanwhile.
        copy_instructions: the instructions of an asynchronous copy to shared memory.
        turning_instructions: those of a copy of four bytes that transposes.
        narrow_instructions: those of a copy of less than 16 bytes, where rows are not aligned.
        barrier_cycles: the cycles from the end of a step to the first products of the next, in
            which only other blocks work.
        kept_instructions: those of a copy through registers.
        turns_share: the time of these three if warpgroups take turns, relative to others.
        energy_shares: the time for which the energy of a multiplication lasts at the power limit,
            relative to its time at the peak rate, by mode.
        loaded_energy_cycles: the cycles for which the energy of a byte from the L2 lasts at the
            power limit, per multiprocessor.
    """

    product_share: float = 1.0
    served_share: float = 1.0
    busy_warps: float = 12.0
    step_cycles: float = 40.0
    loaded_bytes_per_cycle: float = 48.0
    memory_bytes_per_cycle: float = 18.0
    divided_share: float = 1.0
    straddling_share: float = 0.0
    loading_share: float = 0.1
    latency_cycles: float = 700.0
    first_cycles: float = 1000.0
    stored_bytes_per_cycle: float = 8.0
    launch_cycles: float = 10_000.0
    parts_bytes_per_cycle: float = 16.0
    copied_bytes_per_cycle: float = 16.0
    sharing_share: float = 1.0
    start_cycles: float = 0.0
    early_cycles: float = 0.0
    cluster_cycles: float = 0.0
    dividing_cycles: float = 0.0
    cluster_m_share: float = 1.0
    cluster_n_share: float = 1.0
    sums_share: float = 0.0
    split_share: float = 0.0
    prepared_share: float = 0.0
    transposed_share: float = 0.0
    copied_share: float = 0.0
    waiting_cycles: float = 0.0
    copy_instructions: float = 3.0
    turning_instructions: float = 12.0
    narrow_instructions: float = 4.0
    barrier_cycles: float = 700.0
    kept_instructions: float = 3.0
    turns_share: float = 1.0
    energy_shares: dict[str, float] = {}
    loaded_energy_cycles: float = 0.0


class Trees(Struct, frozen=True, forbid_unknown_fields=True):
    """Regression trees, whose values are added (Friedman, "Greedy function approximation", 2001).

    All trees are complete and equally deep. Node ``i`` has the children ``2 i + 1`` and
    ``2 i + 2``; a kernel goes to the second one if its trait is greater than the threshold.

    Attributes:
        traits: the names of the traits, in the order of the templates' ``traits``.
        nodes: the place of each node's trait, by tree.
        thresholds: the threshold of each node, by tree.
        values: the value of each leaf, by tree.
    """

    traits: tuple[str, ...]
    nodes: list[list[int]]
    thresholds: list[list[float]]
    values: list[list[float]]

    @property
    def least_factor(self) -> float:
        """The least factor by which any kernel's estimate may be corrected."""
        return math.exp(sum(map(min, self.values)))

    def sums(self, traits: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Return the sums of the trees' values for rows of traits."""
        import numpy as np

        total = np.zeros(len(traits))
        rows = np.arange(len(traits))
        for nodes, thresholds, values in zip(self.nodes, self.thresholds, self.values, strict=True):
            traits_of, limits = np.array(nodes), np.array(thresholds)
            place = np.zeros(len(traits), dtype=int)
            while len(place) and place[0] < len(nodes):
                place = 2 * place + 1 + (traits[rows, traits_of[place]] > limits[place])
            if len(place):
                total += np.array(values)[place - len(nodes)]
        return total


class FittedCosts(Struct, frozen=True, forbid_unknown_fields=True):
    """The contents of ``estimate.json``.

    Attributes:
        costs: the costs by family of templates.
        corrections: trees by template; they give the logarithm of a kernel's time, divided by the
            cycles of its estimate.
    """

    costs: dict[str, Costs]
    corrections: dict[str, Trees]


@functools.cache
def fitted() -> FittedCosts:
    """Return what was fitted to stored trials."""
    text = resources.files(__package__).joinpath("estimate.json").read_bytes()
    return decode(text, FittedCosts, "the estimate")


def costs_of(family: str) -> Costs:
    """Return the costs that were fitted for a family of templates."""
    return fitted().costs[family]
