"""The template for convolutions on Hopper's tensor cores, see cuda/conv/implicit.cu."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from pytest_gpuenergy.kernels import Im2col, Kernel, Launch, Origin, TensorMap
from pytest_gpuenergy.support import InputError
from pytest_gpuenergy.tuners.conv.copy_ways import (
    COARSE_SUM,
    COSTS_OF_LINES,
    FARTHEST_CORNER,
    LARGEST_TRAVERSAL_STRIDE,
    MOST_PACKED_TAPS,
    PIECE_BYTES,
    TURNED_CHANNELS,
    WHOLE_WINDOWS,
    BoxBytes,
    Way,
    axes_of,
    box_bytes_of,
    channels_of,
    has_coarse_sums,
    unpadded_channels_of,
    ways_to_copy,
    window_of,
)
from pytest_gpuenergy.tuners.conv.input_blocks import Blocks, input_blocks
from pytest_gpuenergy.tuners.conv.packing import PACKING_THREADS, turned_tile
from pytest_gpuenergy.tuners.conv.windows import ELEMENTS, WindowParameters
from pytest_gpuenergy.tuning import (
    TEMPLATE,
    CardResources,
    Constant,
    template_text,
)
from pytest_gpuenergy.workloads import Conv2d, Mode, Tensor

_WARPGROUP, _WARP = 128, 32
"""The threads of a warpgroup and of a warp."""
_PIXELS = 64
"""The pixels that a warpgroup computes in one instruction."""
_LINE_BYTES = 128
_ALIGNMENT_BYTES = 1024
"""The alignment of stages in shared memory."""
_STATIC_BYTES_OF_PIXEL = 16
_STATIC_BYTES_OF_STAGE = 24
_COLLECTED_ELEMENTS = 8 * 40
"""What a warp collects of the output, see `cuda/conv/windows.cu`."""
_PLANES_ELEMENTS = 32 * 68
"""What a warpgroup collects of planes of the output, see `cuda/conv/implicit.cu`."""
_SHORT_SUM = 128
"""The products of a sum up to which storing takes so long that planes are collected first."""
_COSTS_OF_ROWS: Mapping[int, float] = {128: 1.0, 64: 1.1, 32: 1.4, 16: 2.0}
"""How much longer lines take of rows with a multiple of so many bytes only, by the times of the
same kernels with other pitches on an H200: then lines do not begin with a line of the L2."""
_WIDEST_WINDOW = 32
"""The most rows and columns of a window of which bits tell what is in the padding."""
_SPLIT_AT_ONCE = 8
"""The weights that a thread of cuda/conv/pack.cu splits."""
_MOST_CHANNELS = 256
_MOST_SPLITS = 8
"""The largest cluster on all cards that have clusters (CUDA C++ Programming Guide, "Thread Block
Clusters")."""
_REGISTERS: Mapping[tuple[int, int], tuple[int, int, int]] = {
    (1, 1): (255, 255, 255),
    (1, 2): (128, 96, 160),
    (2, 1): (168, 88, 208),
    (2, 2): (80, 64, 88),
    (3, 1): (128, 80, 144),
}
"""Registers of a thread by the number of consumers and of blocks of a multiprocessor: at launch, of
a copying thread, of a consumer.

The threads of these blocks have no more than the 64 Ki registers of a multiprocessor.
"""
_OTHER_REGISTERS = 28
"""The registers of a consumer's thread besides its sums and operands."""
_LEAST_SHARE_OF_BLOCKS = 0.85
"""The least part of all blocks that is worth trying so that their weights can stay."""
_TILES_C = (16, 32, 48, 64, 80, 96, 128, 192, 256)
_STAGES = (8, 6, 4, 3)
_SPLITS = (1, 2, 3, 4, 6, 8)
_PRODUCTS_PER_CYCLE: Mapping[Mode, float] = {
    "3xtf32": 1024 / 3,
    "tf32": 1024,
    "float16": 2048,
    "bfloat16": 2048,
}
"""The products on a multiprocessor (H100 whitepaper); 3xtf32 takes three of TF32 for each."""
# Fitted to the times of 887 kernels of 14 convolutions in two layouts on an H100. Of these, 854 are
# in bench/results: see studies/convolution_estimate.py.
_EFFICIENCY = 1 / 1.4
"""The part of that rate that kernels in other modes than 3xtf32 reach."""
_SPLIT_CHANNELS, _SPLIT_SHARE = 30, 0.89
"""What a tile in 3xtf32, whose elements of windows come from registers, takes: as long as one with
so many more channels, and so many of the cycles by that rate. In the trials on an H200, an
instruction took 19 to 72 cycles for 8 to 120 channels, with a clock of 1980 instead of 1755 MHz."""
_COARSE_CHANNELS = 34, 0.75
"""The same additional channels where weights are split before, and what each channel of the tile
counts then: two instructions take the place of three, by 300 kernels of 12 convolutions."""
_STEP_CYCLES, _CHUNK_CYCLES = 55, 414
"""The cycles besides its products of a step whose operands are in shared memory, and of a chunk of
a step whose operands are read to registers."""
_LOADED_BYTES_PER_CYCLE, _STORED_BYTES_PER_CYCLE = 55, 22
"""The approximate bytes of a multiprocessor, while all multiprocessors load or store."""
_COPY_CYCLES, _WHOLE_COPY_CYCLES, _REST_CYCLES = 51, 75, 100
"""The cycles in which a thread copies a part of a piece, a whole one, and writes the smaller parts
of four elements."""
_ISSUED_CYCLES = 50
"""The cycles for which a consumer that reads a chunk to registers takes the schedulers from threads
that copy: by the trials on H200s, of which it describes those with few products best."""
_LOADED_COPIES = 5
"""The copies that take as long as a piece of 16-bit elements that are loaded one by one, about: by
the number of instructions and the latency of two such pieces at a time."""
_BY_THREADS = 1.25
"""What tiles take whose steps threads copy, relative to the sum of all else: by the trials on an
H200 in which boxes of packed tensors compete with them."""
_TILE_CYCLES = 10
"""The cycles for each pixel of a tile in which threads begin to copy its lines, by trials of first
layers on an H200."""
_LATENCY_CYCLES = 980
"""The cycles from a copy's beginning until consumers know of its end."""
_ALONE_CYCLES = 700
"""The cycles more of a tile in boxes while no other block of the multiprocessor computes: in the
trials on H200s with few steps, consumers of one block stored at the same time."""
_FIRST_CYCLES = 4250
"""The cycles until a block has its first step, with the launch."""
_CLUSTER_CYCLES, _CLUSTER_BLOCK_CYCLES = 2250, 166
"""The cycles in which a cluster begins together and adds its sums, and more for each block."""
_PACKING_CYCLES, _PACKED_PER_CYCLE = 3900, 5
"""The approximate cycles of a launch that packs, besides those in which it reads and writes, and
the elements of a multiprocessor that it reads or writes in a cycle then: from the times of 133
such launches on an H200."""
_UNROLLED_BYTES_PER_CYCLE: Mapping[str, float] = {"nchw": 6.0, "nhwc": 9.0}
"""The approximate bytes of unrolled windows that a multiprocessor writes in a cycle, by layout of
the input: from 130 such launches on H200s."""
_EARLY_PACKING_CYCLES = 2400
"""The same if the launch of the convolution begins early, which saved 0.5 to 1 µs."""
_CROWDED_SHARE = 2.5
"""How much longer packing takes then if several blocks of the convolution fit on a multiprocessor,
where they wait beside it: up to 30 µs more on an H200."""
_CLUSTERED_SHARE = 0.9
"""The part of all multiprocessors that larger clusters fill: on an H200, 39 of three blocks ran at
once, but not 40; 28 of four, but not 32; 15 of eight, but not 16."""


@dataclass(frozen=True, kw_only=True)
class ImplicitParameters(WindowParameters):
    """The parameters of a kernel of the template.

    Attributes:
        tile_c: the channels of the output that a block computes at a time.
        consumers: the warpgroups that multiply, each for 64 pixels; one more copies.
        stages: the steps that are in shared memory, or on the way there.
        splits: the blocks of a cluster, which share the steps of a tile.
        per_multiprocessor: the blocks of a multiprocessor for which registers are left.
        blocks: the number of blocks, which compute tiles in turn; 0 stands for one per tile.
        boxed: whether the tensor memory accelerator copies, where it can, instead of threads.
        deep: the lines of 128 bytes of each pixel in a step; more than one only if it is boxed.
        packed: whether a launch before this one packs the input and the weights, with channels last
            in whole pieces, so that they can be boxed. Pixels that no window has are left out.
        unrolled: what it writes with all channels, one after the other, so that lines are better
            filled where there are few: 1 for each row of each pixel's window, 2 for each window.
        early: whether the launch of the convolution begins while the one that packs ends.
        line: the bytes of a line of a box; 0 stands for the most that divide a pixel's channels.
            What exceeds the channels is zero.
        pitch: the bytes of which a packed row of channels has a multiple; 0 stands for as few as
            boxes need.
        split_before: whether the launch before this one splits the weights in 3xtf32, instead of
            each block, and products with smaller parts are computed in bfloat16.
    """

    template: ClassVar[str] = "implicit"
    added: ClassVar[Mapping[str, int]] = {
        "packed": 0,
        "unrolled": 0,
        "early": 0,
        "line": 0,
        "pitch": 0,
        "split_before": 0,
    }
    min_capability: ClassVar[int] = 90
    max_capability: ClassVar[int] = 90
    least: ClassVar[Mapping[str, int]] = {"tile_c": 8, "stages": 2, "splits": 1, "deep": 1}

    tile_c: int = 64
    consumers: int = 2
    stages: int = 4
    splits: int = 1
    per_multiprocessor: int = 1
    blocks: int = 0
    boxed: bool = False
    deep: int = 1
    packed: bool = False
    unrolled: int = 0
    early: bool = False
    line: int = 0
    pitch: int = 0
    split_before: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.consumers, self.per_multiprocessor) not in _REGISTERS:
            raise InputError(
                f"The template {self.template} cannot have {self.per_multiprocessor} blocks of "
                f"{self.consumers} consumers on a multiprocessor: their threads would have too few "
                "registers."
            )
        if self.tile_c % 8 or self.tile_c > _MOST_CHANNELS:
            raise InputError(
                f"The template {self.template} computes a multiple of 8 channels at a time, up to "
                f"{_MOST_CHANNELS}, not {self.tile_c}."
            )
        if self.splits > _MOST_SPLITS or (self.splits > 1 and self.blocks):
            raise InputError(
                f"The template {self.template} shares a tile among up to {_MOST_SPLITS} blocks, "
                f"which compute no other one, not {self.splits} with blocks={self.blocks}."
            )

        if self.deep > 1 and not self.boxed:
            raise InputError(
                f"The template {self.template} has steps of one line where threads copy, not of "
                f"{self.deep}."
            )
        if self.packed and not self.boxed:
            raise InputError(f"The template {self.template} packs only what is boxed.")
        if self.unrolled and not self.packed:
            raise InputError(f"The template {self.template} unrolls windows where it packs.")
        if self.unrolled > WHOLE_WINDOWS:
            raise InputError(
                f"The template {self.template} unrolls rows of windows (1) or whole ones (2), not "
                f"{self.unrolled}."
            )
        if self.split_before and not self.boxed:
            raise InputError(f"The template {self.template} splits before only what is boxed.")
        if self.early and not self.has_packing:
            raise InputError(f"The template {self.template} begins early where it packs.")
        if self.line not in (0, *COSTS_OF_LINES) or (self.line and not self.boxed):
            raise InputError(
                f"The template {self.template} has lines of 32, 64 or 128 bytes in boxes, not of "
                f"{self.line} with boxed={int(self.boxed)}."
            )

        if self.pitch not in (0, *COSTS_OF_LINES) or (self.pitch and not self.packed):
            raise InputError(
                f"The template {self.template} packs rows of multiples of 32, 64 or 128 bytes, not "
                f"of {self.pitch} with packed={int(self.packed)}."
            )

    @classmethod
    def refusal(cls, conv: Conv2d) -> str | None:
        """Return what kernels need that a convolution lacks; None if threads can copy it."""
        in_runs = conv.layout == "nchw" and conv.element_bytes == 4
        if in_runs and max(conv.shape.KH, conv.shape.KW) > _WIDEST_WINDOW:
            return (
                f"needs windows of up to {_WIDEST_WINDOW} x {_WIDEST_WINDOW} in layout nchw and "
                f"mode {conv.mode}, and {conv.name} has {conv.shape.KH} x {conv.shape.KW}"
            )
        return None

    @classmethod
    def fitting(cls, conv: Conv2d, card: CardResources) -> Iterator[ImplicitParameters]:
        tried = set()
        ways, tiles = (
            ways_to_copy(conv, by_threads=cls.refusal(conv) is None),
            _tiles_of_channels(conv),
        )
        choices = itertools.product(ways, tiles, _REGISTERS, (1, 2), _STAGES, _SPLITS)
        for way, tile_c, (consumers, resident), deep, stages, splits in choices:
            if deep > 1 + way.boxed:
                continue
            one = cls(
                tile_c=tile_c,
                consumers=consumers,
                stages=stages,
                splits=splits,
                per_multiprocessor=resident,
                deep=deep,
                **way.options,
            )
            # Of pipelines with which equally many blocks fit, only the longest is kept: the first.
            key = (way, tile_c, consumers, resident, splits, deep)
            if key in tried or splits > one.steps(conv) or one.resident(conv, card) == 0:
                continue
            tried.add(key)
            at_once = resident * card.multiprocessors
            if splits == 1 and one.tiles(conv) > at_once:
                one = replace(one, blocks=at_once)
            elif splits > 1 and one.tiles(conv) * splits > 2 * at_once:
                continue
            for each in (one, *one._with_weights_that_stay(conv)):
                yield each
                # Where rows are only padded, an early launch was slower in trials on an H200.
                turned = way.packed and (way.unrolled or conv.layout == "nchw")
                if turned or way.split_before:
                    yield replace(each, early=True)

    def _with_weights_that_stay(self, conv: Conv2d) -> Iterator[ImplicitParameters]:
        """Yield the same with fewer blocks, each of which keeps its weights for all its tiles."""
        tiles, steps = self._tiles_of_pixels(conv), self.steps(conv)
        blocks, stages = self.blocks // tiles * tiles, self.stages // steps * steps
        one = replace(self, blocks=blocks or self.blocks, stages=stages or self.stages)
        if stages > 2 and blocks >= _LEAST_SHARE_OF_BLOCKS * self.blocks > 0 and one != self:
            yield one

    def resident(self, conv: Conv2d, card: CardResources) -> int:
        """Return `per_multiprocessor`, or 0 if the card does not hold so many blocks."""
        held = super().resident(conv, card)
        return self.per_multiprocessor if held >= self.per_multiprocessor else 0

    def tiles(self, conv: Conv2d) -> int:
        """Return the number of tiles."""
        s, divided = conv.shape, self._divided(conv)
        along_p = s.N * s.OH * s.OW // divided * math.ceil(divided / self.tile_p)
        return along_p * self._tiles_of_pixels(conv)

    def _divided(self, conv: Conv2d) -> int:
        """Return how many pixels are divided into tiles, which have no others."""
        blocks = self._blocks(conv)
        return blocks.divided if blocks else conv.shape.N * conv.shape.OH * conv.shape.OW

    def steps(self, conv: Conv2d) -> int:
        """Return the steps of a tile."""
        s = conv.shape
        if self.boxed:
            row = self._channels(conv) * conv.element_bytes
            boxes = math.ceil(row / self._box_bytes(conv))
            return math.ceil(self._taps(conv) * boxes / self._boxes(conv))
        if (blocks := self._blocks(conv)) is None:
            return math.ceil(s.reduction_length * conv.element_bytes / _LINE_BYTES)
        return math.ceil(s.CI // s.groups / blocks.channels) * (s.KH // blocks.rows)

    def _weights_stay(self, conv: Conv2d) -> bool:
        """Return whether a stage has the same weights in all tiles, and so gets them once."""
        same = (self.blocks or 1) % self._tiles_of_pixels(conv) == 0
        return same and self.stages % self.steps(conv) == 0

    def _tiles_of_pixels(self, conv: Conv2d) -> int:
        """Return the tiles that have the same pixels: one of each group and its channels."""
        s = conv.shape
        return s.groups * math.ceil(s.CO // s.groups / self.tile_c)

    def step_length(self, conv: Conv2d) -> int:
        """Return the products of each sum in a step, with those that fill it up."""
        if (blocks := self._blocks(conv)) is None:
            return self.deep * _LINE_BYTES // conv.element_bytes
        return blocks.channels * blocks.rows * conv.shape.KW

    def _stage(self, conv: Conv2d) -> tuple[int, int]:
        """Return the bytes of a stage for pixels, and those for weights."""
        if (blocks := self._blocks(conv)) is None:
            return (
                self.deep * _LINE_BYTES * self.tile_p,
                self.deep * _LINE_BYTES * self.tile_c,
            )
        return blocks.step_bytes, self.step_length(conv) * (4 * self.tile_c + 4)

    def _blocks(self, conv: Conv2d) -> Blocks | None:
        """Return what threads copy of float32 in NCHW; None where they copy lines."""
        if self.boxed or conv.layout == "nhwc" or conv.element_bytes == 2:
            return None
        return input_blocks(conv.shape, self.tile_p)

    @property
    def has_packing(self) -> bool:
        """Whether a launch before that of the convolution packs, or splits weights."""
        return self.packed or self.split_before

    @property
    def tile_p(self) -> int:
        """The pixels that a block computes at a time."""
        return _PIXELS * self.consumers

    @property
    def threads(self) -> int:
        return _WARPGROUP * (self.consumers + 1)

    def consumer_registers(self, conv: Conv2d) -> int:
        """Return about how many registers a consumer's thread needs.

        It keeps its sums, and operands that the instruction does not take from shared memory; in
        3xtf32 also their smaller parts, and the sums of a few products.
        """
        split = conv.mode == "3xtf32"
        operands = 0 if self._is_direct(conv) else 16 * (1 + split)
        return self.tile_c // 2 * (1 + split) + operands + _OTHER_REGISTERS

    def registers(self, conv: Conv2d) -> int:
        """Return the registers of a thread at launch; too many if consumers need more.

        Where an instruction takes both operands from shared memory, ptxas (CUDA 13) refuses sums
        that do not fit in the registers at launch.
        """
        at_launch, _, of_consumer = _REGISTERS[self.consumers, self.per_multiprocessor]
        most = min(at_launch, of_consumer) if self._is_direct(conv) else of_consumer
        return at_launch if self.consumer_registers(conv) <= most else 1 << 10

    def _is_direct(self, conv: Conv2d) -> bool:
        """Return whether the instruction takes both operands from shared memory."""
        return conv.mode != "3xtf32" and self._blocks(conv) is None

    def dynamic_bytes(self, conv: Conv2d) -> int:
        """Return the dynamic shared memory of a block: its stages, and room to align them."""
        pixels, weights = self._stage(conv)
        stages = self.stages * (pixels + weights * (2 if conv.mode == "3xtf32" else 1))
        shared_sums = 4 * self.tile_p * self.tile_c if self.splits > 1 else 0
        return max(stages, shared_sums) + _ALIGNMENT_BYTES

    def shared_bytes(self, conv: Conv2d) -> int:
        static = _STATIC_BYTES_OF_PIXEL * self.tile_p + _STATIC_BYTES_OF_STAGE * self.stages
        if self.splits == 1 and is_collected(conv):
            static += _COLLECTED_ELEMENTS * 4 * self.consumers * conv.element_bytes
        if self._in_planes(conv):
            static += _PLANES_ELEMENTS * self.consumers * conv.element_bytes
        return self.dynamic_bytes(conv) + static

    def _in_planes(self, conv: Conv2d) -> bool:
        """Return whether warpgroups collect what they store in shared memory, plane by plane."""
        short = conv.shape.reduction_length <= _SHORT_SUM
        return short and conv.layout == "nchw" and self.splits == 1

    def choices(self, conv: Conv2d) -> dict[str, object]:
        del conv  # the same for all
        return {**self.numbers, "blocks": bool(self.blocks), "tile": (self.tile_p, self.tile_c)}

    @property
    def _way(self) -> Way:
        fields_of_way = (self.boxed, self.packed, self.unrolled, self.line, self.pitch)
        return Way(*fields_of_way, self.split_before)

    def _box_bytes(self, conv: Conv2d) -> BoxBytes:
        return box_bytes_of(conv, self._way)

    def _channels(self, conv: Conv2d) -> int:
        """Return the channels of the input in a group, with those that packing adds."""
        return channels_of(conv, self._way)

    def _taps(self, conv: Conv2d) -> int:
        """Return the taps of a window, without those that were unrolled to channels."""
        return math.prod(window_of(conv, self._way))

    def _boxes(self, conv: Conv2d) -> int:
        """Return the boxes of a step in which the tensor memory accelerator copies lines."""
        return self.deep * _LINE_BYTES // self._box_bytes(conv)

    def _copying(self, conv: Conv2d) -> dict[str, Constant]:
        """Return the constants of the texts that copy."""
        if self.boxed:
            return {"LINE_BYTES": self._box_bytes(conv), "BOXES": self._boxes(conv)}
        if (blocks := self._blocks(conv)) is not None:
            return {
                "CHANNELS": blocks.channels,
                "STEP_ROWS": blocks.rows,
                "RUNS": blocks.runs,
                "BEFORE": blocks.before,
                "RUN": blocks.run,
                "PITCH": blocks.pitch,
                "WIDTH": blocks.width,
            }
        return self._lines(conv)

    def _elements_of_copy(self, conv: Conv2d) -> tuple[float, float]:
        """Return the elements of the input, and of the weights, that take as long as one copy."""
        width, weight_width = self._widths(conv)
        if conv.element_bytes == 4:
            return width, weight_width
        loaded = PIECE_BYTES / conv.element_bytes / _LOADED_COPIES
        in_pieces = width == 1 and conv.layout == "nhwc"
        return loaded if in_pieces else width, loaded if weight_width == 1 else weight_width

    def _at_once(self, card: CardResources) -> int:
        """Return how many blocks, or clusters of them, a card holds at once."""
        if self.splits <= 2:  # multiprocessors come in pairs
            return card.multiprocessors // self.splits * self.per_multiprocessor
        clusters = math.floor(_CLUSTERED_SHARE * card.multiprocessors / self.splits)
        return max(1, clusters * self.per_multiprocessor)

    def _cost_of_rows(self, conv: Conv2d) -> float:
        """Return how much longer lines take because of where rows of channels begin."""
        row = self._channels(conv) * conv.element_bytes
        return next(cost for multiple, cost in _COSTS_OF_ROWS.items() if row % multiple == 0)

    def cycles(self, conv: Conv2d, card: CardResources) -> float:
        """Return the clock cycles that the convolution is expected to take.

        The estimate is a roofline of a step, with waves of blocks: tensor cores, what a consumer
        does in turn, bytes from the L2, and instructions of the threads that copy.
        """
        blocks, (pixels, weights) = self._blocks(conv), self._stage(conv)
        split = conv.mode == "3xtf32"
        channels = self.tile_c  # whose weights are copied for each tile
        if self.blocks and self._weights_stay(conv):
            channels, weights = 0, 0
        if blocks is not None:
            deep = blocks.channels * blocks.rows * conv.shape.KW
            pieces = blocks.channels * blocks.runs * blocks.run / blocks.width + deep * channels
        else:
            deep = self.deep * _LINE_BYTES // conv.element_bytes
            of_input, of_weights = self._elements_of_copy(conv)
            each = self.tile_p / of_input + channels / of_weights
            pieces = 0.0 if self.boxed else deep * each
        more, share = _COARSE_CHANNELS if self.split_before else (_SPLIT_CHANNELS, 1.0)
        columns = _SPLIT_SHARE * (share * self.tile_c + more) if split else self.tile_c
        products = self.tile_p * columns * deep / _PRODUCTS_PER_CYCLE[conv.mode]
        alone = products / self.consumers
        chunks = max(1, round(deep * conv.element_bytes / _LINE_BYTES))
        read = chunks if split or blocks is not None else 0  # to registers
        alone += _CHUNK_CYCLES * read if read else _STEP_CYCLES
        rest = weights / PIECE_BYTES if split and not self.split_before else 0.0
        copiers = _WARPGROUP - (_WARP if self.boxed else 0)
        whole = self._widths(conv)[0] * conv.element_bytes == PIECE_BYTES and blocks is None
        of_piece = _WHOLE_COPY_CYCLES if whole else _COPY_CYCLES
        copying = pieces / _WARPGROUP * of_piece + rest / copiers * _REST_CYCLES
        if not self.boxed:
            copying += _ISSUED_CYCLES * read * self.consumers
        loaded = float(pixels + weights)
        if self.boxed:  # a short line takes as long as one of 128 bytes
            lines = self._boxes(conv) * (self.tile_p + channels * (1 + self.split_before))
            loaded = _LINE_BYTES * lines * self._cost_of_rows(conv)
        loading = loaded / _LOADED_BYTES_PER_CYCLE
        stored = conv.element_bytes * self.tile_p * self.tile_c / _STORED_BYTES_PER_CYCLE
        steps = math.ceil(self.steps(conv) / self.splits)
        lone = 0.0  # cycles more of a tile while no other block copies or stores
        if self.boxed or blocks is None:
            lone = _ALONE_CYCLES if self.boxed else _TILE_CYCLES * self.tile_p

        def wave(count: float) -> float:
            """Return the cycles of tiles of which a multiprocessor has `count` at once."""
            step = max(
                count * products / (1 if split else _EFFICIENCY),
                alone,
                count * loading,
                count * copying,
                _LATENCY_CYCLES / (self.stages - 1),
            )
            cycles = steps * step + count * stored + (lone if count <= 1 else 0)
            return cycles if self.boxed else _BY_THREADS * cycles

        at_once = min(self._at_once(card), self.blocks or math.inf)
        waves, left = divmod(self.tiles(conv), at_once)
        total = _FIRST_CYCLES + waves * wave(self.per_multiprocessor)
        total += 0 if self.blocks else waves * _FIRST_CYCLES
        if left:
            total += wave(math.ceil(left * self.per_multiprocessor / at_once))
        if self.splits > 1:
            total += _CLUSTER_CYCLES + _CLUSTER_BLOCK_CYCLES * self.splits + stored
        if self.has_packing:
            total += self._packing_cycles(conv, card)
        return float(total)

    def _packing_cycles(self, conv: Conv2d, card: CardResources) -> float:
        """Return about how much longer the convolution takes because a launch packs before."""
        moving = self._moving_cycles(conv) / card.multiprocessors
        if not self.early:
            return _PACKING_CYCLES + moving
        crowded = 2 * self.shared_bytes(conv) <= card.shared_bytes
        return _EARLY_PACKING_CYCLES + (_CROWDED_SHARE * moving if crowded else moving)

    def _moving_cycles(self, conv: Conv2d) -> float:
        """Return about how long one multiprocessor would read and write what is packed."""
        s, (rows, columns) = conv.shape, axes_of(conv, self._way)
        written = s.CO * self._weight_channels(conv) * self._taps(conv) * (1 + self.split_before)
        weights = written + s.CO * s.reduction_length
        if not self.packed:
            return weights / _PACKED_PER_CYCLE
        written = s.N * rows.length * columns.length * self._channels(conv) * s.groups
        if self.unrolled:
            return conv.element_bytes * written / _UNROLLED_BYTES_PER_CYCLE[conv.layout]
        across = min(s.W, columns.length * columns.distance(conv))
        moved = s.N * rows.length * s.CI * across + written
        if self._packs_weights(conv):
            moved += weights
        return moved / _PACKED_PER_CYCLE

    def kernel(self, conv: Conv2d) -> Kernel:
        self.check_mode(conv)
        if self.split_before and not has_coarse_sums(conv):
            raise InputError(
                f"The template {self.template} splits weights before in mode 3xtf32 and sums of "
                f"{COARSE_SUM} products or more, not for {conv.name}."
            )
        if not self.boxed and (reason := self.refusal(conv)):
            raise InputError(f"The template {self.template} {reason}.")
        if self.boxed and not self._box_bytes(conv):
            raise InputError(
                f"The tensor memory accelerator cannot find the windows of {conv.name}: it needs "
                "channels of a group that fill pieces of 16 bytes (of 32 if there are several "
                "groups) in layout nhwc, or packed ones, with windows of up to "
                f"{MOST_PACKED_TAPS} elements or, of a single group, unrolled rows; strides of "
                f"up to {LARGEST_TRAVERSAL_STRIDE}, padding of up to {FARTHEST_CORNER}, and "
                f"dilated windows of up to {FARTHEST_CORNER + 1} rows and columns more than it."
            )
        if self.splits > self.steps(conv):
            raise InputError(
                f"{conv.name} has {self.steps(conv)} steps of a tile, which {self.splits} blocks "
                "cannot share: choose fewer splits."
            )
        maps = self._tensor_maps(conv) if self.boxed else ()
        named = {tensor_map.name.removesuffix("_map"): tensor_map.name for tensor_map in maps}
        tiles = self.tiles(conv)
        blocks = min(self.blocks, tiles) or tiles
        launch = Launch(
            self.template,
            (blocks * self.splits, 1, 1),
            (self.threads, 1, 1),
            (
                *(named.get(name, name) for name in ("data", "weight")),
                *(["bias"] if conv.bias else []),
                "output",
            ),
            self.dynamic_bytes(conv),
            early=self.early,
        )
        if self.boxed:
            how: tuple[str, ...] = ("lines", "described", "boxed")
        else:
            how = ("blocked",) if self._blocks(conv) else ("lines", "described", "gathered")
            how += ("copying",)
        copies = [f"conv/{text}" for text in ("coarse", "windows", *how, "implicit")]
        constants, head = self._constants(conv, blocks), [ELEMENTS[conv.dtype]]
        launches = [launch]
        workspaces: list[Tensor] = []
        if self.has_packing:
            packing, workspaces, numbers = self._packing(conv)
            launches = [packing, launch]
            copies.insert(1, "conv/pack")
            constants = {**constants, **numbers}
        return Kernel(
            template_text(constants, ["hopper/barriers", *copies], head),
            tuple(launches),
            tensor_maps=maps,
            workspaces=tuple(workspaces),
            origin=Origin(TEMPLATE, None, {"template": self.template, **self.numbers}),
        )

    def _packs_weights(self, conv: Conv2d) -> bool:
        """Return whether the weights are packed: as they come, they may be in the same order."""
        if self.split_before or not self.packed:
            return self.split_before
        turned = conv.layout == "nchw" and self._taps(conv) > 1
        return turned or self._channels(conv) > unpadded_channels_of(conv, self._way)

    def _weight_channels(self, conv: Conv2d) -> int:
        """Return the channels of a tap of the weights: if they are split, those of whole lines."""
        channels = self._channels(conv)
        if not self.split_before:
            return channels
        line = self._box_bytes(conv) // conv.element_bytes
        return math.ceil(channels / line) * line

    def _packing(self, conv: Conv2d) -> tuple[Launch, list[Tensor], dict[str, Constant]]:
        """Return the launch that packs, the workspaces that it fills, and its constants."""
        s, padded, taps = conv.shape, self._channels(conv), conv.shape.KH * conv.shape.KW
        deep = next((n for most, n in TURNED_CHANNELS.items() if taps <= most), 1)
        window, (rows, columns) = window_of(conv, self._way), axes_of(conv, self._way)
        pieces, plane = padded * conv.element_bytes // PIECE_BYTES, rows.length * columns.length
        of_block, pixels = turned_tile(pieces, plane, s.N * s.groups)
        weights, filters = self._weight_channels(conv), s.CO * math.prod(window)
        if self.unrolled or conv.layout == "nhwc":
            of_weights = weights // _SPLIT_AT_ONCE if self.split_before else pieces
            counts = (s.N * plane * s.groups * pieces, filters * of_weights)
            blocks = [-(-count // PACKING_THREADS) for count in counts]
        else:
            blocks = [
                s.N * s.groups * -(-plane // pixels) * -(-pieces // of_block),
                s.CO * -(-weights // deep),
            ]
        packs = {"data": self.packed, "weight": self._packs_weights(conv)}
        inputs = [name for name, is_packed in packs.items() if is_packed]
        shapes = {
            "data": (s.N, rows.length, columns.length, padded * s.groups),
            "weight": (s.CO, *window, weights * (1 + self.split_before)),
        }
        packed = [
            Tensor(f"packed_{name}", shapes[name], conv.dtype, "workspace") for name in inputs
        ]
        blocks = [
            count * is_packed for count, is_packed in zip(blocks, packs.values(), strict=True)
        ]
        grid = (sum(blocks), 1, 1)
        return (
            Launch("pack", grid, (PACKING_THREADS, 1, 1), (*inputs, *(one.name for one in packed))),
            packed,
            {
                "PACKS_DATA": self.packed,
                "PACKS_WEIGHTS": packs["weight"],
                "PACK_DEEP": deep,
                "FROM_NHWC": conv.layout == "nhwc",
                "UNROLLED": self.unrolled > 0,
                "UNROLLED_ROWS": s.KH // window[0],
                "PACK_IMAGES": s.N,
                "PACK_H": s.H,
                "PACK_W": s.W,
                "PACK_GROUPS": s.groups,
                "PACK_CI": s.CI // s.groups,
                "PACK_CO": s.CO,
                "PACK_KH": s.KH,
                "PACK_KW": s.KW,
                "PACK_DILATION": s.dilation,
                "PACKED_H": rows.length,
                "PACKED_W": columns.length,
                **rows.constants("Y"),
                **columns.constants("X"),
                "PADDED": padded,
                "PACK_WIDTH": math.gcd(PIECE_BYTES // conv.element_bytes, s.CI // s.groups),
                "PACK_DATA_BLOCKS": blocks[0],
                "TURNED_PIECES": of_block,
                "TURNED_PIXELS": pixels,
            },
        )

    def _tensor_maps(self, conv: Conv2d) -> tuple[TensorMap, ...]:
        """Return the maps of the input's windows, and of the weights."""
        s, size = conv.shape, conv.element_bytes
        line, channels = self._box_bytes(conv) // size, self._channels(conv)
        every = channels * s.groups
        rows, columns = axes_of(conv, self._way)
        walk = Im2col(
            (-columns.padding, -rows.padding),
            (columns.last(s.OW), rows.last(s.OH)),
            (columns.stride, rows.stride),
        )
        taps = self._taps(conv)
        prefix = "packed_" if self.packed else ""
        weights = "packed_weight" if self._packs_weights(conv) else "weight"
        deep = self._weight_channels(conv) * (1 + self.split_before)
        of_data = TensorMap(
            "data_map",
            f"{prefix}data",
            conv.dtype,
            (every, columns.length, rows.length, s.N),
            (
                size * every,
                size * every * columns.length,
                size * every * columns.length * rows.length,
            ),
            (line, self.tile_p),
            self._box_bytes(conv),
            walk,
        )
        of_weight = TensorMap(
            "weight_map",
            weights,
            conv.dtype,
            (deep, taps, s.CO),
            (size * deep, size * deep * taps),
            (line, 1, self.tile_c),
            self._box_bytes(conv),
        )
        return of_data, of_weight

    def _walk(self, conv: Conv2d) -> dict[str, Constant]:
        """Return the constants by which windows of a packed input differ."""
        if not self.packed:
            return {}
        (rows, columns), window = axes_of(conv, self._way), window_of(conv, self._way)
        return {
            "H": rows.length,
            "W": columns.length,
            "KH": window[0],
            "KW": window[1],
            "STRIDE": rows.stride,
            "PADDING": rows.padding,
            "DILATION": rows.dilation,
            "X_STRIDE": columns.stride,
            "X_PADDING": columns.padding,
            "X_DILATION": columns.dilation,
        }

    def _constants(self, conv: Conv2d, blocks: int) -> dict[str, Constant]:
        at_launch, others, consumers = _REGISTERS[self.consumers, self.per_multiprocessor]
        sums = self.tile_c // 2
        kind = {"float16": "f16", "bfloat16": "bf16"}.get(conv.mode, "tf32")
        depth = 32 // conv.element_bytes
        halves = conv.element_bytes == 2
        direct = self._is_direct(conv)
        after = sums + (1 if direct else 4)
        rows = ", ".join(f'"r"(pixels.of[{i}])' for i in range(4))
        first = ", ".join(f"%{place}" for place in range(sums, after))
        return {
            **self._geometry(conv),
            "NHWC": conv.layout == "nhwc" or self.packed,
            "CI": self._channels(conv) * conv.shape.groups,
            "GROUP_IN": self._channels(conv),
            **self._walk(conv),
            "TILE_P": self.tile_p,
            "TILE_C": self.tile_c,
            "DIVIDED": self._divided(conv),
            **self._copying(conv),
            "WARPS": _WARPGROUP // _WARP,
            "BOXED": self.boxed,
            "SPLIT_BEFORE": self.split_before,
            "WEIGHT_IN": self._weight_channels(conv),
            "EARLY": self.early,
            "CONSUMERS": self.consumers,
            "THREADS": self.threads,
            "RESIDENT": self.per_multiprocessor,
            "REASSIGNED": others != at_launch,
            "OTHER_REGISTERS": f"{others}",
            "CONSUMER_REGISTERS": f"{consumers}",
            "STAGES": self.stages,
            "WEIGHTS_STAY": self._weights_stay(conv),
            "BLOCKS": blocks,
            "SPLITS": f"{self.splits}",
            "CLUSTERED": self.splits > 1,
            "IN_PLANES": self._in_planes(conv),
            "MULTIPLY_ADD": f'"wgmma.mma_async.sync.aligned.m64n{self.tile_c}k{depth}'
            f'.f32.{kind}.{kind}"',
            "MULTIPLY_ADD_COARSE": f'"wgmma.mma_async.sync.aligned.m64n{self.tile_c}k16'
            '.f32.bf16.bf16"',
            "SUMS_PLACES": f'"{", ".join(f"%{place}" for place in range(sums))}"',
            "SUMS_OPERANDS": ", ".join(f'"+f"(sums[{place}])' for place in range(sums)),
            "DIRECT": direct,
            "PIXELS_OPERANDS": '"l"(pixels)' if direct else rows,
            "FIRST_PLACES": f'"{first}"' if direct else f'"{{{first}}}"',
            "SECOND_PLACE": f'"%{after}"',
            "ADD_PLACE": f'"%{after + 1}"',
            "LAST_OPERANDS": f'", {int(conv.layout == "nchw" and not self.packed)}, 0"'
            if halves
            else '""',
        }


def _tiles_of_channels(conv: Conv2d) -> list[int]:
    """Return the numbers of channels in a tile that are worth trying, in ascending order.

    As many tiles as with one of `_TILES_C` share the channels evenly, so that fewer products are in
    vain. In NHWC, tiles of 16-bit channels begin with a sector of the output, and those that are
    stored 32 at a time are tried as well.
    """
    channels = conv.shape.CO // conv.shape.groups
    useful = next((tile for tile in _TILES_C if tile >= channels), _TILES_C[-1])
    found = set()
    for tile in (tile for tile in _TILES_C if tile <= useful):
        tiles = math.ceil(channels / tile)
        in_pieces = conv.element_bytes == 2 and conv.layout == "nhwc" and channels % 8 == 0
        multiple = 16 if in_pieces and tiles > 1 else 8
        found.add(math.ceil(channels / tiles / multiple) * multiple)
        if in_pieces:
            found.add(tile)
    return sorted(found)


def is_collected(conv: Conv2d) -> bool:
    """Return whether warps collect the output in shared memory: `COLLECTED` in `windows.cu`."""
    return conv.layout == "nhwc" and conv.shape.CO // conv.shape.groups % 8 != 0
