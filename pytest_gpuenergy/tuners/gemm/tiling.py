"""Tilings of a product: tiles, steps and blocks, the estimated time, and the kernel.

This is what all templates for matrix products share. The estimate is a roofline with waves of
blocks. It chooses where a search begins; nothing that is reported depends on it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

from pytest_gpuenergy.kernels import Kernel, Launch, Origin, TensorMap
from pytest_gpuenergy.support import InputError
from pytest_gpuenergy.tuning import (
    MAX_PARAMETER,
    TEMPLATE,
    CardResources,
    Constant,
    TemplateParameters,
    template_text,
)
from pytest_gpuenergy.workloads import Gemm, Mode, Tensor, Workload

_SPLITS = (1, 2, 3, 4, 6, 8)
"""The numbers of parts into which a tile's steps are divided."""
_THREADS = range(64, 513)
"""The numbers of threads of a block that are worth trying."""
MAX_STEPS = 1 << 31
"""The limit of the steps in all tiles together: kernels count them in 32 bits."""


@dataclass(frozen=True, kw_only=True)
class Tiling(TemplateParameters[Gemm]):
    """The part of a template's parameters that divides the work.

    Attributes:
        tile_m: the rows of C that a block computes at a time.
        tile_n: the columns of C that a block computes at a time.
        tile_k: the products of each element that are in shared memory for one step.
        stages: the steps that are in shared memory, or on the way there.
        blocks: the number of blocks, or of clusters of them, among which all steps are divided
            evenly; 0 stands for one per tile.
        group: the rows of tiles that are computed together.
    """

    modes: ClassVar[tuple[Mode, ...]]
    least: ClassVar[Mapping[str, int]] = {
        "tile_m": 1,
        "tile_n": 1,
        "tile_k": 1,
        "stages": 2,
        "group": 1,
    }

    tile_m: int = 64
    tile_n: int = 64
    tile_k: int = 8
    stages: int = 3
    blocks: int = 0
    group: int = 8

    @classmethod
    def computes(cls, workload: Workload) -> bool:
        """Return whether the workload is a matrix product in one of the template's modes."""
        return isinstance(workload, Gemm) and workload.mode in cls.modes

    def check_mode(self, gemm: Gemm) -> None:
        """Check that the template computes in the product's mode.

        Raises:
            InputError: it does not.
        """
        if gemm.mode not in self.modes:
            raise InputError(
                f"The template {self.template} computes in {', '.join(self.modes)}, not in mode "
                f"{gemm.mode}."
            )

    @property
    def cluster(self) -> tuple[int, int]:
        """The blocks of a cluster along M and N; they compute neighbouring tiles together."""
        return 1, 1

    @property
    def cluster_blocks(self) -> int:
        """The number of blocks of a cluster."""
        return math.prod(self.cluster)

    def tiles(self, gemm: Gemm) -> int:
        """Return the number of tiles of C; the tiles of a cluster count as one."""
        along_m, along_n = self.cluster
        return -(-gemm.M // (along_m * self.tile_m)) * -(-gemm.N // (along_n * self.tile_n))

    def whole_tile_count(self, gemm: Gemm) -> int:
        """Return how many tiles blocks compute whole; the steps of the other tiles are divided."""
        del gemm
        return 0

    def steps(self, gemm: Gemm) -> int:
        """Return the number of steps of one tile."""
        return -(-gemm.K // self.tile_k)

    def block_count(self, gemm: Gemm) -> int:
        """Return the number of blocks or clusters; each has at least one step."""
        tiles = self.tiles(gemm)
        return min(self.blocks, tiles * self.steps(gemm)) or tiles

    def max_steps(self, gemm: Gemm) -> int:
        """Return the steps of the block or cluster that has the most."""
        return -(-self.tiles(gemm) * self.steps(gemm) // self.block_count(gemm))

    def shares_tiles(self, gemm: Gemm) -> bool:
        """Return whether a tile is computed by several blocks or clusters.

        Block b begins at tile ``tiles * b / blocks``, rounded down to a step. If any of these
        places is one step or more into a tile, the one that is furthest in is.
        """
        tiles, blocks = self.tiles(gemm), self.block_count(gemm)
        return (blocks - math.gcd(tiles, blocks)) * self.steps(gemm) >= blocks

    def at_once(self, gemm: Gemm, card: CardResources) -> int:
        """Return how many blocks or clusters a card holds at once."""
        return self.resident(gemm, card) * card.multiprocessors // self.cluster_blocks

    def divided(self, gemm: Gemm, card: CardResources) -> Iterator[Self]:
        """Yield the tiling with each number of blocks worth trying, if the card can run it."""
        at_once = self.at_once(gemm, card)
        tiles = self.tiles(gemm)
        every = tiles * self.steps(gemm)
        if at_once and self.threads in _THREADS and every < MAX_STEPS:
            choices = {0 if split == 1 else tiles * split for split in _SPLITS}
            choices.add(at_once)  # stream-K
            for blocks in sorted(choices):
                if blocks <= min(every, MAX_PARAMETER):
                    copy = object.__new__(type(self))  # there are ten thousand, and all are valid
                    vars(copy).update(vars(self), blocks=blocks)
                    yield copy

    def choices(self, gemm: Gemm) -> dict[str, object]:
        shared = round(self.block_count(gemm) / self.tiles(gemm), 2)
        tile = (self.tile_m, self.tile_n)
        return {**self.numbers, "blocks": self.blocks and shared, "tile": tile}

    def constants(self, gemm: Gemm) -> dict[str, int | bool]:
        """Return the constants of `cuda/gemm/tiles.cu`; booleans are for the preprocessor."""
        return {
            "M": gemm.M,
            "N": gemm.N,
            "K": gemm.K,
            "LDC": gemm.ldc,
            "A_TRANSPOSED": gemm.a_transposed,
            "B_TRANSPOSED": gemm.b_transposed,
            "TILE_M": self.tile_m,
            "TILE_N": self.tile_n,
            "TILE_K": self.tile_k,
            "STAGES": self.stages,
            "CLUSTER_M": self.cluster[0],
            "CLUSTER_N": self.cluster[1],
            "BLOCKS": self.block_count(gemm),
            "WHOLE_TILES": self.whole_tile_count(gemm),
            "GROUP": self.group,
            "SHARED_TILES": self.shares_tiles(gemm),
        }


_BUSY_WARPS = 12
"""The warps of a multiprocessor that hide the latency of multiplications and shared memory."""
_STEP_CYCLES = 40
"""The cycles of the barrier and the addresses of a step."""
_LOADED_BYTES_PER_CYCLE = 48
"""The approximate bytes that a multiprocessor gets from the L2 while all multiprocessors load."""
_LATENCY_CYCLES = 700
"""The approximate cycles from a load until its data are in shared memory."""
_FIRST_CYCLES = 1000
"""The cycles until the first step of a tile is in shared memory."""
_LAUNCH_CYCLES = 10_000
"""The cycles of the second launch, which adds the parts of shared tiles. With it, the estimates of
3668 kernels on an H100 are as good for shared tiles as for others (``gemm-first-trials.tar.gz`` in
``bench/results/nvidia-h100-2026-11-26``)."""
SCHEDULERS = 4
"""The schedulers of a multiprocessor; each issues an instruction per cycle (from sm_70 on)."""
_PARTS_BYTES_PER_CYCLE = 16
"""The approximate rate at which a multiprocessor writes and reads parts, and copies matrices."""
_LOADING_SHARE = 0.1
"""The share of the loading cycles that lengthens a step although multiplications hide them."""
_SHARPNESS = 8
"""The sharpness of the corner where the power limit begins to hold a product back."""


@dataclass(frozen=True)
class BlockStep:
    """The work of one block in one step.

    Attributes:
        busy_cycles: the cycles that the multiprocessor's units need if nothing waits.
        warps: the warps of the block.
        loaded_bytes: the bytes that are loaded from global memory.
        alone_cycles: the cycles that a block takes with the multiprocessor to itself, if known.
        last_cycles: the cycles of a tile besides its steps and what they wait for.
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
    last_cycles: float = 0.0
    energy_cycles: float = 0.0
    issuing_warps: int = 0
    waits_for_copies: bool = False

    def cycles(self, count: int, stages: int) -> float:
        """Return the cycles of `count` blocks together, each with `stages` stages."""
        idle = max(1.0, _BUSY_WARPS / max(1, count * self.warps))
        loading = count * self.loaded_bytes / _LOADED_BYTES_PER_CYCLE
        waiting = _LATENCY_CYCLES / (stages - 1)
        if self.waits_for_copies:
            waiting = _LATENCY_CYCLES + self.busy_cycles
        each, rest = divmod(count * self.issuing_warps, SCHEDULERS)
        uneven = (each + 1) / (each + rest / SCHEDULERS) if rest else 1.0
        busy = count * self.busy_cycles * idle * uneven + _STEP_CYCLES
        return max(busy, self.alone_cycles, loading, waiting) + _LOADING_SHARE * loading


def product_cycles(gemm: Gemm, tiling: Tiling, card: CardResources, step: BlockStep) -> float:
    """Return the clock cycles that a product is expected to take.

    Blocks come in waves of as many as the multiprocessors hold. The blocks of a multiprocessor
    share its units; the last wave may have fewer of them. All of them share the power.

    Args:
        gemm: the product.
        tiling: how the product is divided.
        card: the resources of the card.
        step: the work of a block in one step.
    """
    resident = tiling.resident(gemm, card)
    blocks = tiling.block_count(gemm) * tiling.cluster_blocks
    steps = tiling.max_steps(gemm)
    waves, rest = divmod(blocks, resident * card.multiprocessors)
    beside = _FIRST_CYCLES + step.last_cycles
    total = 0.0
    if waves:
        total = waves * (steps * step.cycles(resident, tiling.stages) + beside)
    if rest:
        count = -(-rest // card.multiprocessors)
        total += steps * step.cycles(count, tiling.stages) + beside
    if tiling.shares_tiles(gemm):
        parts = 4 * 2 * blocks * tiling.tile_m * tiling.tile_n / card.multiprocessors
        total += _LAUNCH_CYCLES + parts / _PARTS_BYTES_PER_CYCLE
    every = tiling.tiles(gemm) * tiling.steps(gemm)
    limited = step.energy_cycles * every / card.multiprocessors
    return float(total * (1 + (limited / total) ** _SHARPNESS) ** (1 / _SHARPNESS))


def copying_cycles(nbytes: int, card: CardResources) -> float:
    """Return the clock cycles that a launch is expected to take which copies so many bytes."""
    return _LAUNCH_CYCLES + 2 * nbytes / (card.multiprocessors * _PARTS_BYTES_PER_CYCLE)


_SUM_THREADS = 256
"""The threads of a block that adds parts."""
_SUMS_OF_THREAD = 4
"""The sums of each of its threads."""
_WIDEST_BYTES = 16
"""The widest copy to shared memory."""
_ELEMENTS = {
    "float32": "using Element = float;",
    "float16": "#include <cuda_fp16.h>\nusing Element = __half;",
    "bfloat16": "#include <cuda_bf16.h>\nusing Element = __nv_bfloat16;",
}


def copied_kernel(
    gemm: Gemm, parameters: Tiling, constants: Mapping[str, Constant], shared_bytes: int
) -> Kernel:
    """Return the `tiled_kernel` of a template whose threads copy matrices, see ``copies.cu``."""
    rows = {
        "LDA": gemm.lda,
        "LDB": gemm.ldb,
        "A_WIDTH": copied_width(gemm, gemm.lda),
        "B_WIDTH": copied_width(gemm, gemm.ldb),
    }
    texts = ("gemm/copies", f"gemm/{parameters.template}", "gemm/kernel")
    return tiled_kernel(gemm, parameters, {**rows, **constants}, texts, shared_bytes)


def tiled_kernel(
    gemm: Gemm,
    parameters: Tiling,
    constants: Mapping[str, Constant],
    texts: Sequence[str],
    shared_bytes: int,
    tensor_maps: tuple[TensorMap, ...] = (),
) -> Kernel:
    """Return a kernel of a template, with a second launch for the parts of shared tiles.

    Args:
        gemm: the product.
        parameters: the parameters of the template.
        constants: the constants of its text besides `Tiling.constants`; strings are for the
            preprocessor.
        texts: the paths of its files in ``cuda/``, see `template_text`.
        shared_bytes: the shared memory of a block.
        tensor_maps: the tensor maps that the kernel takes instead of matrices, named `map_name`.

    Raises:
        InputError: the tiles are too small for the product.
    """
    if parameters.tiles(gemm) * parameters.steps(gemm) >= MAX_STEPS:
        raise InputError(
            f"{gemm.name} has too many tiles of {parameters.tile_m} x {parameters.tile_n}: choose "
            "larger tiles."
        )
    every = {**parameters.constants(gemm), "THREADS": parameters.threads, **constants}
    blocks, shares = parameters.block_count(gemm), parameters.shares_tiles(gemm)
    maps = {tensor_map.name[0].upper(): tensor_map.name for tensor_map in tensor_maps}
    names = (*(maps.get(name, name) for name in "ABC"), *(["parts"] if shares else []))
    block = (parameters.threads, 1, 1)
    grid = (blocks * parameters.cluster_blocks, 1, 1)
    launches = [Launch("gemm", grid, block, names, shared_bytes)]
    workspaces = []
    if shares:
        size = parameters.tile_m * parameters.tile_n
        workspaces.append(Tensor("parts", (2 * grid[0] * size,), "float32", "workspace"))
        slices = math.ceil(size / (_SUM_THREADS * _SUMS_OF_THREAD))
        tiles = parameters.tiles(gemm) - parameters.whole_tile_count(gemm)
        grid = (tiles, slices, parameters.cluster_blocks)
        launches.append(Launch("gemm_sum", grid, (_SUM_THREADS, 1, 1), ("parts", "C")))
    return Kernel(
        template_text(every, ("gemm/tiles", *texts, "gemm/sum"), [_ELEMENTS[gemm.dtype]]),
        tuple(launches),
        tensor_maps=tensor_maps,
        workspaces=tuple(workspaces),
        origin=Origin(TEMPLATE, None, {"template": parameters.template, **parameters.numbers}),
    )


def copied_width(gemm: Gemm, distance: int) -> int:
    """Return how many elements can be copied at once if rows are ``distance`` elements apart."""
    widest = _WIDEST_BYTES // gemm.element_bytes
    return math.gcd(widest, distance)
