"""The work that a kernel does in one launch, and the costs of its operations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

WARP, SECTOR_BYTES = 32, 32


# Costs are results of the special function unit and instructions. They are guesses: an accurate
# function calls a fast one, reduces its argument and handles its limits.
_ACCURATE_EXPONENTIAL, _ACCURATE_ROOT = (1.0, 7.0), (1.0, 8.0)
DIVISION = (1.0, 8.0)
"""Cost of a correctly rounded division of floating-point numbers."""
FUNCTIONS: Mapping[str, tuple[float, float]] = {
    **dict.fromkeys(("exp", "expf", "exp2", "exp2f", "exp10f"), _ACCURATE_EXPONENTIAL),
    **dict.fromkeys(("log", "logf", "log2f", "log10f", "sqrt", "sqrtf"), _ACCURATE_ROOT),
    **dict.fromkeys(("tanh", "tanhf", "erf", "erff", "pow", "powf"), (2.0, 20.0)),
    **dict.fromkeys(("sin", "sinf", "cos", "cosf"), (1.0, 20.0)),
    **dict.fromkeys(("__expf", "__exp2f", "__exp10f", "__logf", "__sinf", "__cosf"), (1.0, 2.0)),
    **dict.fromkeys(("rsqrt", "rsqrtf", "__frsqrt_rn", "__fdividef"), (1.0, 2.0)),
    **dict.fromkeys(("__frcp_rn", "__fdiv_rn", "__fsqrt_rn"), DIVISION),
}
CONVERSIONS: Mapping[str, float] = {
    **dict.fromkeys(("__syncthreads", "__syncwarp"), 0.0),
    **dict.fromkeys(("__ldg", "__ldca", "__ldcg", "__ldcs", "__stcg", "__stcs"), 0.0),
}
"""Instructions of calls that take none by themselves; accesses are counted separately."""
TRITON_FUNCTIONS: Mapping[str, tuple[float, float]] = {
    **dict.fromkeys(("exp", "exp2", "log", "log2", "rsqrt"), (1.0, 2.0)),
    **dict.fromkeys(("sqrt", "sqrt_rn", "div_rn"), DIVISION),
    **dict.fromkeys(("sin", "cos", "erf"), (1.0, 20.0)),
    **dict.fromkeys(("where", "maximum", "minimum", "abs", "sum", "max", "min"), (0.0, 1.0)),
}
"""Costs of Triton's functions for each element of a block."""


@dataclass(frozen=True)
class KernelWork:
    """The work of an average block of a launch, with the first set of sizes.

    Attributes:
        blocks: the number of blocks of the launch.
        threads: the number of threads of a block.
        shared_bytes: the shared memory of a block.
        private_words: the number of 4-byte words in a thread's own arrays.
        instructions: the instructions of all warps.
        tensor_flops: the operations of tensor cores.
        functions: the results of special functions, of all threads.
        loads: the loads of tensors by a warp.
        sectors: the sectors of 32 bytes that each load and store of tensors touches, added up.
        l2_bytes: the bytes of these sectors, counting each sector once.
        wavefronts: the conflict-free parts of its accesses to shared memory.
        atomics: the atomic updates of tensors by all threads.
        places: the number of different elements that all blocks update.
        barriers: the number of barriers that it passes.
        rounds: the number of times that a warp waits for loads.
        serial: the instructions of the warp with the most to do.
        guessed: the heads of loops whose number of rounds depends on data.
    """

    blocks: int
    threads: int
    shared_bytes: int = 0
    private_words: int = 0
    instructions: float = 0.0
    tensor_flops: float = 0.0
    functions: float = 0.0
    loads: float = 0.0
    sectors: float = 0.0
    l2_bytes: float = 0.0
    wavefronts: float = 0.0
    atomics: float = 0.0
    places: float = 1.0
    barriers: float = 0.0
    rounds: float = 0.0
    serial: float = 0.0
    guessed: frozenset[str] = frozenset()

    @property
    def warps(self) -> int:
        """The number of warps of a block."""
        return -(-self.threads // WARP)
