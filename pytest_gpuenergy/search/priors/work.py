"""What a kernel does in one launch, and what its operations cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

WARP = 32


@dataclass(frozen=True)
class Work:
    """What an average block of a launch does, with the first set of sizes.

    Attributes:
        blocks: of the launch.
        threads: of a block.
        shared_bytes: of a block.
        private_words: in a thread's own arrays, of 4 bytes.
        instructions: of all warps.
        tensor_flops: by tensor cores.
        functions: results of special functions, of all threads.
        loads: of tensors by a warp.
        sectors: of 32 bytes that its loads and stores of tensors touch, summed over them.
        l2_bytes: of these sectors, each once.
        wavefronts: parts that its accesses to shared memory take, each without bank conflicts.
        atomics: updates of tensors by all threads.
        places: different elements that all blocks update.
        barriers: that it passes.
        rounds: how often a warp waits for loads.
        serial: instructions of the warp that has most to do.
        guessed: loops that data ends, as they begin in the text.
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
        """Of a block."""
        return -(-self.threads // WARP)


_ACCURATE_EXPONENTIAL, _ACCURATE_ROOT = (1.0, 7.0), (1.0, 8.0)

DIVISION = (1.0, 8.0)
"""Of floating-point numbers, correctly rounded."""

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
"""Instructions of calls that are not one; those of accesses are counted with them."""
TRITON_FUNCTIONS: Mapping[str, tuple[float, float]] = {
    **dict.fromkeys(("exp", "exp2", "log", "log2", "rsqrt"), (1.0, 2.0)),
    **dict.fromkeys(("sqrt", "sqrt_rn", "div_rn"), DIVISION),
    **dict.fromkeys(("sin", "cos", "erf"), (1.0, 20.0)),
    **dict.fromkeys(("where", "maximum", "minimum", "abs", "sum", "max", "min"), (0.0, 1.0)),
}
"""For each element of a block."""
