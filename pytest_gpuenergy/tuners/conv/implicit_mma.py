"""The template for convolutions on tensor cores from sm_80 on, see cuda/conv/implicit_mma.cu."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

from pytest_gpuenergy.kernels import Kernel, Launch, Origin
from pytest_gpuenergy.support import InputError
from pytest_gpuenergy.tuners.conv.windows import ELEMENTS, LINE_BYTES, WindowParameters
from pytest_gpuenergy.tuners.gemm.costs import costs_of
from pytest_gpuenergy.tuners.gemm.estimate import SCHEDULERS, BlockStep
from pytest_gpuenergy.tuners.gemm.mma import MmaParameters, products_per_cycle
from pytest_gpuenergy.tuning import (
    FIRST_ASYNCHRONOUS,
    SHARED_BYTES_PER_CYCLE,
    TEMPLATE,
    WARP_LANES,
    CardResources,
    Constant,
    template_text,
)
from pytest_gpuenergy.workloads import Conv2d, Tensor

_PIECE = 16
"""The side of the square pieces that make up a warp's part of a tile."""
_PIXELS = 64
"""The pixels of which tiles have a multiple: those of a line of 16-bit elements in NCHW."""
_WARP_COUNTS = (2, 4, 8)
"""The warps of a block; they divide the pieces and lines of all copies evenly."""
_TILES_P = (64, 128, 256)
_TILES_C = (16, 32, 64, 128, 256)
_WARP_SIDES = (16, 32, 64)
_STAGES = (2, 3, 4, 5)
_SPLITS = (1, 2, 3, 4, 6, 8, 12, 16)
_MOST_WAVES = 3
"""The most waves of blocks in which tiles are shared: more blocks are busy without that."""
_STATIC_BYTES_OF_PIXEL = 16
_LEAST_COPY_BYTES = 4
"""The bytes of the smallest copy that bypasses registers (PTX ISA, ``cp.async``)."""
_INSTRUCTION_BYTES = 32
"""The bytes of a line that one instruction multiplies."""
_OTHER_REGISTERS = 28
"""The registers of a thread besides its sums and operands."""
_STEP_SHARE, _STORED_BYTES_PER_CYCLE = 1.25, 12
"""How much longer a step takes than one of a product, and the bytes of the output that a
multiprocessor stores in a cycle: by 406 trials on H200s."""
_COPY_INSTRUCTIONS, _HELD_INSTRUCTIONS, _STEP_INSTRUCTIONS = 10, 17, 60
"""The instructions of a copy of one piece, of one element that a thread keeps, and of a step
besides, as they are compiled for sm_80."""


@dataclass(frozen=True, kw_only=True)
class ImplicitMmaParameters(WindowParameters):
    """The parameters of a kernel of the template.

    Attributes:
        tile_p: the pixels of the output that a block computes.
        tile_c: the channels of the output that a block computes.
        warp_p: the pixels of a tile that a warp computes.
        warp_c: the channels of a tile that a warp computes.
        stages: the steps that are in shared memory, or on the way there.
        splits: the blocks that share the steps of a tile; a second launch adds their sums.
    """

    template: ClassVar[str] = "implicit_mma"
    min_capability: ClassVar[int] = FIRST_ASYNCHRONOUS
    least: ClassVar[Mapping[str, int]] = {
        **dict.fromkeys(("tile_p", "tile_c", "warp_p", "warp_c"), _PIECE),
        "stages": 2,
        "splits": 1,
    }

    tile_p: int = 64
    tile_c: int = 64
    warp_p: int = 32
    warp_c: int = 32
    stages: int = 3
    splits: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        divided = (
            not self.tile_p % _PIXELS
            and not self.tile_p % self.warp_p
            and not self.tile_c % self.warp_c
            and not self.warp_p % _PIECE
            and not self.warp_c % _PIECE
        )
        if not divided or self._warps not in _WARP_COUNTS:
            raise InputError(
                f"A tile of {self.tile_p} pixels and {self.tile_c} channels cannot be divided "
                f"among warps of {self.warp_p} x {self.warp_c}: it must have a multiple of "
                f"{_PIXELS} pixels, and 2, 4 or 8 warps with multiples of {_PIECE}."
            )

    @classmethod
    def fitting(cls, conv: Conv2d, card: CardResources) -> Iterator[ImplicitMmaParameters]:
        channels = conv.shape.CO // conv.shape.groups
        widest = next((tile for tile in _TILES_C if tile >= channels), _TILES_C[-1])
        for tile_p, tile_c, warp_p, warp_c in itertools.product(
            _TILES_P, _TILES_C, _WARP_SIDES, _WARP_SIDES
        ):
            warps = tile_p // warp_p * (tile_c // warp_c)
            if tile_c > widest or tile_c % warp_c or warps not in _WARP_COUNTS:
                continue
            for stages, splits in itertools.product(_STAGES, _SPLITS):
                one = cls(
                    tile_p=tile_p,
                    tile_c=tile_c,
                    warp_p=warp_p,
                    warp_c=warp_c,
                    stages=stages,
                    splits=splits,
                )
                at_once = one.resident(conv, card) * card.multiprocessors
                shared = one.tiles(conv) * splits <= _MOST_WAVES * at_once
                if at_once and (splits == 1 or (shared and splits <= one.steps(conv))):
                    yield one

    def tiles(self, conv: Conv2d) -> int:
        """Return the number of tiles."""
        s = conv.shape
        along_p = math.ceil(s.N * s.OH * s.OW / self.tile_p)
        return along_p * s.groups * math.ceil(s.CO // s.groups / self.tile_c)

    def steps(self, conv: Conv2d) -> int:
        """Return the steps of a tile."""
        return math.ceil(conv.shape.reduction_length * conv.element_bytes / LINE_BYTES)

    @property
    def _warps(self) -> int:
        return self.tile_p // self.warp_p * (self.tile_c // self.warp_c)

    @property
    def threads(self) -> int:
        return WARP_LANES * self._warps

    def _held(self, conv: Conv2d) -> int:
        """Return the elements of a step that a thread keeps while it multiplies."""
        width, _ = self._widths(conv)
        if conv.layout == "nhwc" or width * conv.element_bytes >= _LEAST_COPY_BYTES:
            return 0
        return self.tile_p * LINE_BYTES // conv.element_bytes // self.threads

    def registers(self, conv: Conv2d) -> int:
        """Return about how many registers a thread needs.

        It has its sums, the operands of two instructions, in 3xtf32 also their smaller parts and
        sums of a few products, and elements that it keeps with their addresses.
        """
        sums = self.warp_p * self.warp_c // WARP_LANES
        operands = (self.warp_p + self.warp_c) // 4
        parts = 4 + self.warp_c // 4 + self.warp_c // 2 if conv.mode == "3xtf32" else 0
        return sums + 2 * operands + parts + 2 * self._held(conv) + _OTHER_REGISTERS

    def dynamic_bytes(self) -> int:
        """Return the dynamic shared memory of a block: its stages."""
        return self.stages * LINE_BYTES * (self.tile_p + self.tile_c)

    def shared_bytes(self, conv: Conv2d) -> int:
        del conv
        return self.dynamic_bytes() + _STATIC_BYTES_OF_PIXEL * self.tile_p

    def choices(self, conv: Conv2d) -> dict[str, object]:
        del conv
        return {**self.numbers, "tile": (self.tile_p, self.tile_c)}

    def cycles(self, conv: Conv2d, card: CardResources) -> float:
        """Return the clock cycles that the convolution is expected to take.

        The estimate is a roofline of a step, with waves of blocks, like that of products: tensor
        cores, shared memory, instructions, and bytes from the L2, mostly with the costs that were
        fitted to products by `mma.sync`.
        """
        costs, line = costs_of(MmaParameters.family), LINE_BYTES // conv.element_bytes
        products = self.tile_p * self.tile_c * line
        read = conv.element_bytes * products * (1 / self.warp_p + 1 / self.warp_c)
        step = BlockStep(
            busy_cycles=max(
                costs.product_share * products / products_per_cycle(conv.mode, card),
                costs.served_share * read / SHARED_BYTES_PER_CYCLE,
                self._warps * self._instructions(conv) / SCHEDULERS,
            ),
            warps=self._warps,
            loaded_bytes=LINE_BYTES * (self.tile_p + self.tile_c),
            waits_for_copies=self._held(conv) > 0,
        )
        blocks, resident = self.tiles(conv) * self.splits, self.resident(conv, card)
        steps = math.ceil(self.steps(conv) / self.splits)
        size = 4 if self.splits > 1 else conv.element_bytes
        stored = size * self.tile_p * self.tile_c / _STORED_BYTES_PER_CYCLE

        def wave(count: int) -> float:
            """Return the cycles of blocks of which a multiprocessor has `count` at once."""
            busy = _STEP_SHARE * steps * step.cycles(count, self.stages, costs)
            return costs.first_cycles + busy + count * stored

        waves, rest = divmod(blocks, resident * card.multiprocessors)
        total = costs.start_cycles + waves * wave(resident)
        if rest:
            total += wave(math.ceil(rest / card.multiprocessors))
        if self.splits > 1:
            parts = 4 * 2 * blocks * self.tile_p * self.tile_c / card.multiprocessors
            total += costs.launch_cycles + parts / costs.parts_bytes_per_cycle
        return total

    def _instructions(self, conv: Conv2d) -> float:
        """Return about how many instructions a warp issues in a step."""
        pieces_p, pieces_c = self.warp_p // 16, self.warp_c // 8
        gathered = conv.layout == "nchw" and conv.element_bytes == 4
        each = pieces_p * (4 if gathered else 1) + pieces_c // 2
        if conv.mode == "3xtf32":
            each += pieces_p * pieces_c * (3 + 4) + 3 * (4 * pieces_p + 2 * pieces_c)
        else:
            each += pieces_p * pieces_c
        line = LINE_BYTES // conv.element_bytes
        width, weight_width = self._widths(conv)
        pixels, weights = line * self.tile_p / width, line * self.tile_c / weight_width
        of_pixel = _HELD_INSTRUCTIONS if self._held(conv) else _COPY_INSTRUCTIONS
        copies = (pixels * of_pixel + weights * _COPY_INSTRUCTIONS) / self.threads
        return LINE_BYTES // _INSTRUCTION_BYTES * each + copies + _STEP_INSTRUCTIONS

    def kernel(self, conv: Conv2d) -> Kernel:
        self.check_mode(conv)
        if self.splits > self.steps(conv):
            raise InputError(
                f"{conv.name} has {self.steps(conv)} steps of a tile, which {self.splits} blocks "
                "cannot share: choose fewer splits."
            )
        tiles, block = self.tiles(conv), (self.threads, 1, 1)
        results = (*(["bias"] if conv.bias else []), "output")
        to = ("parts",) if self.splits > 1 else results
        launches = [
            Launch(
                self.template,
                (tiles * self.splits, 1, 1),
                block,
                ("data", "weight", *to),
                self.dynamic_bytes(),
            )
        ]
        workspaces = []
        if self.splits > 1:
            size = tiles * self.splits * self.tile_p * self.tile_c
            workspaces.append(Tensor("parts", (size,), "float32", "workspace"))
            pieces = self.warp_p // 16 * (self.warp_c // 8)
            grid = (tiles, pieces, 1)
            launches.append(Launch(f"{self.template}_sum", grid, block, ("parts", *results)))
        texts = [f"conv/{text}" for text in ("windows", "lines", "gathered", self.template)]
        return Kernel(
            template_text(self._constants(conv), texts, [ELEMENTS[conv.dtype]]),
            tuple(launches),
            workspaces=tuple(workspaces),
            origin=Origin(TEMPLATE, None, {"template": self.template, **self.numbers}),
        )

    def _constants(self, conv: Conv2d) -> dict[str, Constant]:
        kind = {"float16": "f16", "bfloat16": "bf16"}.get(conv.mode, "tf32")
        depth = 32 // conv.element_bytes
        return {
            **self._geometry(conv),
            "TILE_P": self.tile_p,
            "TILE_C": self.tile_c,
            "DIVIDED": conv.shape.N * conv.shape.OH * conv.shape.OW,
            **self._lines(conv),
            "WARPS": self._warps,
            "THREADS": self.threads,
            "WARP_P": self.warp_p,
            "WARP_C": self.warp_c,
            "STAGES": self.stages,
            "SPLITS": f"{self.splits}",
            "HELD": self._held(conv) > 0,
            "MULTIPLY_ADD": f'"mma.sync.aligned.m16n8k{depth}.row.col.f32.{kind}.{kind}.f32"',
        }
