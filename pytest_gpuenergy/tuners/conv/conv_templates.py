"""The templates for convolutions, see depthwise.cu, grouped.cu and narrow.cu in cuda/conv."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

from pytest_gpuenergy.kernels import Kernel
from pytest_gpuenergy.support import InputError
from pytest_gpuenergy.tuners.conv.tile import (
    WIDEST_LOAD_BYTES,
    ThreadWork,
    Tile,
    conv_cycles,
    plane_bytes,
    store_work,
    tiles_tried,
    window_work,
)
from pytest_gpuenergy.tuning import WARP_LANES, CardResources
from pytest_gpuenergy.workloads import Conv2d, Workload

_MAX_DEPTHWISE_NUMBERS = 160
"""The most numbers in registers of a thread worth trying: with more, a block has few warps."""
_WAIT_CYCLES = 150
"""The approximate wait for loads after the first product, while other warps work."""


@dataclass(frozen=True, kw_only=True)
class DepthwiseParameters(Tile):
    """The parameters of a kernel of the template, besides those of `Tile`.

    Attributes:
        read_first: whether a thread reads everything before its first product. It then waits for
            memory only once, but needs more registers.
    """

    template: ClassVar[str] = "depthwise"

    read_first: bool = True

    @classmethod
    def computes(cls, workload: Workload) -> bool:
        """Return whether it is a convolution with one input channel in each group."""
        return isinstance(workload, Conv2d) and workload.shape.groups == workload.shape.CI

    @classmethod
    def fitting(cls, conv: Conv2d, card: CardResources) -> Iterator[DepthwiseParameters]:
        for numbers in tiles_tried(conv, _planes(conv)):
            for read_first in (True, False):
                one = cls(**numbers, read_first=read_first)
                single = one.rows * one.columns == 1  # whose loads ptxas does not delay
                small = single or one.kept(conv) <= _MAX_DEPTHWISE_NUMBERS
                if small and not (single and read_first) and one.resident(conv, card) > 0:
                    yield one

    def channel_blocks(self, conv: Conv2d) -> int:
        """Return the number of blocks along the output planes."""
        return math.ceil(_planes(conv) / self.threads_z)

    def kept(self, conv: Conv2d) -> int:
        """Return how many numbers a thread keeps: its window, weights and sums."""
        taps = conv.shape.KH * conv.shape.KW
        return self.window_registers(conv) + taps + self.rows * self.columns

    def cycles(self, conv: Conv2d, card: CardResources) -> float:
        taps = conv.shape.KH * conv.shape.KW
        reads, read_waves = window_work(conv, self)
        writes, write_waves = store_work(conv, self)
        read_bytes, written_bytes = plane_bytes(conv, self)
        work = ThreadWork(
            instructions=reads + taps + self.products(conv) + writes,
            wavefronts=read_waves + taps + write_waves,
            block_bytes=self.threads_z * (read_bytes + written_bytes),
        )
        single = self.rows * self.columns == 1
        return conv_cycles(conv, self, card, work) + (
            0 if single or self.read_first else _WAIT_CYCLES
        )

    def kernel(self, conv: Conv2d) -> Kernel:
        if not self.computes(conv):
            raise InputError(
                f"The template {self.template} needs one input channel in each group, and "
                f"{conv.name} has {conv.shape.CI // conv.shape.groups}."
            )
        constants = {
            "PLANES": _planes(conv),
            "MULTIPLIER": conv.shape.CO // conv.shape.CI,
            "READ_FIRST": int(self.read_first),
        }
        return self.text(conv, constants)


def _planes(conv: Conv2d) -> int:
    return conv.shape.N * conv.shape.CO


_WIDEST_LOAD = WIDEST_LOAD_BYTES // 4
"""The weights that are read from shared memory at once, in float32."""
_STATIC_BYTES = 48 << 10
"""The shared memory that a kernel can have without asking for more."""
_FEW_CHANNELS = 8
"""The most input channels of a group that tensor cores, of other modes, may take longer to add up:
a step has more."""
_CHANNELS = (1, 2, 4, 8, 16)
_DEPTHS = (4, 8, 16)
_MAX_SUMS = 64
_MAX_NUMBERS = 176
_MAX_PRODUCTS = 2048
"""The most multiplications of a thread with one plane of the input worth trying: they are
unrolled."""
_PLANE_INSTRUCTIONS = 12
"""The approximate instructions for the addresses and the loop of a plane of the input."""
_COPY_INSTRUCTIONS = 12
"""The approximate instructions for a weight that is copied to shared memory."""
_BARRIER_CYCLES = 400
"""The approximate cycles until the weights of the next planes are in shared memory."""


@dataclass(frozen=True, kw_only=True)
class GroupedParameters(Tile):
    """The parameters of a kernel of the template, besides those of `Tile`.

    Attributes:
        channels: the output channels that a thread computes.
        depth: the input channels whose weights are in shared memory at a time.
    """

    template: ClassVar[str] = "grouped"
    least: ClassVar[Mapping[str, int]] = {**Tile.least, "channels": 1, "depth": 1}

    channels: int = 1
    depth: int = 4

    @classmethod
    def computes(cls, workload: Workload) -> bool:
        """Return whether it is a plain convolution, or one with few input channels in a group."""
        if not isinstance(workload, Conv2d):
            return False
        return workload.is_plain or _group(workload)[0] <= _FEW_CHANNELS

    @classmethod
    def fitting(cls, conv: Conv2d, card: CardResources) -> Iterator[GroupedParameters]:
        of_input, of_output = _group(conv)
        if of_input == of_output == 1:  # the depthwise template does these with less work
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
                    channels * one.rows * one.columns <= _MAX_SUMS
                    and one.kept(conv) <= _MAX_NUMBERS
                    and channels * one.products(conv) <= _MAX_PRODUCTS
                )
                if (few or small) and one.resident(conv, card) > 0:
                    yield one

    def channel_blocks(self, conv: Conv2d) -> int:
        """Return the number of blocks along parts of the output channels, in all images."""
        parts = conv.shape.groups * math.ceil(_group(conv)[1] / self.channels)
        return conv.shape.N * math.ceil(parts / self.threads_z)

    def kept(self, conv: Conv2d) -> int:
        """Return how many numbers a thread keeps: two windows, the weights of a tap, and sums."""
        sums = self.channels * self.rows * self.columns
        return 2 * self.window_registers(conv) + self.channels + sums

    def shared_bytes(self, conv: Conv2d) -> int:
        """Return the shared memory of a block, for weights: see ``WEIGHT_ROW`` in the text."""
        row = self.threads_z * self.channels
        return 4 * self.depth * conv.shape.KH * conv.shape.KW * (row + (0 if row % 8 else 4))

    def _channels_at_once(self, conv: Conv2d) -> int:
        """Return how many channels of a pixel are written at once in NHWC."""
        return math.gcd(WIDEST_LOAD_BYTES // conv.element_bytes, self.channels, _group(conv)[1])

    def resident(self, conv: Conv2d, card: CardResources) -> int:
        return super().resident(conv, card) if self.shared_bytes(conv) <= _STATIC_BYTES else 0

    def cycles(self, conv: Conv2d, card: CardResources) -> float:
        planes, _ = _group(conv)
        taps = conv.shape.KH * conv.shape.KW
        reads, read_waves = window_work(conv, self)
        writes, write_waves = store_work(conv, self)
        if conv.layout == "nhwc":  # pieces of neighbouring channels of neighbouring threads
            at_once = self._channels_at_once(conv)
            writes, of_piece = writes / at_once, WARP_LANES * at_once * conv.element_bytes / 128
            apart = WARP_LANES / self.threads_z if at_once < self.channels else 1
            write_waves = writes * max(of_piece, apart)
        read_bytes, written_bytes = plane_bytes(conv, self)
        weights = taps * self.channels / math.gcd(_WIDEST_LOAD, self.channels)
        copied = planes * taps * self.channels * self.threads_z / self.threads
        of_plane = reads + weights + self.channels * self.products(conv) + _PLANE_INSTRUCTIONS
        groups = max(1, math.floor(self.threads_z * self.channels / _group(conv)[1]))
        work = ThreadWork(
            instructions=planes * of_plane + copied * _COPY_INSTRUCTIONS + self.channels * writes,
            wavefronts=planes * (read_waves + weights) + self.channels * write_waves + 4 * copied,
            block_bytes=(
                groups * planes * read_bytes
                + conv.element_bytes * self.threads * copied
                + self.threads_z * self.channels * written_bytes
            ),
        )
        steps = math.ceil(planes / self.depth)
        return conv_cycles(conv, self, card, work) + steps * _BARRIER_CYCLES

    def kernel(self, conv: Conv2d) -> Kernel:
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
            "WEIGHT_WIDTH": math.gcd(_WIDEST_LOAD, self.channels),
            "OUT_CHANNELS": self._channels_at_once(conv),
        }
        return self.text(conv, constants)


_NARROW = 16
"""The most output channels of a group with which tensor cores idle: a tile has at least 8."""
_NARROW_CHANNELS = (1, 2, 3, 4, 6, 8, 12, 16)
_WEIGHTS_BYTES = 24 << 10
"""The shared memory for weights with which several blocks fit on a multiprocessor."""


@dataclass(frozen=True, kw_only=True)
class NarrowParameters(Tile):
    """The parameters of a kernel of the template, besides those of `Tile`.

    The threads along Z share the input channels of a group.

    Attributes:
        channels: the output channels that a thread computes.
    """

    template: ClassVar[str] = "narrow"
    least: ClassVar[Mapping[str, int]] = {**Tile.least, "channels": 1}

    channels: int = 1

    @classmethod
    def computes(cls, workload: Workload) -> bool:
        """Return whether it is a convolution with few output and more input channels in a group.

        With elements of 16 bits, tensor cores were faster on an H200 nevertheless.
        """
        if not isinstance(workload, Conv2d) or workload.element_bytes == 2:
            return False
        of_input, of_output = _group(workload)
        return of_output <= _NARROW and of_input > _FEW_CHANNELS

    @classmethod
    def fitting(cls, conv: Conv2d, card: CardResources) -> Iterator[NarrowParameters]:
        of_input, of_output = _group(conv)
        for channels in _NARROW_CHANNELS:
            for numbers in tiles_tried(conv, of_input):
                one = cls(**numbers, channels=channels)
                small = (
                    channels * one.rows * one.columns <= _MAX_SUMS
                    and one.kept(conv) <= _MAX_NUMBERS
                    and channels * one.products(conv) <= _MAX_PRODUCTS
                )
                if small and one.resident(conv, card) > 0:
                    yield one
            if channels >= of_output:
                break

    def channel_blocks(self, conv: Conv2d) -> int:
        """Return the number of blocks along parts of the output channels, in all images."""
        return conv.shape.N * conv.shape.groups * math.ceil(_group(conv)[1] / self.channels)

    def kept(self, conv: Conv2d) -> int:
        """Return how many numbers a thread keeps: two windows, the weights of a tap, and sums."""
        sums = self.channels * self.rows * self.columns
        return 2 * self.window_registers(conv) + self.channels + sums

    def _weight_row(self, conv: Conv2d) -> int:
        """Return the elements of an input channel's weights: an odd number of pieces."""
        width = math.gcd(_WIDEST_LOAD, self.channels)
        pieces = self.channels * conv.shape.KH * conv.shape.KW // width
        return width * (pieces | 1)

    def _depth(self, conv: Conv2d) -> int:
        """Return the input channels whose weights are in shared memory at a time."""
        own = math.ceil(_group(conv)[0] / self.threads_z)
        fitting = _WEIGHTS_BYTES // (4 * self._weight_row(conv) * self.threads_z)
        return self.threads_z * max(1, min(own, fitting))

    def _added(self, conv: Conv2d) -> int:
        """Return the output channels whose sums are in shared memory at a time."""
        room = max(_WEIGHTS_BYTES, 4 * self._depth(conv) * self._weight_row(conv))
        of_channel = 4 * self.threads * self.rows * self.columns
        return max(1, min(self.channels, (room - 4 * self.threads) // of_channel))

    def _shared(self, conv: Conv2d) -> int:
        """Return the elements of shared memory: of weights, and of sums later."""
        sums = self.threads * (self._added(conv) * self.rows * self.columns | 1)
        weights = self._depth(conv) * self._weight_row(conv)
        return max(weights, sums if self.threads_z > 1 else 0)

    def shared_bytes(self, conv: Conv2d) -> int:
        return 4 * self._shared(conv)

    def resident(self, conv: Conv2d, card: CardResources) -> int:
        return super().resident(conv, card) if self.shared_bytes(conv) <= _STATIC_BYTES else 0

    def cycles(self, conv: Conv2d, card: CardResources) -> float:
        of_input = _group(conv)[0]
        taps = conv.shape.KH * conv.shape.KW
        planes = math.ceil(of_input / self.threads_z)
        reads, read_waves = window_work(conv, self)
        read_bytes, written_bytes = plane_bytes(conv, self)
        width = math.gcd(_WIDEST_LOAD, self.channels)
        weights = taps * self.channels / width
        apart = min(self.threads_z, WARP_LANES) if conv.layout == "nhwc" else 1
        weight_waves = weights * max(1, apart * width / WARP_LANES)
        copied = planes * self.threads_z * taps * self.channels / self.threads
        sums = self.channels * self.rows * self.columns
        added = 2 * sums if self.threads_z > 1 else 0
        of_plane = reads + weights + self.channels * self.products(conv) + _PLANE_INSTRUCTIONS
        work = ThreadWork(
            instructions=planes * of_plane + copied * _COPY_INSTRUCTIONS + 2 * added,
            wavefronts=planes * (read_waves + weight_waves) + 2 * copied + added + sums,
            block_bytes=(
                of_input * read_bytes
                + conv.element_bytes * self.threads * copied
                + self.channels * written_bytes
            ),
        )
        steps = math.ceil(of_input / self._depth(conv))
        if self.threads_z > 1:
            steps += math.ceil(self.channels / self._added(conv))
        return conv_cycles(conv, self, card, work) + steps * _BARRIER_CYCLES

    def kernel(self, conv: Conv2d) -> Kernel:
        of_input, of_output = _group(conv)
        if self.shared_bytes(conv) > _STATIC_BYTES:
            raise InputError(
                f"The weights and sums of a block take {self.shared_bytes(conv)} bytes, and it can "
                f"keep {_STATIC_BYTES}: choose fewer threads along Z or channels for {conv.name}."
            )
        constants = {
            "GROUPS": conv.shape.groups,
            "GROUP_IN": of_input,
            "GROUP_OUT": of_output,
            "CHANNELS": self.channels,
            "DEPTH": self._depth(conv),
            "WEIGHT_WIDTH": math.gcd(_WIDEST_LOAD, self.channels),
            "WEIGHT_ROW": self._weight_row(conv),
            "ADDED": self._added(conv),
            "SHARED": self._shared(conv),
        }
        return self.text(conv, constants)


def _group(conv: Conv2d) -> tuple[int, int]:
    """Return the channels of the input and of the output in a group."""
    s = conv.shape
    return s.CI // s.groups, s.CO // s.groups
