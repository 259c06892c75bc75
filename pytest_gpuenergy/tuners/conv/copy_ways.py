"""Ways to copy elements of windows for the template `implicit`, see cuda/conv/implicit.cu."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, cast

from pytest_gpuenergy.tuners.conv.packing import PACKING_THREADS, Axis, read_axis
from pytest_gpuenergy.workloads import Conv2d

BoxBytes = Literal[0, 32, 64, 128]
PIECE_BYTES = 16
_SHORTEST_LINE_BYTES = 32
COSTS_OF_LINES: Mapping[BoxBytes, float] = {128: 1.0, 64: 1.5, 32: 3.0}
"""What a byte costs in lines of so many bytes, about: the tensor memory accelerator takes as long
for a shorter line."""
_PITCHES: Mapping[int, float] = {32: 2.0, 128: 1.25}
"""The pitches that are tried, and how much longer a packed row may be with each."""
WHOLE_WINDOWS = 2
"""The number that stands for unrolling windows, not only their rows."""
_UNROLLED_SHARE = 0.95
"""The part of the cost of other lines at which rows of windows are worth unrolling."""
FARTHEST_CORNER = 127
LARGEST_TRAVERSAL_STRIDE = 8
TURNED_CHANNELS: Mapping[int, int] = {16: 256, 32: 128, 64: 64, 256: 32}
"""The channels of which pack.cu turns windows of up to so many elements at a time."""
MOST_PACKED_TAPS = max(TURNED_CHANNELS)
_MOST_PACKED_ELEMENTS = (1 << 31) - PACKING_THREADS
"""The most elements of a packed tensor, because its threads count in 32 bits."""
COARSE_SUM = 768
"""The least products of a sum in 3xtf32 with which those with smaller parts may be computed in
bfloat16. A product is off by at most 92 units of 2^-24 then, 11 in the root mean square. Adding so
many products in turn in float32 is off by as much as nine of a product, and its bound allows
8 sqrt(768), which are 221."""


def has_coarse_sums(conv: Conv2d) -> bool:
    """Return whether products with smaller parts may be computed in bfloat16."""
    return conv.mode == "3xtf32" and conv.shape.reduction_length >= COARSE_SUM


@dataclass(frozen=True)
class Way:
    """A way to copy steps: parameters of `ImplicitParameters`."""

    boxed: bool
    packed: bool = False
    unrolled: int = 0
    line: int = 0
    pitch: int = 0
    split_before: bool = False

    @property
    def options(self) -> dict[str, Any]:
        """The parameters by name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


def ways_to_copy(conv: Conv2d, *, by_threads: bool) -> list[Way]:
    """Return the ways to copy that are worth trying; ``by_threads`` says whether threads can."""
    plain, packed = Way(True), Way(True, packed=True)
    rows, whole = (replace(packed, unrolled=number) for number in (1, WHOLE_WINDOWS))
    box_bytes = box_bytes_of(conv, plain)
    # Packed rows can begin with a line of the L2, and have longer lines than divide a group.
    short = channels_of(conv, plain) * conv.element_bytes % _SHORTEST_LINE_BYTES > 0
    short |= conv.shape.groups > 1 and box_bytes == _SHORTEST_LINE_BYTES
    tried = [plain] * bool(box_bytes) + [packed] * (short or not box_bytes)
    ways = [way for way in tried if box_bytes_of(conv, way)]
    for place, way in enumerate(ways):
        best = _best_line(channels_of(conv, way) * conv.element_bytes)
        if best > box_bytes_of(conv, way) and box_bytes_of(conv, replace(way, line=best)):
            ways[place] = replace(way, line=best)
    for unrolled, taps in ((rows, conv.shape.KW), (whole, conv.shape.KH)):
        others = [_cost_of_lines(conv, way) for way in ways]
        least = _UNROLLED_SHARE * min(others, default=math.inf)
        if taps > 1 and box_bytes_of(conv, unrolled) and _cost_of_lines(conv, unrolled) <= least:
            ways.append(unrolled)
    pitched = [way for way in ways if way.packed and not way.unrolled]
    for way in pitched:
        ways.remove(way)
        ways += _pitched(conv, way)
    # Threads copy longer lines than short boxes are, from several taps at once.
    if box_bytes <= _SHORTEST_LINE_BYTES and by_threads:
        ways.append(Way(False))
    if has_coarse_sums(conv):
        ways += [replace(way, split_before=True) for way in ways if way.boxed]
    return ways


def _pitched(conv: Conv2d, way: Way) -> Iterator[Way]:
    """Yield a way that packs with the pitches that are worth trying."""
    found, least = set(), channels_of(conv, way)
    for pitch, most in _PITCHES.items():
        one = replace(way, pitch=pitch)
        channels = channels_of(conv, one)
        if channels <= most * least and channels not in found and box_bytes_of(conv, one):
            found.add(channels)
            yield one
    if not found:
        yield way


def window_of(conv: Conv2d, way: Way) -> tuple[int, int]:
    """Return the rows and columns of a window, without those that were unrolled to channels."""
    s = conv.shape
    rows = 1 if way.unrolled == WHOLE_WINDOWS else s.KH
    return rows, 1 if way.unrolled else s.KW


def unpadded_channels_of(conv: Conv2d, way: Way) -> int:
    """Return the channels of the input in a group, with taps that were unrolled to channels."""
    s = conv.shape
    return s.CI // s.groups * s.KH * s.KW // math.prod(window_of(conv, way))


def channels_of(conv: Conv2d, way: Way) -> int:
    """Return the channels of the input in a group, with those that packing adds."""
    channels = unpadded_channels_of(conv, way)
    bytes_at_once = max(way.line, _SHORTEST_LINE_BYTES) if conv.shape.groups > 1 else PIECE_BYTES
    piece = max(bytes_at_once, way.pitch) // conv.element_bytes
    return -(-channels // piece) * piece if way.packed else channels


def _cost_of_lines(conv: Conv2d, way: Way) -> float:
    """Return about what a pixel's lines cost, in bytes of long lines."""
    line, row = box_bytes_of(conv, way), channels_of(conv, way) * conv.element_bytes
    taps = math.prod(window_of(conv, way))
    return taps * math.ceil(row / line) * line * COSTS_OF_LINES[line]


def _best_line(row_bytes: int) -> BoxBytes:
    """Return the lines in which so many bytes of a pixel's channels cost least."""
    return min(
        COSTS_OF_LINES, key=lambda line: math.ceil(row_bytes / line) * line * COSTS_OF_LINES[line]
    )


@functools.cache
def box_bytes_of(conv: Conv2d, way: Way) -> BoxBytes:
    """Return the length of lines of boxes of channels; 0 if there can be none.

    The limits are those of tensor maps for windows of four-dimensional tensors (CUDA driver API,
    ``cuTensorMapEncodeIm2col``, and PTX ISA, "im2col mode").
    """
    s, packed, size = conv.shape, way.packed, conv.element_bytes
    row = channels_of(conv, way) * size
    rows, columns = axes = axes_of(conv, way)
    corners = (one.padding for one in axes), (-rows.last(s.OH), -columns.last(s.OW))
    pixels, filters = s.N * rows.length * columns.length, s.CO * math.prod(window_of(conv, way))
    if (
        (conv.layout != "nhwc" and not packed)
        or row % PIECE_BYTES
        or max(itertools.chain(*corners)) > FARTHEST_CORNER
        or max(one.stride for one in axes) > LARGEST_TRAVERSAL_STRIDE
        or (s.groups > 1 and (way.unrolled or row % max(way.line, _SHORTEST_LINE_BYTES)))
        or (packed and not way.unrolled and s.KH * s.KW > MOST_PACKED_TAPS)
        or (packed and row // size * max(s.groups * pixels, filters) > _MOST_PACKED_ELEMENTS)
    ):
        return 0
    if way.line:
        return cast("BoxBytes", way.line)
    if way.unrolled:
        return _best_line(row)
    for line in (128, 64):
        if row % line == 0:
            return line
    return 32


@functools.cache
def axes_of(conv: Conv2d, way: Way) -> tuple[Axis, Axis]:
    """Return the rows and the columns of the images from which boxes are copied."""
    s = conv.shape
    walk = s.strides, s.padding, s.dilation
    if not way.packed:
        return Axis(s.H, *walk), Axis(s.W, *walk)
    rows = read_axis(s.H, s.OH, s.KH, *walk)
    columns = read_axis(s.W, s.OW, s.KW, *walk)
    unrolled = Axis(0, 1, 0, 1, apart=s.strides, first=-s.padding)
    if way.unrolled:
        columns = replace(unrolled, length=s.OW)
    if way.unrolled == WHOLE_WINDOWS:
        rows = replace(unrolled, length=s.OH)
    return rows, columns
