"""What functions of arithmetic cost a thread: results of the special function unit, instructions.

Guesses: an accurate function takes a fast one, reduces its argument and handles its limits.
"""

from __future__ import annotations

from collections.abc import Mapping

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
