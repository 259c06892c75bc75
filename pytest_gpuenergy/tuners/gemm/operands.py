"""Copies of operands that a launch makes before that of the product, see cuda/gemm/operands.cu."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import cast

from pytest_gpuenergy.kernels import Kernel, Launch
from pytest_gpuenergy.tuners.gemm.tiling import with_copies
from pytest_gpuenergy.tuning import Constant
from pytest_gpuenergy.workloads import Gemm, Layout, Tensor

PIECE_BYTES = 16
"""The bytes that are copied at once, a multiple of which the rows of a copy are apart."""
COPY_TEXTS = ("gemm/pieces", "gemm/operands")
"""The text of the launch, in files of ``cuda/``."""
_THREADS, _PIECES_OF_THREAD, _SQUARE = 256, 4, 32
"""The threads of a block, the pieces that each of them copies, and the side of the squares that
blocks transpose."""


@dataclass(frozen=True)
class OperandCopies:
    """Copies of operands of a product.

    Attributes:
        gemm: the product, with the operands as they are stored.
        spaces: the copies' workspaces by the operands' names; the last two dimensions of each are
            its rows and the distance between them.
        turned: the names of the operands of which the copies are transposes.
    """

    gemm: Gemm
    spaces: Mapping[str, Tensor]
    turned: str = ""

    @functools.cached_property
    def product(self) -> Gemm:
        """The product of the copies, and of the operands that are not copied."""
        if not self.spaces:
            return self.gemm
        row_of = {name: space.shape[-1] for name, space in self.spaces.items()}
        stored = {"A": not self.gemm.a_transposed, "B": self.gemm.b_transposed}  # along K
        along = {name: lies != (name in self.turned) for name, lies in stored.items()}
        letters = ("t" if along["B"] else "n") + ("n" if along["A"] else "t")
        return replace(
            self.gemm,
            layout=cast("Layout", letters),
            lda=row_of.get("A", self.gemm.lda),
            ldb=row_of.get("B", self.gemm.ldb),
        )

    @property
    def nbytes(self) -> int:
        """The bytes of all copies."""
        return sum(space.nbytes for space in self.spaces.values())

    @property
    def constants(self) -> dict[str, Constant]:
        """The constants of the launch's text."""
        constants: dict[str, Constant] = {"PIECES_OF_THREAD": _PIECES_OF_THREAD}
        stored = {tensor.name: tensor.shape for tensor in self.gemm.inputs}
        for name, length in (("A", self.gemm.row_of_a), ("B", self.gemm.row_of_b)):
            copy = self.spaces[name].shape if name in self.spaces else (0, 0)
            constants |= {
                f"{name}_STORED_HEIGHT": math.prod(stored[name][:-1]),
                f"{name}_STORED_LENGTH": length,
                f"{name}_STORED_ROW": stored[name][-1],
                f"{name}_COPY_HEIGHT": math.prod(copy[:-1]),
                f"{name}_COPY_ROW": f"{copy[-1]}",  # for the preprocessor, too
                f"{name}_COPY_TURNED": name in self.turned,
            }
        return constants

    def before(self, kernel: Kernel) -> Kernel:
        """Return a copy of ``kernel`` that makes the copies first and then reads them.

        Its text must include `COPY_TEXTS`.
        """
        blocks = max(self._blocks(name) for name in self.spaces)
        names = [each for name, space in self.spaces.items() for each in (name, space.name)]
        grid = (blocks, len(self.spaces), 1)
        launch = Launch("gemm_copy", grid, (_THREADS, 1, 1), tuple(names))
        return with_copies(kernel, [launch], self.spaces)

    def _blocks(self, name: str) -> int:
        space = self.spaces[name]
        if name in self.turned:
            return math.prod(math.ceil(side / _SQUARE) for side in space.shape[-2:])
        return math.ceil(space.nbytes / (PIECE_BYTES * _THREADS * _PIECES_OF_THREAD))


def copy_of(name: str, gemm: Gemm, shape: tuple[int, ...]) -> Tensor:
    """Return the workspace of an operand's copy."""
    return Tensor(f"{name.lower()}_copy", shape, gemm.dtype, "workspace")
