"""The template for depthwise convolutions, see cuda/conv/depthwise.cu."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from pytest_gpuenergy.conv.estimate import Work, cycles_of, plane_bytes, store_work, window_work
from pytest_gpuenergy.conv.tile import Tile, tiles_tried
from pytest_gpuenergy.kernels import Kernel
from pytest_gpuenergy.support import InputError
from pytest_gpuenergy.tuning import Card
from pytest_gpuenergy.workloads import Conv2d, Workload

_MOST_KEPT = 160
"""Numbers in registers of a thread that are worth trying: with more, a block has few warps."""
_WAIT_CYCLES = 150
"""For loads that are not ahead of the first product, about, while other warps work."""


@dataclass(frozen=True, kw_only=True)
class DepthwiseParameters(Tile):
    """What distinguishes one kernel of the template from another; see `Tile`.

    Attributes:
        read_first: whether a thread reads everything before its first product. It then waits for
            memory once, and needs more registers.

    Raises:
        InputError: no kernel can have these.
    """

    template: ClassVar[str] = "depthwise"

    read_first: bool = True

    @classmethod
    def computes(cls, workload: Workload) -> bool:
        """Convolutions with one input channel in each group."""
        return isinstance(workload, Conv2d) and workload.shape.groups == workload.shape.CI

    @classmethod
    def fitting(cls, conv: Conv2d, card: Card) -> Iterator[DepthwiseParameters]:
        """Parameters worth trying for a convolution on a card that has the resources for them."""
        for numbers in tiles_tried(conv, _planes(conv)):
            for read_first in (True, False):
                one = cls(**numbers, read_first=read_first)
                single = one.rows * one.columns == 1  # whose loads ptxas does not delay
                small = single or one.kept(conv) <= _MOST_KEPT
                if small and not (single and read_first) and one.resident(conv, card) > 0:
                    yield one

    def channel_blocks(self, conv: Conv2d) -> int:
        """Blocks of output planes."""
        return math.ceil(_planes(conv) / self.threads_z)

    def kept(self, conv: Conv2d) -> int:
        """The window, the weights and the sums."""
        taps = conv.shape.KH * conv.shape.KW
        return self.window_registers(conv) + taps + self.rows * self.columns

    def cycles(self, conv: Conv2d, card: Card) -> float:
        """Clock cycles that the convolution is expected to take."""
        taps = conv.shape.KH * conv.shape.KW
        reads, read_waves = window_work(conv, self)
        writes, write_waves = store_work(conv, self)
        read_bytes, written_bytes = plane_bytes(conv, self)
        work = Work(
            instructions=reads + taps + self.products(conv) + writes,
            wavefronts=read_waves + taps + write_waves,
            block_bytes=self.threads_z * (read_bytes + written_bytes),
        )
        single = self.rows * self.columns == 1
        return cycles_of(conv, self, card, work) + (
            0 if single or self.read_first else _WAIT_CYCLES
        )

    def kernel(self, conv: Conv2d) -> Kernel:
        """The kernel for a convolution.

        Raises:
            InputError: it is not depthwise, or the tiles do not suit it.
        """
        if not self.computes(conv):
            raise InputError(
                f"The template {self.template} needs one input channel in each group, and "
                f"{conv.name} has {conv.shape.CI // conv.shape.groups}."
            )
        constants = {
            "PLANES": _planes(conv),
            "CHANNELS": conv.shape.CO,
            "MULTIPLIER": conv.shape.CO // conv.shape.CI,
            "READ_FIRST": int(self.read_first),
        }
        return self.text(conv, constants, ("data", "weight", "output"))


def _planes(conv: Conv2d) -> int:
    return conv.shape.N * conv.shape.CO
