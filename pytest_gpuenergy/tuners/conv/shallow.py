"""The template for convolutions with few products in a sum, see cuda/conv/shallow.cu."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

from pytest_gpuenergy.kernels import Kernel, Launch, Origin
from pytest_gpuenergy.support import InputError
from pytest_gpuenergy.tuners.conv.windows import ELEMENTS, WindowParameters
from pytest_gpuenergy.tuning import (
    TEMPLATE,
    WARP_LANES,
    CardResources,
    template_text,
)
from pytest_gpuenergy.workloads import Conv2d, Workload

_MOST_PRODUCTS = 48
"""The most products of a sum with which CUDA cores are worth trying beside tensor cores, which take
about as long for any number up to 32."""
_LEAST_CHANNELS = 8
"""The least output channels of a group: with fewer, most threads would compute none."""
_STATIC_BYTES = 48 << 10
"""The shared memory that a kernel can have without asking for more."""
_ALONG, _ACROSS, _WARPS = (1, 2, 4), (4, 8, 16), (4, 8)
_OTHER_REGISTERS = 28
"""The approximate registers of a thread besides its sums and factors."""
_SCHEDULERS = 4
# By the times of 262 kernels of eight convolutions on an H200.
_BUSY_WARPS = 28
"""The warps of a multiprocessor with which it waits for no latency."""
_COPY_INSTRUCTIONS = 5
"""The approximate instructions of an element that is copied to shared memory."""
_READ_CYCLES, _STORE_CYCLES = 1.5, 2.6
"""The cycles of a multiprocessor for a warp's load from shared memory, and for a store."""
_LATENCY_CYCLES = 1000
"""The least cycles of a block besides those in which it is busy."""
_LAUNCH_CYCLES = 5300
_STORED_BYTES_PER_CYCLE, _STORING_SHARE = 16, 0.43
"""The approximate bytes that a multiprocessor stores in a cycle while all do, and the part of that
time in which it computes nothing."""


@dataclass(frozen=True, kw_only=True)
class ShallowParameters(WindowParameters):
    """The parameters of a kernel of the template.

    Attributes:
        along: the outputs of a thread along the inner dimension of the output, which are pixels in
            NCHW and channels in NHWC, 32 apart.
        across: its outputs along the other one, which are neighbours: a multiple of 4.
        warps: the warps of a block.
    """

    template: ClassVar[str] = "shallow"
    least: ClassVar[Mapping[str, int]] = {"along": 1, "across": 4, "warps": 1}

    along: int = 4
    across: int = 8
    warps: int = 8

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.across % 4:
            raise InputError(
                f"The template {self.template} needs across to be a multiple of 4, not "
                f"{self.across}."
            )

    @classmethod
    def computes(cls, workload: Workload) -> bool:
        """Return whether it has few products in a sum, and not few channels of the output."""
        return (
            isinstance(workload, Conv2d)
            and super().computes(workload)
            and workload.shape.reduction_length <= _MOST_PRODUCTS
            and workload.shape.CO // workload.shape.groups >= _LEAST_CHANNELS
        )

    @classmethod
    def fitting(cls, conv: Conv2d, card: CardResources) -> Iterator[ShallowParameters]:
        for along, across, warps in itertools.product(_ALONG, _ACROSS, _WARPS):
            one = cls(along=along, across=across, warps=warps)
            pixels, channels = one._tile(conv)
            needed = math.ceil(conv.shape.CO // conv.shape.groups / 32) * 32
            if one.threads % pixels == 0 and channels <= needed and one.resident(conv, card) > 0:
                yield one

    @property
    def threads(self) -> int:
        return WARP_LANES * self.warps

    def _tile(self, conv: Conv2d) -> tuple[int, int]:
        """Return the pixels and the channels of a block."""
        inner, outer = WARP_LANES * self.along, self.across * self.warps
        return (outer, inner) if conv.layout == "nhwc" else (inner, outer)

    def tiles(self, conv: Conv2d) -> int:
        """Return the number of tiles, each of which has a block."""
        s, (pixels, channels) = conv.shape, self._tile(conv)
        of_pixels = math.ceil(s.N * s.OH * s.OW / pixels)
        return of_pixels * s.groups * math.ceil(s.CO // s.groups / channels)

    def registers(self, conv: Conv2d) -> int:
        del conv
        return self.along * self.across + self.along + self.across + _OTHER_REGISTERS

    def shared_bytes(self, conv: Conv2d) -> int:
        rows = WARP_LANES * self.along + 1 + self.across * self.warps + 4
        return 4 * conv.shape.reduction_length * rows

    def resident(self, conv: Conv2d, card: CardResources) -> int:
        return super().resident(conv, card) if self.shared_bytes(conv) <= _STATIC_BYTES else 0

    def choices(self, conv: Conv2d) -> dict[str, object]:
        return {**self.numbers, "tile": self._tile(conv)}

    def cycles(self, conv: Conv2d, card: CardResources) -> float:
        """Return the clock cycles that the convolution is expected to take.

        The estimate has the instructions of waves of blocks, their latency, and the bytes that are
        stored.
        """
        length, outputs = conv.shape.reduction_length, self.along * self.across
        reads = length * (self.along + self.across / 4)
        copied = length * sum(self._tile(conv)) / self.threads
        instructions = length * outputs + reads + copied * _COPY_INSTRUCTIONS + outputs
        in_turn = reads * _READ_CYCLES + 2 * copied + outputs * _STORE_CYCLES
        busy = self.warps * max(instructions / _SCHEDULERS, in_turn)
        resident = self.resident(conv, card)
        slowed = busy * max(1.0, _BUSY_WARPS / (resident * self.warps))

        def wave(blocks: int) -> float:
            """Return the cycles of blocks of which a multiprocessor has so many at once."""
            return max(blocks * slowed, busy + _LATENCY_CYCLES)

        waves, left = divmod(self.tiles(conv), resident * card.multiprocessors)
        total = waves * wave(resident)
        if left:
            total += wave(math.ceil(left / card.multiprocessors))
        s = conv.shape
        nbytes = conv.element_bytes * s.N * s.CO * s.OH * s.OW
        stored = nbytes / (_STORED_BYTES_PER_CYCLE * card.multiprocessors)
        return _LAUNCH_CYCLES + max(total + _STORING_SHARE * stored, stored)

    def kernel(self, conv: Conv2d) -> Kernel:
        self.check_mode(conv)
        pixels, channels = self._tile(conv)
        if not self.computes(conv) or self.shared_bytes(conv) > _STATIC_BYTES:
            raise InputError(
                f"The template {self.template} needs {_LEAST_CHANNELS} output channels in a group "
                f"and sums of up to {_MOST_PRODUCTS} products, which fit in {_STATIC_BYTES} bytes "
                f"with all of a tile: not {conv.shape.CO // conv.shape.groups} channels and "
                f"{conv.shape.reduction_length} products, as {conv.name} has."
            )
        if self.threads % pixels:
            raise InputError(
                f"The template {self.template} needs as many threads as pixels of a tile, or a "
                f"multiple of them, and {self.threads} threads would have {pixels} of {conv.name}."
            )
        constants = {
            **self._geometry(conv),
            "TILE_P": pixels,
            "TILE_C": channels,
            "DIVIDED": conv.shape.N * conv.shape.OH * conv.shape.OW,
            "WARPS": self.warps,
            "ALONG": self.along,
            "ACROSS": self.across,
        }
        tensors = ("data", "weight", *(["bias"] if conv.bias else []), "output")
        return Kernel(
            template_text(constants, ["conv/windows", "conv/shallow"], [ELEMENTS[conv.dtype]]),
            (Launch(self.template, (self.tiles(conv), 1, 1), (self.threads, 1, 1), tensors),),
            origin=Origin(TEMPLATE, None, {"template": self.template, **self.numbers}),
        )
