"""The template for Hopper: products of 16-bit matrices by wgmma, see cuda/gemm/wgmma.cu."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from pytest_gpuenergy.gemm.card import Card
from pytest_gpuenergy.gemm.estimate import Step, cycles_of
from pytest_gpuenergy.gemm.tiling import Constant, Tiling, tiled_kernel
from pytest_gpuenergy.kernels.kernel import Kernel
from pytest_gpuenergy.kernels.tensor_map import TensorMap
from pytest_gpuenergy.support.errors import InputError
from pytest_gpuenergy.workloads.gemm import Gemm, Mode

_WARPGROUP = 128  # threads
_WARPGROUP_ROWS = 64
_LINE = 64  # elements in the 128 bytes that are swizzled
_WIDEST = 256  # columns of one instruction
_TILES_M = (64, 128, 192, 256)
_TILES_N = (64, 128, 192, 256)
_DEPTHS = (64, 128)
_STAGES = (3, 4, 5, 6, 7)
_ALIGNMENT_BYTES, _BARRIER_BYTES = 1024, 16
_ROW_BYTES = 16
"""Rows of a matrix that a tensor map describes are a multiple of this apart."""
_REGISTERS: Mapping[int, tuple[int, int, int]] = {
    1: (240, 240, 240),
    2: (168, 40, 232),
    3: (128, 32, 160),
}
"""By the number of consumers: of a thread at launch, of the producer's and of consumers' threads.

They add up to no more than the 64 Ki registers of a multiprocessor.
"""
_OTHER_REGISTERS = 34
"""Of a thread, besides its sums, as ptxas of CUDA 13.0 says."""
_OTHERS_OF_INSTRUCTION = 26
"""Registers besides its sums that an instruction takes; it must do with those at launch (ptxas)."""
_PRODUCTS_PER_CYCLE = 2048
"""Of 16-bit elements on a multiprocessor: 989 TFLOP/s of 132 at 1830 MHz (H100 whitepaper)."""
_SHARED_BYTES_PER_CYCLE = 128
_ENOUGH_WARPS = 12
"""As the estimate counts them: one instruction keeps the tensor cores busy for long."""


@dataclass(frozen=True, kw_only=True)
class WgmmaParameters(Tiling):
    """What distinguishes one kernel of the template from another.

    Attributes:
        consumers: warpgroups that multiply, each an equal part of the tile's rows.

    Raises:
        InputError: no kernel can have these.
    """

    template: ClassVar[str] = "wgmma"
    modes: ClassVar[tuple[Mode, ...]] = ("float16", "bfloat16")
    least_capability: ClassVar[int] = 90
    most_capability: ClassVar[int] = 90

    tile_m: int = 128
    tile_n: int = 128
    tile_k: int = 64
    stages: int = 4
    consumers: int = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.consumers not in _REGISTERS:
            raise InputError(
                f"The template {self.template} needs 1 to {max(_REGISTERS)} consumers, not "
                f"{self.consumers}."
            )
        whole = (
            not self.tile_m % (_WARPGROUP_ROWS * self.consumers)
            and self.tile_m <= _WIDEST
            and not self.tile_n % _LINE
            and self.tile_n <= _WIDEST
            and not self.tile_k % _LINE
            and self.tile_k <= _WIDEST
        )
        if not whole:
            raise InputError(
                f"A tile of {self.tile_m} x {self.tile_n} x {self.tile_k} cannot be divided among "
                f"{self.consumers} warpgroups in pieces of 64 x 64 x 64, of which there may be "
                "four in each direction."
            )

        if self.tile_n // 2 + _OTHERS_OF_INSTRUCTION > _REGISTERS[self.consumers][0]:
            raise InputError(
                f"The template {self.template} cannot compute tiles with {self.tile_n} columns "
                f"with {self.consumers} consumers: a thread has too few registers."
            )

    @classmethod
    def fitting(cls, gemm: Gemm, card: Card) -> Iterator[WgmmaParameters]:
        """Parameters worth trying for a product on a card that has the resources for them."""
        if cls._unaligned(gemm):
            return
        for tile_m, tile_n, tile_k, consumers, stages in itertools.product(
            _TILES_M, _TILES_N, _DEPTHS, _REGISTERS, _STAGES
        ):
            try:
                base = cls(
                    tile_m=tile_m, tile_n=tile_n, tile_k=tile_k, stages=stages, consumers=consumers
                )
            except InputError:  # rows are not divided evenly, or registers do not suffice
                continue
            if base.sums + _OTHER_REGISTERS <= _REGISTERS[consumers][2]:
                yield from base.divided(gemm, card)

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return _WARPGROUP * (self.consumers + 1)

    @property
    def sums(self) -> int:
        """Sums of a consumer's thread."""
        return self.tile_m * self.tile_n // (_WARPGROUP * self.consumers)

    def registers(self, gemm: Gemm) -> int:
        """Registers of a thread at launch; the producer gives some of its own to the consumers."""
        del gemm  # the same for all
        own = self.sums + _OTHER_REGISTERS
        return own if self.consumers == 1 else _REGISTERS[self.consumers][0]

    def shared_bytes(self, gemm: Gemm) -> int:
        """Shared memory of a block: with its barriers, which the kernel declares itself."""
        return self._stage_bytes(gemm) + _BARRIER_BYTES * self.stages

    def _stage_bytes(self, gemm: Gemm) -> int:
        step = self.tile_k * (self.tile_m + self.tile_n)
        return gemm.element_bytes * self.stages * step + _ALIGNMENT_BYTES

    def cycles(self, gemm: Gemm, card: Card) -> float:
        """Clock cycles that the product is expected to take.

        Each instruction reads 64 rows of A and all columns of B from shared memory.
        """
        products = self.tile_m * self.tile_n * self.tile_k
        rows = self.tile_m // _WARPGROUP_ROWS
        loaded = gemm.element_bytes * self.tile_k * (self.tile_m + rows * self.tile_n)
        step = Step(
            busy_cycles=max(products / _PRODUCTS_PER_CYCLE, loaded / _SHARED_BYTES_PER_CYCLE),
            warps=_ENOUGH_WARPS,
            loaded_bytes=gemm.element_bytes * self.tile_k * (self.tile_m + self.tile_n),
        )
        return cycles_of(gemm, self, card, step, self.resident(gemm, card))

    def kernel(self, gemm: Gemm) -> Kernel:
        """The kernel for a product.

        Raises:
            InputError: the template does not compute in the product's mode, or tensor maps cannot
                describe its matrices.
        """
        if gemm.mode not in self.modes:
            raise InputError(
                f"The template {self.template} multiplies elements of 16 bits, not in mode "
                f"{gemm.mode}."
            )
        if self._unaligned(gemm):
            raise InputError(
                f"The template {self.template} needs rows of A and B that are a multiple of "
                f"{_ROW_BYTES} bytes apart, which those of {gemm.name} are not."
            )
        texts = (self.template,)
        maps = (self._map_of_a(gemm), self._map_of_b(gemm))
        return tiled_kernel(
            gemm, self, self._own_constants(gemm), texts, self._stage_bytes(gemm), maps
        )

    @staticmethod
    def _unaligned(gemm: Gemm) -> bool:
        return any(row * gemm.element_bytes % _ROW_BYTES for row in (gemm.lda, gemm.ldb))

    def _own_constants(self, gemm: Gemm) -> dict[str, Constant]:
        count = self.tile_n // 2
        kind = {"float16": "f16", "bfloat16": "bf16"}[gemm.dtype]
        shape = f"m64n{self.tile_n}k16.f32.{kind}.{kind}"
        _, of_producer, of_consumer = _REGISTERS[self.consumers]
        return {
            "CONSUMERS": f"{self.consumers}",
            "PRODUCER_REGISTERS": f"{of_producer}",
            "CONSUMER_REGISTERS": f"{of_consumer}",
            "MULTIPLY_ADD": f'"wgmma.mma_async.sync.aligned.{shape}"',
            "SUMS_PLACES": f'"{", ".join(f"%{place}" for place in range(count))}"',
            "SUMS_OPERANDS": ", ".join(f'"+f"(sums[{place}])' for place in range(count)),
            "A_ALONG": f'"{int(gemm.layout == "nt")}"',
            "A_PLACE": f'"%{count}"',
            "B_PLACE": f'"%{count + 1}"',
            "ADD_PLACE": f'"%{count + 2}"',
        }

    def _map_of_a(self, gemm: Gemm) -> TensorMap:
        transposed = gemm.layout == "nt"
        dims = (gemm.M, gemm.K) if transposed else (gemm.K, gemm.M)
        height = self.tile_k if transposed else self.tile_m
        return _map_of("A", gemm, dims, gemm.lda, height)

    def _map_of_b(self, gemm: Gemm) -> TensorMap:
        return _map_of("B", gemm, (gemm.N, gemm.K), gemm.ldb, self.tile_k)


def _map_of(
    tensor: Literal["A", "B"], gemm: Gemm, dims: tuple[int, int], row: int, height: int
) -> TensorMap:
    """A matrix in boxes of lines, ``row`` elements apart in memory."""
    return TensorMap(
        f"{tensor.lower()}_map",
        tensor,
        "bfloat16" if gemm.dtype == "bfloat16" else "float16",
        dims,
        (gemm.element_bytes * row,),
        (_LINE, height),
        2 * _LINE,  # type: ignore[arg-type]
    )
