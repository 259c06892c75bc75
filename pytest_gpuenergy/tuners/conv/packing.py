"""What the launch before a convolution packs of its input, see cuda/conv/pack.cu."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from pytest_gpuenergy.tuning import Constant
from pytest_gpuenergy.workloads import Conv2d

PACKING_THREADS = 256
"""The threads of a block that packs."""
_MOST_TURNED_PIECES, _FEW_TURNING_BLOCKS = 8, 512
"""The pieces of channels that a block turns, and the blocks with which all multiprocessors wait for
memory at once; fewer turn half as many pixels each."""
_SECTOR_BYTES = 32


@dataclass(frozen=True)
class Axis:
    """The rows of images from which boxes are copied, or their columns.

    Attributes:
        length: the number of rows.
        stride: the rows between two neighbouring windows.
        padding: the rows of the padding in front.
        dilation: the rows between two neighbouring taps.
        taps: the rows of a group, which follow each other in the packed image like the taps of a
            window.
        apart: the rows of the input between the first rows of two neighbouring groups.
        step: the rows of the input between two neighbouring rows of a group.
        first: the first row of the first group in the input; it may be in the padding.
    """

    length: int
    stride: int
    padding: int
    dilation: int
    taps: int = 1
    apart: int = 1
    step: int = 1
    first: int = 0

    def last(self, outputs: int) -> int:
        """Return where the last window begins, from the last row on, or up to a stride after."""
        last = (outputs - 1) * self.stride - self.padding - self.length + 1
        return min(max(last, 0), last + self.stride - 1)

    def distance(self, conv: Conv2d) -> float:
        """Return the rows of the input that are read with each one, because they share a sector."""
        if conv.layout == "nhwc":
            return 1.0
        return min(self.apart / self.taps, _SECTOR_BYTES / conv.element_bytes)

    def constants(self, name: str) -> dict[str, Constant]:
        """Return the constants of `cuda/conv/pack.cu` that say what is packed."""
        values = {"TAPS": self.taps, "APART": self.apart, "STEP": self.step, "FIRST": self.first}
        return {f"{name}_{what}": value for what, value in values.items()}


def read_axis(
    length: int, outputs: int, window: int, stride: int, padding: int, dilation: int
) -> Axis:
    """Return which rows windows read, so that others need not be packed.

    If the stride and the dilation have a common divisor, windows read only rows that are so far
    apart. If windows have fewer taps than their distance, they may be packed one after the other.

    Args:
        length: the rows of the input.
        outputs: the rows of the output.
        window: the rows of a window.
        stride: the rows between two neighbouring windows.
        padding: the rows of the padding in front.
        dilation: the rows between two neighbouring taps.
    """
    apart = math.gcd(stride, dilation) if window > 1 else stride
    before = -(-padding // apart)
    first = before * apart - padding
    fewer = Axis(
        length=max(1, -(-(length - first) // apart)),
        stride=stride // apart,
        padding=before,
        dilation=dilation // apart if window > 1 else 1,
        apart=apart,
        first=first,
    )
    read = (outputs - 1) * fewer.stride + (window - 1) * fewer.dilation - before + 1
    fewer = replace(fewer, length=max(1, min(fewer.length, read)))
    if window * outputs >= fewer.length:
        return fewer
    return Axis(window * outputs, window, 0, 1, window, stride, dilation, -padding)


def turned_tile(pieces: int, plane: int, planes: int) -> tuple[int, int]:
    """Return the pieces of channels and the pixels that a block of `cuda/conv/pack.cu` turns.

    Args:
        pieces: the pieces of a pixel's channels.
        plane: the pixels of a plane.
        planes: the number of images and groups of channels.
    """
    of_block = min(_MOST_TURNED_PIECES, 1 << (pieces - 1).bit_length())
    pixels = 2 * PACKING_THREADS // of_block
    if planes * -(-plane // pixels) * -(-pieces // of_block) < _FEW_TURNING_BLOCKS:
        pixels //= 2
    return of_block, pixels
