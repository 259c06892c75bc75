"""The template for CUDA cores: float32 products of any size, see cuda/gemm/simt.cu."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from pytest_gpuenergy.gemm.card import FIRST_ASYNCHRONOUS, Card
from pytest_gpuenergy.gemm.estimate import Step, cycles_of
from pytest_gpuenergy.gemm.tiling import Tiling, copied_kernel
from pytest_gpuenergy.kernels.kernel import Kernel
from pytest_gpuenergy.support.errors import InputError
from pytest_gpuenergy.workloads.gemm import Gemm, Mode

_LANES = (4, 8)
"""Threads of a warp along M and along N."""
_WIDEST = 4
"""Elements of the widest load, 16 bytes; a thread's rows and columns come in pieces of as many."""
_TILES = (32, 64, 128, 256)
_THREAD_TILES = ((4, 4), (8, 4), (4, 8), (8, 8), (16, 8), (8, 16))
_DEPTHS = (8, 16, 32)
_STAGES = (2, 3, 4)
_SHARED_BYTES_PER_CYCLE = 128
"""Of a multiprocessor (CUDA C++ Programming Guide: 32 banks of 4 bytes)."""


@dataclass(frozen=True, kw_only=True)
class SimtParameters(Tiling):
    """What distinguishes one kernel of the template from another.

    Attributes:
        thread_m: rows of a tile that a thread computes; ``thread_n`` columns.
        asynchronous: whether copies to shared memory bypass registers, which takes sm_80.

    Raises:
        InputError: no kernel can have these.
    """

    template: ClassVar[str] = "simt"
    modes: ClassVar[tuple[Mode, ...]] = ("float32",)
    least_capability: ClassVar[int] = 70

    thread_m: int = 8
    thread_n: int = 4
    asynchronous: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        lanes_m, lanes_n = _LANES
        whole = (
            self.thread_m >= _WIDEST
            and self.thread_n >= _WIDEST
            and not self.thread_m % _WIDEST
            and not self.thread_n % _WIDEST
            and not self.tile_m % (lanes_m * self.thread_m)
            and not self.tile_n % (lanes_n * self.thread_n)
        )
        if not whole:
            raise InputError(
                f"A tile of {self.tile_m} x {self.tile_n} cannot be divided among warps of "
                f"{lanes_m} x {lanes_n} threads with {self.thread_m} x {self.thread_n} elements "
                "each, in pieces of 4 x 4."
            )

    @classmethod
    def fitting(cls, gemm: Gemm, card: Card) -> Iterator[SimtParameters]:
        """Parameters worth trying for a product on a card that has the resources for them."""
        asynchronous = card.capability >= FIRST_ASYNCHRONOUS
        for tile_m, tile_n, thread, tile_k, stages in itertools.product(
            _TILES, _TILES, _THREAD_TILES, _DEPTHS, _STAGES
        ):
            try:
                base = cls(
                    tile_m=tile_m,
                    tile_n=tile_n,
                    tile_k=tile_k,
                    stages=stages,
                    thread_m=thread[0],
                    thread_n=thread[1],
                    asynchronous=asynchronous,
                )
            except InputError:  # warps do not fill the tile
                continue
            yield from base.divided(gemm, card)

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return (self.tile_m // self.thread_m) * (self.tile_n // self.thread_n)

    def registers(self, gemm: Gemm) -> int:
        """Registers that a thread needs, about: its sums, two columns and rows, and addresses."""
        del gemm  # the same for all
        return self.thread_m * self.thread_n + 2 * (self.thread_m + self.thread_n) + 32

    def shared_bytes(self, gemm: Gemm) -> int:
        """Shared memory of a block."""
        row = self.tile_m + (0 if gemm.layout == "nt" else _WIDEST)
        return 4 * self.stages * self.tile_k * (row + self.tile_n)

    def cycles(self, gemm: Gemm, card: Card) -> float:
        """Clock cycles that the product is expected to take.

        Multiplications run at one per core and cycle. A thread that computes t_m x t_n elements
        loads t_m + t_n from shared memory for each t_m t_n of them.
        """
        products = self.tile_m * self.tile_n * self.tile_k
        loaded = 4 * products * (1 / self.thread_m + 1 / self.thread_n)
        step = Step(
            busy_cycles=max(products / card.cores, loaded / _SHARED_BYTES_PER_CYCLE),
            warps=self.threads // 32,
            loaded_bytes=4 * self.tile_k * (self.tile_m + self.tile_n),
        )
        return cycles_of(gemm, self, card, step, self.resident(gemm, card))

    def kernel(self, gemm: Gemm) -> Kernel:
        """The kernel for a product.

        Raises:
            InputError: the product is not in float32.
        """
        if gemm.mode not in self.modes:
            raise InputError(
                f"The template {self.template} computes in float32 on CUDA cores, not in mode "
                f"{gemm.mode}."
            )
        constants = {
            "THREAD_M": self.thread_m,
            "THREAD_N": self.thread_n,
            "ASYNCHRONOUS": self.asynchronous,
        }
        return copied_kernel(gemm, self, constants, self.shared_bytes(gemm))
