"""What a search moves between: a kernel's source with its launch plan."""

from __future__ import annotations

import hashlib
from typing import Literal

import msgspec
from msgspec import Struct

Language = Literal["cuda", "triton"]
Constant = bool | int | float
Size = int | str
"""A number, or an expression such as ``ceil_div(N, BLOCK)``; see `sizes`."""


class LaunchPlan(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """How a kernel is launched, for any sizes of its tensors.

    Expressions may use the names of sizes, the constants, and ``block_x`` to ``block_z``.

    Attributes:
        grid: blocks (Triton: programs) in x, y and z; those left out are 1.
        block: threads of a block in x, y and z, for CUDA; those left out are 1.
        shared_bytes: dynamic shared memory of a block, for CUDA.
        constants: macros of CUDA text, ``tl.constexpr`` parameters of a Triton function.
        num_warps, num_stages: of a Triton function.
    """

    grid: tuple[Size, ...]
    block: tuple[int, ...] = ()
    shared_bytes: Size = 0
    constants: dict[str, Constant] = {}
    num_warps: int = 4
    num_stages: int = 3


class State(Struct, frozen=True):
    """One kernel that a search has reached.

    Two paths of moves that lead to the same text and launch plan lead to the same state.

    Attributes:
        language: of the source.
        source: CUDA text, or a Python module with a Triton function.
        launch: with which it runs.
    """

    language: Language
    source: str
    launch: LaunchPlan

    @property
    def id(self) -> str:
        """``s`` and the first hexadecimal digits of a hash of everything above."""
        text = msgspec.json.encode(self, order="deterministic")
        return f"s{hashlib.sha256(text).hexdigest()[:12]}"
