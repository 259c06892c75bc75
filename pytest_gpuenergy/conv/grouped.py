"""The template for convolutions in groups, see cuda/conv/grouped.cu."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

from pytest_gpuenergy.conv.estimate import Work, cycles_of, plane_bytes, store_work, window_work
from pytest_gpuenergy.conv.tile import Tile, tiles_tried
from pytest_gpuenergy.kernels import Kernel
from pytest_gpuenergy.support import InputError
from pytest_gpuenergy.tuning import Card
from pytest_gpuenergy.workloads import Conv2d, Workload

_WIDEST = 4
"""Elements of the widest load, 16 bytes."""
_STATIC_BYTES = 48 << 10
"""Of shared memory that a kernel can have without asking for more."""
_CHANNELS = (1, 2, 4, 8, 16)
_DEPTHS = (4, 8, 16)
_MOST_SUMS = 64
_MOST_KEPT = 176
_MOST_PRODUCTS = 2048
"""Of a thread with one plane of the input that are worth trying: they are unrolled."""
_PLANE_INSTRUCTIONS = 12
"""For the addresses and the loop of a plane of the input, about."""
_COPY_INSTRUCTIONS = 12
"""For a weight that is copied to shared memory, about."""
_BARRIER_CYCLES = 400
"""Until the weights of the next planes are in shared memory, about."""


@dataclass(frozen=True, kw_only=True)
class GroupedParameters(Tile):
    """What distinguishes one kernel of the template from another; see `Tile`.

    Attributes:
        channels: of the output that a thread computes.
        depth: channels of the input whose weights are in shared memory at a time.

    Raises:
        InputError: no kernel can have these.
    """

    template: ClassVar[str] = "grouped"
    least: ClassVar[Mapping[str, int]] = {**Tile.least, "channels": 1, "depth": 1}

    channels: int = 1
    depth: int = 4

    @classmethod
    def computes(cls, workload: Workload) -> bool:
        """All convolutions."""
        return isinstance(workload, Conv2d)

    @classmethod
    def fitting(cls, conv: Conv2d, card: Card) -> Iterator[GroupedParameters]:
        """Parameters worth trying for a convolution on a card that has the resources for them."""
        of_input, of_output = _group(conv)
        if of_input == of_output == 1:  # of these, the template for them does less
            return
        depths = sorted({min(depth, of_input) for depth in _DEPTHS})
        for channels, depth in itertools.product(_CHANNELS, depths):
            if channels > of_output:
                continue
            parts = conv.shape.groups * math.ceil(of_output / channels)
            for numbers in tiles_tried(conv, parts):
                one = cls(**numbers, channels=channels, depth=depth)
                few = channels * one.rows * one.columns == 1
                small = (
                    channels * one.rows * one.columns <= _MOST_SUMS
                    and one.kept(conv) <= _MOST_KEPT
                    and channels * one.products(conv) <= _MOST_PRODUCTS
                )
                if (few or small) and one.resident(conv, card) > 0:
                    yield one

    def channel_blocks(self, conv: Conv2d) -> int:
        """Blocks of parts of the output channels, in all images."""
        return conv.shape.N * math.ceil(self._parts(conv) / self.threads_z)

    def kept(self, conv: Conv2d) -> int:
        """Two windows, the weights of a tap and the sums."""
        sums = self.channels * self.rows * self.columns
        return 2 * self.window_registers(conv) + self.channels + sums

    def shared_bytes(self, conv: Conv2d) -> int:
        """The weights: see ``WEIGHT_ROW`` in the text."""
        row = self.threads_z * self.channels
        return 4 * self.depth * conv.shape.KH * conv.shape.KW * (row + (0 if row % 8 else 4))

    def resident(self, conv: Conv2d, card: Card) -> int:
        """Blocks that a multiprocessor holds at once; 0 if not even one."""
        return super().resident(conv, card) if self.shared_bytes(conv) <= _STATIC_BYTES else 0

    def cycles(self, conv: Conv2d, card: Card) -> float:
        """Clock cycles that the convolution is expected to take."""
        planes, _ = _group(conv)
        taps = conv.shape.KH * conv.shape.KW
        reads, read_waves = window_work(conv, self)
        writes, write_waves = store_work(conv, self)
        read_bytes, written_bytes = plane_bytes(conv, self)
        weights = taps * self.channels / math.gcd(_WIDEST, self.channels)
        copied = planes * taps * self.channels * self.threads_z / self.threads
        of_plane = reads + weights + self.channels * self.products(conv) + _PLANE_INSTRUCTIONS
        groups = max(1, math.floor(self.threads_z * self.channels / _group(conv)[1]))
        work = Work(
            instructions=planes * of_plane + copied * _COPY_INSTRUCTIONS + self.channels * writes,
            wavefronts=planes * (read_waves + weights) + self.channels * write_waves + 4 * copied,
            block_bytes=(
                groups * planes * read_bytes
                + 4 * self.threads * copied
                + self.threads_z * self.channels * written_bytes
            ),
        )
        steps = math.ceil(planes / self.depth)
        return cycles_of(conv, self, card, work) + steps * _BARRIER_CYCLES

    def kernel(self, conv: Conv2d) -> Kernel:
        """The kernel for a convolution.

        Raises:
            InputError: the tiles do not suit it.
        """
        if self.shared_bytes(conv) > _STATIC_BYTES:
            raise InputError(
                f"The weights of {self.depth} channels for {self.threads_z * self.channels} others "
                f"take {self.shared_bytes(conv)} bytes, and a block can keep {_STATIC_BYTES}: "
                f"choose a smaller depth for {conv.name}."
            )
        of_input, of_output = _group(conv)
        constants = {
            "GROUPS": conv.shape.groups,
            "GROUP_IN": of_input,
            "GROUP_OUT": of_output,
            "CHANNELS": self.channels,
            "DEPTH": self.depth,
            "WEIGHT_WIDTH": math.gcd(_WIDEST, self.channels),
        }
        return self.text(conv, constants, ("data", "weight", "output"))

    def _parts(self, conv: Conv2d) -> int:
        return conv.shape.groups * math.ceil(_group(conv)[1] / self.channels)


def _group(conv: Conv2d) -> tuple[int, int]:
    """Channels of the input and of the output in a group."""
    s = conv.shape
    return s.CI // s.groups, s.CO // s.groups
