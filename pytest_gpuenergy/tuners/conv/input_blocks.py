"""What threads copy of the input of a convolution where no box of a tensor map does."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import numpy as np

from pytest_gpuenergy.workloads import Conv2dShape

_MOST_TAPS = 9
"""The most taps of which a step has eight channels: more would take too much shared memory."""
_MOST_BLOCK_BYTES = 48 << 10
"""The most bytes of a step, so that three fit in shared memory with their weights."""


@dataclass(frozen=True)
class Blocks:
    """The parts of an input in NCHW that threads copy: runs of elements in a few channels.

    Attributes:
        divided: the pixels that are divided into tiles: those of an image, or of a row.
        channels: the channels in a step.
        rows: the rows of the window in a step: all, or one.
        runs: the runs of a channel in a step.
        before: the elements of a run before the corner of the first pixel's window.
        run: the elements of a run.
        pitch: the distance of channels in shared memory, in elements.
        width: the elements that are copied at once.
    """

    divided: int
    channels: int
    rows: int
    runs: int
    before: int
    run: int
    pitch: int
    width: int

    @property
    def step_bytes(self) -> int:
        """The bytes of a step in shared memory."""
        return 4 * self.channels * self.pitch


@functools.cache
def input_blocks(s: Conv2dShape, tile_p: int) -> Blocks:
    """Return what threads copy of an input in NCHW for tiles of so many pixels.

    Tiles cross the rows of the output, and a step has all rows of the window, unless steps become
    too long for that.
    """
    rows = s.KH if s.KH * s.KW <= _MOST_TAPS else 1
    plane, every, fewer = s.OH * s.OW, _most_channels(s, rows), _most_channels(s, 1)
    tried = [
        (plane, rows, every),
        *([(s.OW, rows, every)] if tile_p <= s.OW else []),  # few tiles that end with their row
        *((plane, 1, channels) for channels in (32, 16, 8) if channels <= fewer),
        (s.OW, 1, 8),
    ]
    found = [_blocks_of(s, tile_p, *one) for one in tried]
    return next((one for one in found if one.step_bytes <= _MOST_BLOCK_BYTES), found[-1])


def _most_channels(s: Conv2dShape, rows: int) -> int:
    """Return the channels of a step of so many rows of windows, unless they are too long."""
    return 8 * max(1, 4 // (rows * s.KW))


def _blocks_of(s: Conv2dShape, tile_p: int, divided: int, rows: int, channels: int) -> Blocks:
    """Return what threads copy in steps of so many rows of windows in so many channels."""
    # A tile begins in any column. The corners of its windows are so far from the first one's. All
    # tiles that end in the row where they begin are alike.
    pixels = np.arange(max(0, s.OW - tile_p), s.OW)[:, None] + np.arange(tile_p)
    pixels = np.minimum(pixels, divided - 1)
    places = (pixels // s.OW * s.W + pixels % s.OW) * s.strides
    apart = places - places[:, :1]
    before, after = -int(apart.min()), int(apart.max())
    along = before + after + (s.KW - 1) * s.dilation + 1
    whole = along + (rows - 1) * s.W * s.dilation
    runs = 1 if whole <= rows * along else rows
    apart = 4 if max(runs, s.KH // rows) == 1 else s.W * s.dilation
    width = math.gcd(4, s.H * s.W, apart)
    run = -(-((whole if runs == 1 else along) + width - 1) // 4) * 4
    pitch = runs * run
    # Threads of a warp read eight neighbouring pixels of four channels: their banks differ.
    pitch += (8 - pitch) % 32
    return Blocks(divided, channels, rows, runs, before, run, pitch, width)
