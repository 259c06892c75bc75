"""Tilings of a product: tiles, steps and blocks, and the kernel.

This is what all templates for matrix products share.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Self

from pytest_gpuenergy.kernels import Kernel, Launch, Origin, TensorMap
from pytest_gpuenergy.support import InputError
from pytest_gpuenergy.tuners.gemm.costs import Costs
from pytest_gpuenergy.tuning import (
    MAX_PARAMETER,
    TEMPLATE,
    CardResources,
    Constant,
    TemplateParameters,
    template_text,
)
from pytest_gpuenergy.workloads import ACTIVATIONS, FLOAT8, Gemm, Mode, Scaling, Tensor, Workload

_SPLITS = (1, 2, 3, 4, 6, 8)
"""The numbers of parts into which a tile's steps are divided."""
THREADS_TRIED = range(64, 513)
"""The numbers of threads of a block that are worth trying."""
_TENSOR_TEMPLATES = ("mma", "wgmma", "wgmma_tf32", "wgmma_float8", "skinny")
_OWN_PARAMETERS = (
    *("cluster_m", "cluster_n", "consumers", "split", "turned", "copying", "in_turn"),
    *("whole_tiles", "copying_warps", "slices", "together"),
)
"""The parameters that only some of these templates have; others have 0."""
TENSOR_TRAITS = (
    *_TENSOR_TEMPLATES,
    *_OWN_PARAMETERS,
    *("tile_m", "tile_n", "step_bytes", "stages", "threads", "element_bytes", "split_elements"),
    *("resident", "waves", "last_share", "blocks_share", "steps", "tiles_of_block", "divided"),
    *("loaded_of_product", "loading_bytes", "filled", "rows", "columns", "depth", "operand_bytes"),
    *("a_transposed", "b_transposed", "a_unaligned", "b_unaligned", "cycles", "swapped"),
)
"""The names of `Tiling.traits` of kernels on tensor cores, in this order."""
FEW_ROWS = 64
"""The most rows of a product that takes as long as B takes to come from memory."""
_HOPPER = CardResources(90, 132, 128, 2048, 228 << 10, 227 << 10)
"""The resources of an H100 SXM and an H200."""
_SPARE = 8
"""The multiprocessors that may be without a block of a launch that begins early."""
MAX_BLOCKS_OF_CLUSTER = 8
"""The largest cluster on all cards that have clusters (CUDA C++ Programming Guide, "Thread Block
Clusters")."""
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
    family: ClassVar[str]
    """The name of the template's costs in ``estimate.json``."""
    follows: ClassVar[bool] = False
    """Whether the text of the template can wait for the launch before it."""
    corrections: ClassVar[str] = "tensor"
    """The name of the trees there that correct its estimates."""
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

    @classmethod
    def refusal(cls, gemm: Gemm) -> str | None:
        """Return what the template needs that a product lacks; None if it can compute it."""
        del gemm
        return None

    def check_product(self, gemm: Gemm) -> None:
        """Check that the template computes a product.

        Raises:
            InputError: it does not compute in the product's mode, or refuses the product.
        """
        if gemm.mode not in self.modes:
            raise InputError(
                f"The template {self.template} computes in {', '.join(self.modes)}, not in mode "
                f"{gemm.mode}."
            )
        if reason := self.refusal(gemm):
            raise InputError(f"The template {self.template} {reason}.")

    @property
    def cluster(self) -> tuple[int, int]:
        """The blocks of a cluster along M and N; they compute neighbouring tiles together."""
        return 1, 1

    @property
    def parts(self) -> int:
        """The blocks of a cluster that divide the steps of each tile."""
        return 1

    @property
    def cluster_blocks(self) -> int:
        """The number of blocks of a cluster."""
        return math.prod(self.cluster) * self.parts

    def tiles(self, gemm: Gemm) -> int:
        """Return the number of tiles of all C; the tiles of a cluster count as one.

        Each product of a batch, and each group of rows, has tiles of its own.
        """
        known: tuple[Gemm, int] | None = vars(self).get("_known_tiles")
        if known is None or known[0] is not gemm:  # there are ten thousand tilings to ask
            known = vars(self)["_known_tiles"] = gemm, self._tiles(gemm)
        return known[1]

    def _tiles(self, gemm: Gemm) -> int:
        along_m, along_n = self.cluster
        columns = -(-gemm.N // (along_n * self.tile_n))
        if gemm.groups:
            return gemm.first_tiles(along_m * self.tile_m)[-1] * columns
        return gemm.B * -(-gemm.M // (along_m * self.tile_m)) * columns

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
        """Return the steps of the block that has the most."""
        if self.parts > 1:
            return -(-self.steps(gemm) // self.parts)
        return -(-self.tiles(gemm) * self.steps(gemm) // self.block_count(gemm))

    def check_parts(self, gemm: Gemm) -> None:
        """Raise an `InputError` if a block of a cluster would have no step of a tile."""
        if self.parts > self.steps(gemm):
            raise InputError(
                f"The template {self.template} cannot divide the {self.steps(gemm)} steps of a "
                f"tile among {self.parts} blocks: choose split up to {self.steps(gemm)}."
            )

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
        if self.threads not in THREADS_TRIED:
            return
        at_once = self.at_once(gemm, card)
        tiles = self.tiles(gemm)
        every = tiles * self.steps(gemm)
        if at_once and every < MAX_STEPS:
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

    @abstractmethod
    def cycles(self, gemm: Gemm, card: CardResources, costs: Costs | None = None) -> float:
        """Return the clock cycles that the product is expected to take.

        Args:
            gemm: the product.
            card: the resources of the card.
            costs: what the work costs; None stands for what was fitted to stored trials.
        """

    def traits(self, gemm: Gemm, card: CardResources, cycles: float) -> tuple[float, ...]:
        """Return the `TENSOR_TRAITS` of a kernel on tensor cores, estimated to take `cycles`."""
        numbers = self.numbers
        resident, tiles = self.resident(gemm, card), self.tiles(gemm)
        clusters = self.block_count(gemm)
        blocks, at_once = clusters * self.cluster_blocks, resident * card.multiprocessors
        waves, rest = divmod(blocks, at_once)
        sums = self.tile_m * self.tile_n
        loaded = gemm.element_bytes * self.tile_k * (self.tile_m + self.tile_n)
        in_tiles = tiles * math.prod(self.cluster) * sums
        unaligned = [row * gemm.element_bytes % _WIDEST_BYTES > 0 for row in (gemm.lda, gemm.ldb)]
        operands = gemm.element_bytes * gemm.K * (gemm.M + gemm.products * gemm.N)
        return (
            *(self.template == template for template in _TENSOR_TEMPLATES),
            *(numbers.get(name, 0) for name in _OWN_PARAMETERS),
            *(self.tile_m, self.tile_n, gemm.element_bytes * self.tile_k, self.stages),
            *(self.threads, gemm.element_bytes, gemm.mode == "3xtf32"),
            *(resident, waves, rest / at_once, blocks / card.multiprocessors),
            *(self.max_steps(gemm), tiles / clusters, self.shares_tiles(gemm)),
            *(loaded / (sums * self.tile_k), min(blocks, at_once) * self.stages * loaded),
            *(gemm.B * gemm.M * gemm.N / in_tiles, gemm.most_rows, gemm.N, gemm.K, operands),
            *(gemm.a_transposed, gemm.b_transposed, *unaligned, math.log2(cycles)),
            numbers.get("swapped", 0),
        )

    def constants(self, gemm: Gemm) -> dict[str, Constant]:
        """Return the constants of ``tiles.cu`` and ``end.cu``; booleans are for preprocessing."""
        height = self.cluster[0] * self.tile_m
        grouped: dict[str, Constant] = {}
        if gemm.groups:
            first_tiles = gemm.first_tiles(height)
            grouped = {
                "FIRST_ROWS": ", ".join(map(str, gemm.first_rows)),
                "FIRST_TILES": ", ".join(map(str, first_tiles)),
                "TILE_ROWS": first_tiles[-1],
            }
        return {
            "PRODUCTS": f"{gemm.products}",
            "GROUPED": bool(gemm.groups),
            "ALL_M": not any(rows % height for rows in gemm.groups or (gemm.M,)),
            **grouped,
            "M": gemm.M,
            "N": gemm.N,
            "K": gemm.K,
            "LDC": gemm.ldc,
            "SWAPPED": False,
            "A_TRANSPOSED": gemm.a_transposed,
            "B_TRANSPOSED": gemm.b_transposed,
            "TILE_M": self.tile_m,
            "TILE_N": self.tile_n,
            "TILE_K": self.tile_k,
            "STAGES": self.stages,
            "CLUSTER_M": self.cluster[0],
            "CLUSTER_N": self.cluster[1],
            "CLUSTERED": self.cluster_blocks > 1,
            "TILE_BLOCKS": f"{self.parts}",
            "BLOCKS": self.block_count(gemm),
            "WHOLE_TILES": self.whole_tile_count(gemm),
            "GROUP": self.group,
            "SHARED_TILES": self.shares_tiles(gemm),
            "WITH_BIAS": gemm.bias,
            "WITH_RESIDUAL": gemm.residual,
            "ACTIVATION": f"{ACTIVATIONS.index(gemm.activation)}",
            "SCALES": f"{_SCALES[gemm.scaling] if gemm.is_float8 else 0}",
            "EARLY": self.begins_early(gemm),
        }

    def begins_early(self, gemm: Gemm) -> bool:
        """Return whether blocks begin while the launch before them ends, and wait for its end.

        Where each launch has one block on nearly all multiprocessors, 0.2 to 0.7 us were saved on
        an H200. Launches of more blocks, or of fewer in clusters of four, took up to 15 us more;
        the only one with elements of four bytes was slow, too (docs/notes/decoding.md).
        """
        few = gemm.most_rows <= FEW_ROWS and gemm.element_bytes <= 2
        if not (self.follows and few) or self.cluster_blocks > 2 or self.shares_tiles(gemm):
            return False
        blocks = self.block_count(gemm) * self.cluster_blocks
        every = _HOPPER.multiprocessors - _SPARE <= blocks <= _HOPPER.multiprocessors
        return every and self._resident(gemm, _HOPPER) == 1


_SCALES: Mapping[Scaling, int] = {"tensor": 1, "row": 2, "block": 3}
_SUM_THREADS = 256
"""The threads of a block that adds parts."""
_SUMS_OF_THREAD = 4
"""The sums of each of its threads."""
_WIDEST_BYTES = 16
"""The widest copy to shared memory."""
_CPP_TYPES = {
    "float32": "float",
    "float16": "__half",
    "bfloat16": "__nv_bfloat16",
    **dict.fromkeys(FLOAT8, "unsigned char"),  # of which only instructions know the numbers
}
_HEADERS = {"float16": "#include <cuda_fp16.h>", "bfloat16": "#include <cuda_bf16.h>"}


def copied_kernel(
    gemm: Gemm,
    parameters: Tiling,
    constants: Mapping[str, Constant],
    shared_bytes: int,
    more_texts: Sequence[str] = (),
    texts_before: Sequence[str] = (),
) -> Kernel:
    """Return the `tiled_kernel` of a template whose threads copy matrices, see ``copies.cu``."""
    rows = {
        "LDA": gemm.lda,
        "LDB": gemm.ldb,
        "A_WIDTH": copy_width_of_a(gemm),
        "B_WIDTH": copy_width(gemm, gemm.ldb),
        "A_WHOLE": False,
        "B_WHOLE": False,
    }
    template = ("gemm/copies", f"gemm/{parameters.template}", "gemm/kernel")
    texts = (*texts_before, *template, *more_texts)
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
    ends = tuple(one.name for one in gemm.inputs if one.name not in "AB")
    result = maps.get("C", "C")
    results = (result, *["C"] * bool(constants.get("ROWS_STORED")))
    operands = "BA" if constants.get("SWAPPED") else "AB"
    names = (*(maps.get(name, name) for name in operands), *ends, *results, *["parts"] * shares)
    block = (parameters.threads, 1, 1)
    grid = (blocks * parameters.cluster_blocks, 1, 1)
    early = parameters.begins_early(gemm)
    launches = [Launch("gemm", grid, block, names, shared_bytes, early)]
    workspaces = []
    if shares:
        size = parameters.tile_m * parameters.tile_n
        workspaces.append(Tensor("parts", (2 * grid[0] * size,), "float32", "workspace"))
        slices = math.ceil(size / (_SUM_THREADS * _SUMS_OF_THREAD))
        tiles = parameters.tiles(gemm) - parameters.whole_tile_count(gemm)
        grid = (tiles, slices, parameters.cluster_blocks)
        launches.append(Launch("gemm_sum", grid, (_SUM_THREADS, 1, 1), ("parts", *ends, "C")))
    activation = ["gemm/activation"] if gemm.activation != "none" else []
    files = ("gemm/tiles", *activation, "gemm/end", *texts, "gemm/sum")
    return Kernel(
        template_text(every, files, _head(gemm)),
        tuple(launches),
        tensor_maps=tensor_maps,
        workspaces=tuple(workspaces),
        origin=Origin(TEMPLATE, None, {"template": parameters.template, **parameters.numbers}),
    )


def _head(gemm: Gemm) -> list[str]:
    """Return the lines that define the types of the matrices' elements."""
    return [
        *([_HEADERS[gemm.output_type]] if gemm.output_type in _HEADERS else []),
        f"using Element = {_CPP_TYPES[gemm.dtype]};",
        f"using Result = {_CPP_TYPES[gemm.output_type]};",
    ]


def with_copies(
    kernel: Kernel,
    launches: Iterable[Launch],
    copies: Mapping[str, Tensor],
    others: Sequence[Tensor] = (),
) -> Kernel:
    """Return a kernel that first copies operands to workspaces, and reads these instead.

    Args:
        kernel: the kernel of the product.
        launches: the launches that copy.
        copies: the workspaces by the names of the operands.
        others: other workspaces of these launches.
    """
    names = {name: copy.name for name, copy in copies.items()}
    reading = [
        replace(one, arguments=tuple(names.get(name, name) for name in one.names))
        for one in kernel.launches
    ]
    maps = [replace(one, tensor=names.get(one.tensor, one.tensor)) for one in kernel.tensor_maps]
    return replace(
        kernel,
        launches=(*launches, *reading),
        tensor_maps=tuple(maps),
        workspaces=(*copies.values(), *others, *kernel.workspaces),
    )


def copy_width(gemm: Gemm, distance: int) -> int:
    """Return how many elements can be copied at once if rows are ``distance`` elements apart."""
    widest = _WIDEST_BYTES // gemm.element_bytes
    return math.gcd(widest, distance)


def copy_width_of_a(gemm: Gemm) -> int:
    """Return how many elements of a stored row of A can be copied at once.

    Where A is stored transposed, groups begin within its rows.
    """
    width = copy_width(gemm, gemm.lda)
    return math.gcd(width, *gemm.groups[:-1]) if gemm.a_transposed else width
