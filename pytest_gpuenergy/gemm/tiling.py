"""How a product is divided into tiles, steps and blocks: what all templates have in common."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Self

from pytest_gpuenergy.kernels import Kernel, Launch, Origin, TensorMap
from pytest_gpuenergy.support import InputError
from pytest_gpuenergy.tuning import (
    LARGEST,
    TEMPLATE,
    Card,
    Constant,
    TemplateParameters,
    template_text,
)
from pytest_gpuenergy.workloads import Gemm, Mode, Tensor, Workload

_SPLITS = (1, 2, 3, 4, 6, 8)
_THREADS = range(64, 513)
MOST_STEPS = 1 << 31
"""In all tiles: kernels count them in 32 bits."""


@dataclass(frozen=True, kw_only=True)
class Tiling(TemplateParameters[Gemm]):
    """The part of a template's parameters that divides the work.

    Attributes:
        tile_m: rows of C that a block computes at a time; ``tile_n`` columns.
        tile_k: products of each element that are in shared memory for one step.
        stages: steps that are in shared memory, or on the way there.
        blocks: or clusters of them, among which all steps are divided evenly; 0 stands for one per
            tile.
        group: rows of tiles that are computed together.

    Raises:
        InputError: no kernel can have these.
    """

    modes: ClassVar[tuple[Mode, ...]]
    least_capability: ClassVar[int]
    most_capability: ClassVar[int] = 1 << 20
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
        """Matrix products in the template's modes."""
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
        """Blocks that compute neighbouring tiles at the same time, along M and N."""
        return 1, 1

    @property
    def cluster_blocks(self) -> int:
        """Blocks of a cluster."""
        return math.prod(self.cluster)

    def tiles(self, gemm: Gemm) -> int:
        """Number of tiles of C; those of a cluster count as one."""
        along_m, along_n = self.cluster
        rows, columns = gemm.M / (along_m * self.tile_m), gemm.N / (along_n * self.tile_n)
        return math.ceil(rows) * math.ceil(columns)

    def whole_tiles_of(self, gemm: Gemm) -> int:
        """The first tiles, which blocks compute in turn; the steps of the others are divided."""
        del gemm
        return 0

    def steps(self, gemm: Gemm) -> int:
        """Steps of one tile."""
        return math.ceil(gemm.K / self.tile_k)

    def blocks_of(self, gemm: Gemm) -> int:
        """Number of blocks or clusters: each has at least one step."""
        tiles = self.tiles(gemm)
        return min(self.blocks, tiles * self.steps(gemm)) or tiles

    def most_steps(self, gemm: Gemm) -> int:
        """Steps of the block or cluster that has the most."""
        return math.ceil(self.tiles(gemm) * self.steps(gemm) / self.blocks_of(gemm))

    def shares_tiles(self, gemm: Gemm) -> bool:
        """Whether a tile is computed by several blocks or clusters.

        Block b begins at tile ``tiles * b / blocks``, rounded down to a step. The largest fraction
        of a tile among these is one step or more if any is.
        """
        tiles, blocks = self.tiles(gemm), self.blocks_of(gemm)
        return (blocks - math.gcd(tiles, blocks)) * self.steps(gemm) >= blocks

    @classmethod
    def suits(cls, card: Card) -> bool:
        """Whether the template's instructions exist on a card."""
        return cls.least_capability <= card.capability <= cls.most_capability

    def runs_on(self, card: Card) -> bool:
        """Whether the instructions of this kernel exist on a card."""
        return self.suits(card)

    @property
    @abstractmethod
    def threads(self) -> int:
        """Threads of a block."""

    @abstractmethod
    def registers(self, gemm: Gemm) -> int:
        """Registers that a thread needs, about."""

    @abstractmethod
    def shared_bytes(self, gemm: Gemm) -> int:
        """Shared memory of a block."""

    def resident(self, gemm: Gemm, card: Card) -> int:
        """Blocks that a multiprocessor holds at once; 0 if not even one."""
        registers, shared_bytes = self.registers(gemm), self.shared_bytes(gemm)
        if shared_bytes > card.shared_bytes_of_block or registers > card.most_registers:
            return 0
        return min(
            card.threads // self.threads,
            card.shared_bytes // (shared_bytes + card.reserved_shared_bytes),
            card.registers // (registers * self.threads),
            card.most_blocks,
        )

    def at_once(self, gemm: Gemm, card: Card) -> int:
        """Blocks or clusters that a card holds at once."""
        return self.resident(gemm, card) * card.multiprocessors // self.cluster_blocks

    def divided(self, gemm: Gemm, card: Card) -> Iterator[Self]:
        """The same with each number of blocks worth trying; none if the card cannot run them."""
        at_once = self.at_once(gemm, card)
        tiles = self.tiles(gemm)
        every = tiles * self.steps(gemm)
        if at_once and self.threads in _THREADS and every < MOST_STEPS:
            choices = {0 if split == 1 else tiles * split for split in _SPLITS}
            choices.add(at_once)  # stream-K
            for blocks in sorted(choices):
                if blocks <= min(every, LARGEST):
                    yield replace(self, blocks=blocks)

    def choices(self, gemm: Gemm) -> dict[str, object]:
        """What the parameters were chosen to be, each of which may have an effect of its own."""
        shared = round(self.blocks_of(gemm) / self.tiles(gemm), 2)
        tile = (self.tile_m, self.tile_n)
        return {**self.numbers, "blocks": self.blocks and shared, "tile": tile}

    def constants(self, gemm: Gemm) -> dict[str, int | bool]:
        """What `cuda/gemm/tiles.cu` needs to know; booleans are for the preprocessor."""
        return {
            "M": gemm.M,
            "N": gemm.N,
            "K": gemm.K,
            "A_TRANSPOSED": gemm.layout == "nt",
            "TILE_M": self.tile_m,
            "TILE_N": self.tile_n,
            "TILE_K": self.tile_k,
            "STAGES": self.stages,
            "CLUSTER_M": self.cluster[0],
            "CLUSTER_N": self.cluster[1],
            "BLOCKS": self.blocks_of(gemm),
            "WHOLE_TILES": self.whole_tiles_of(gemm),
            "GROUP": self.group,
            "SHARED_TILES": self.shares_tiles(gemm),
        }


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


_SUM_THREADS = 256
_SUMS_OF_THREAD = 4
_WIDEST_BYTES = 16
"""Of one copy to shared memory."""
_ELEMENTS = {
    "float32": "using Element = float;",
    "float16": "#include <cuda_fp16.h>\nusing Element = __half;",
    "bfloat16": "#include <cuda_bf16.h>\nusing Element = __nv_bfloat16;",
}


def copied_kernel(
    gemm: Gemm, parameters: Tiling, constants: Mapping[str, Constant], shared_bytes: int
) -> Kernel:
    """As `tiled_kernel`, of a template whose threads copy the matrices: see ``copies.cu``."""
    rows = {
        "LDA": gemm.lda,
        "LDB": gemm.ldb,
        "A_WIDTH": _width(gemm, gemm.lda),
        "B_WIDTH": _width(gemm, gemm.ldb),
    }
    texts = ("copies", parameters.template, "kernel")
    return tiled_kernel(gemm, parameters, {**rows, **constants}, texts, shared_bytes)


def tiled_kernel(
    gemm: Gemm,
    parameters: Tiling,
    constants: Mapping[str, Constant],
    texts: Sequence[str],
    shared_bytes: int,
    tensor_maps: tuple[TensorMap, ...] = (),
) -> Kernel:
    """A kernel of a template, with a second launch for the parts of shared tiles.

    Args:
        gemm: the product.
        parameters: of the template.
        constants: for its text, besides `Tiling.constants`; texts are for the preprocessor.
        texts: its files in ``cuda/gemm``.
        shared_bytes: of a block.
        tensor_maps: which the kernel takes instead of their tensors.

    Raises:
        InputError: the tiles are too small for the product.
    """
    if parameters.tiles(gemm) * parameters.steps(gemm) >= MOST_STEPS:
        raise InputError(
            f"{gemm.name} has too many tiles of {parameters.tile_m} x {parameters.tile_n}: choose "
            "larger tiles."
        )
    every = {**parameters.constants(gemm), "THREADS": parameters.threads, **constants}
    blocks, shares = parameters.blocks_of(gemm), parameters.shares_tiles(gemm)
    maps = {one.tensor: one.name for one in tensor_maps}
    names = (*(maps.get(name, name) for name in "ABC"), *(["parts"] if shares else []))
    block = (parameters.threads, 1, 1)
    grid = (blocks * parameters.cluster_blocks, 1, 1)
    launches = [Launch("gemm", grid, block, names, shared_bytes)]
    workspaces = []
    if shares:
        size = parameters.tile_m * parameters.tile_n
        workspaces.append(Tensor("parts", (2 * grid[0] * size,), "float32", "workspace"))
        slices = math.ceil(size / (_SUM_THREADS * _SUMS_OF_THREAD))
        tiles = parameters.tiles(gemm) - parameters.whole_tiles_of(gemm)
        grid = (tiles, slices, parameters.cluster_blocks)
        launches.append(Launch("gemm_sum", grid, (_SUM_THREADS, 1, 1), ("parts", "C")))
    return Kernel(
        template_text("gemm", every, ("tiles", *texts, "sum"), [_ELEMENTS[gemm.dtype]]),
        tuple(launches),
        tensor_maps=tensor_maps,
        workspaces=tuple(workspaces),
        origin=Origin(TEMPLATE, None, {"template": parameters.template, **parameters.numbers}),
    )


def _width(gemm: Gemm, distance: int) -> int:
    """Elements that can be copied at once where rows lie that far apart."""
    widest = _WIDEST_BYTES // gemm.element_bytes
    return math.gcd(widest, distance)
