"""How a product is divided into tiles, steps and blocks: what all templates have in common."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Self

from pytest_gpuenergy.support import InputError
from pytest_gpuenergy.tuning import LARGEST, Card, TemplateParameters
from pytest_gpuenergy.workloads import Gemm, Mode, Workload

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
