"""The template for CUDA cores: float32 products of any size, see cuda/gemm/simt.cu."""

from __future__ import annotations

import functools
import math
from dataclasses import asdict, dataclass

from pytest_gpuenergy.kernels.kernel import Kernel, Launch, Origin
from pytest_gpuenergy.support.cuda_sources import cuda_dir
from pytest_gpuenergy.support.errors import InputError, UnavailableError
from pytest_gpuenergy.workloads.gemm import Gemm
from pytest_gpuenergy.workloads.workload import Tensor

NAME = "simt"
_LANES = (4, 8)
"""Threads of a warp along M and along N."""
_WIDEST = 4
"""Elements of the widest copy, 16 bytes; a thread's rows and columns come in pieces of as many."""
_SUM_THREADS = 256
_MACROS = ("A_TRANSPOSED", "ASYNCHRONOUS", "SHARED_TILES")


@dataclass(frozen=True)
class SimtParameters:
    """What distinguishes one kernel of the template from another.

    Attributes:
        tile_m: rows of C that a block computes at a time; ``tile_n`` columns.
        tile_k: products of each element that are in shared memory for one step.
        thread_m: rows of a tile that a thread computes; ``thread_n`` columns.
        stages: steps that are in shared memory, or on the way there.
        blocks: among which all steps are divided evenly; 0 stands for one per tile.
        group: rows of tiles that are computed together.
        asynchronous: whether copies to shared memory bypass registers, which takes sm_80.

    Raises:
        InputError: no kernel can have these.
    """

    tile_m: int = 64
    tile_n: int = 64
    tile_k: int = 8
    thread_m: int = 8
    thread_n: int = 4
    stages: int = 3
    blocks: int = 0
    group: int = 8
    asynchronous: bool = True

    def __post_init__(self) -> None:
        lanes_m, lanes_n = _LANES
        whole = (
            self.thread_m >= _WIDEST
            and self.thread_n >= _WIDEST
            and not self.thread_m % _WIDEST
            and not self.thread_n % _WIDEST
            and self.tile_m > 0
            and self.tile_n > 0
            and not self.tile_m % (lanes_m * self.thread_m)
            and not self.tile_n % (lanes_n * self.thread_n)
        )
        if not whole:
            raise InputError(
                f"A tile of {self.tile_m} x {self.tile_n} cannot be divided among warps of "
                f"{lanes_m} x {lanes_n} threads with {self.thread_m} x {self.thread_n} elements "
                "each, in pieces of 4 x 4."
            )
        if self.tile_k < 1 or self.stages < 2 or self.blocks < 0 or self.group < 1:
            raise InputError(
                f"The template needs tile_k >= 1, stages >= 2, blocks >= 0 and group >= 1, not "
                f"{self.tile_k}, {self.stages}, {self.blocks} and {self.group}."
            )

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return (self.tile_m // self.thread_m) * (self.tile_n // self.thread_n)

    @property
    def registers(self) -> int:
        """Registers that a thread needs, about: its sums, two columns and rows, and addresses."""
        return self.thread_m * self.thread_n + 2 * (self.thread_m + self.thread_n) + 32

    def shared_bytes(self, gemm: Gemm) -> int:
        """Shared memory of a block."""
        row = self.tile_m + (0 if gemm.layout == "nt" else _WIDEST)
        return 4 * self.stages * self.tile_k * (row + self.tile_n)

    def tiles(self, gemm: Gemm) -> int:
        """Number of tiles of C."""
        return math.ceil(gemm.M / self.tile_m) * math.ceil(gemm.N / self.tile_n)

    def steps(self, gemm: Gemm) -> int:
        """Steps of one tile."""
        return math.ceil(gemm.K / self.tile_k)

    def blocks_of(self, gemm: Gemm) -> int:
        """Number of blocks: each has at least one step."""
        tiles = self.tiles(gemm)
        return min(self.blocks, tiles * self.steps(gemm)) or tiles

    def shares_tiles(self, gemm: Gemm) -> bool:
        """Whether a tile is computed by several blocks."""
        steps, blocks = self.steps(gemm), self.blocks_of(gemm)
        every = self.tiles(gemm) * steps
        return any((every * block // blocks) % steps for block in range(blocks))


def simt_kernel(gemm: Gemm, parameters: SimtParameters) -> Kernel:
    """The kernel of the template for a matrix product.

    Raises:
        UnavailableError: the product is not in float32.
    """
    if gemm.mode != "float32":
        raise UnavailableError(
            f"The template {NAME} computes in float32 on CUDA cores, not in mode {gemm.mode}."
        )
    blocks, shared = parameters.blocks_of(gemm), parameters.shares_tiles(gemm)
    constants = {
        "M": gemm.M,
        "N": gemm.N,
        "K": gemm.K,
        "LDA": gemm.lda,
        "LDB": gemm.ldb,
        "A_TRANSPOSED": gemm.layout == "nt",
        "A_WIDTH": _width(gemm.lda) if gemm.layout == "nt" else 1,
        "B_WIDTH": _width(gemm.ldb),
        "TILE_M": parameters.tile_m,
        "TILE_N": parameters.tile_n,
        "TILE_K": parameters.tile_k,
        "THREAD_M": parameters.thread_m,
        "THREAD_N": parameters.thread_n,
        "STAGES": parameters.stages,
        "BLOCKS": blocks,
        "GROUP": parameters.group,
        "SHARED_TILES": shared,
        "ASYNCHRONOUS": parameters.asynchronous,
    }
    lines = [
        f"#define {name} {int(value)}" if name in _MACROS else f"constexpr int {name} = {value};"
        for name, value in constants.items()
    ]
    names = ("A", "B", "C", *(["parts"] if shared else []))
    launches = [
        Launch(
            "gemm",
            (blocks, 1, 1),
            (parameters.threads, 1, 1),
            names,
            parameters.shared_bytes(gemm),
        )
    ]
    workspaces = []
    if shared:
        size = 2 * blocks * parameters.tile_m * parameters.tile_n
        workspaces.append(Tensor("parts", (size,), "float32", "workspace"))
        grid = (parameters.tiles(gemm), 1, 1)
        launches.append(Launch("gemm_sum", grid, (_SUM_THREADS, 1, 1), ("parts", "C")))
    details = {name: int(value) for name, value in asdict(parameters).items()}
    return Kernel(
        "\n".join([*lines, "", _text()]),
        tuple(launches),
        workspaces=tuple(workspaces),
        origin=Origin("template", None, {"template": NAME, **details}),
    )


def _width(distance: int) -> int:
    """Elements that can be copied at once where rows lie that far apart."""
    return next(width for width in (_WIDEST, 2, 1) if distance % width == 0)


@functools.cache
def _text() -> str:
    return (cuda_dir() / "gemm" / f"{NAME}.cu").read_text()
