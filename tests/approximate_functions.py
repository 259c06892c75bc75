"""Approximate instructions and fast intrinsics with the errors that NVIDIA documents.

Sources: PTX ISA 9.1, sections 9.7.3 and 9.7.4; CUDA C++ Programming Guide 13.1, chapter 17.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

COUNT = 2048
PI = np.pi


def ptx(opcode: str) -> str:
    """The C++ that applies an instruction to a, or to a and b."""
    pair = ", %2" if opcode.startswith("div") else ""
    return f'asm("{opcode} %0, %1{pair};" : "=f"(r) : "f"(a), "f"(b));'


def narrow(opcode: str) -> str:
    """The same for an instruction of one 16-bit number, which the float's upper half holds."""
    convert = "f16" if opcode.endswith("f16") and "bf16" not in opcode else "bf16"
    return (
        f'asm("{{ .reg .b16 h; cvt.rn.{convert}.f32 h, %1; {opcode} h, h; '
        + ('cvt.f32.f16 %0, h; }"' if convert == "f16" else 'mov.b32 %0, {0, h}; }"')
        + ' : "=f"(r) : "f"(a));'
    )


def unit(y: Any, bits: int = 23, least: int = -126) -> Any:
    """The unit in the last place."""
    return np.exp2(np.maximum(np.floor(np.log2(np.abs(y))), least) - bits)


def ulps(count: float) -> Callable[[Any, Any, Any], Any]:
    return lambda _x, _b, y: count * unit(y)


def relative(power: float) -> Callable[[Any, Any, Any], Any]:
    return lambda _x, _b, y: np.abs(y) * 2.0**power


def absolute(power: float) -> Callable[[Any, Any, Any], Any]:
    return lambda _x, _b, y: np.full_like(y, 2.0**power)


def near_one(power: float, otherwise: Callable[[Any, Any, Any], Any]) -> Any:
    return lambda x, b, y: np.where((x > 0.5) & (x < 2), 2.0**power, otherwise(x, b, y))


def exponential(slope: float) -> Callable[[Any, Any, Any], Any]:
    return lambda x, _, y: (2 + np.floor(np.abs(slope * x))) * unit(y)


# Statement, exact function, largest error, range of a.
FUNCTIONS: dict[str, tuple[str, Any, Any, tuple[float, float]]] = {
    "div.approx": (ptx("div.approx.f32"), np.divide, ulps(2), (-9, 9)),
    "div.full": (ptx("div.full.f32"), np.divide, ulps(2), (-9, 9)),
    "rcp": (ptx("rcp.approx.f32"), np.reciprocal, ulps(1), (-9, 9)),
    "rcp.ftz": (ptx("rcp.approx.ftz.f32"), np.reciprocal, ulps(1), (-9, 9)),
    "sqrt": (ptx("sqrt.approx.f32"), np.sqrt, relative(-23), (0, 99)),
    "rsqrt": (ptx("rsqrt.approx.f32"), lambda x: x**-0.5, relative(-22.9), (0, 99)),
    "ex2": (ptx("ex2.approx.f32"), np.exp2, ulps(2), (-99, 99)),
    "lg2": (ptx("lg2.approx.f32"), np.log2, near_one(-22, relative(-22)), (0, 9)),
    "sin": (ptx("sin.approx.f32"), np.sin, absolute(-20.5), (-2 * PI, 2 * PI)),
    "cos": (ptx("cos.approx.f32"), np.cos, absolute(-20.5), (-2 * PI, 2 * PI)),
    "sin of more": (ptx("sin.approx.f32"), np.sin, absolute(-14.7), (-100 * PI, 100 * PI)),
    "tanh": (ptx("tanh.approx.f32"), np.tanh, relative(-11), (-4, 4)),
    "ex2.f16": (narrow("ex2.approx.f16"), np.exp2, relative(-9.9), (-9, 9)),
    "ex2.bf16": (narrow("ex2.approx.ftz.bf16"), np.exp2, relative(-7), (-9, 9)),
    "tanh.f16": (narrow("tanh.approx.f16"), np.tanh, absolute(-10.987), (-4, 4)),
    "tanh.bf16": (narrow("tanh.approx.bf16"), np.tanh, absolute(-8), (-4, 4)),
    "rsqrtf": ("r = rsqrtf(a);", lambda x: x**-0.5, ulps(2), (0, 99)),
    "__fdividef": ("r = __fdividef(a, b);", np.divide, ulps(2), (-9, 9)),
    "__expf": ("r = __expf(a);", np.exp, exponential(1.173), (-80, 80)),
    "__exp10f": ("r = __exp10f(a);", lambda x: 10**x, exponential(2.97), (-30, 30)),
    "__logf": ("r = __logf(a);", np.log, near_one(-21.41, ulps(3)), (0, 9)),
    "__log2f": ("r = __log2f(a);", np.log2, near_one(-22, ulps(2)), (0, 9)),
    "__log10f": ("r = __log10f(a);", np.log10, near_one(-24, ulps(3)), (0, 9)),
    "__sinf": ("r = __sinf(a);", np.sin, absolute(-21.41), (-PI, PI)),
    "__cosf": ("r = __cosf(a);", np.cos, absolute(-21.19), (-PI, PI)),
    "__sincosf": ("float c; __sincosf(a, &r, &c);", np.sin, absolute(-21.41), (-PI, PI)),
    "__tanhf": ("r = __tanhf(a);", np.tanh, relative(-11), (-4, 4)),
    "htanh_approx": (
        "r = __half2float(htanh_approx(__float2half(a)));",
        np.tanh,
        absolute(-10.987),
        (-4, 4),
    ),
}  # fmt: skip
SOURCE = (
    '#include <cuda_fp16.h>\nextern "C" __global__ void k('
    "const float* x, const float* d, float* y) {"
    " int i = blockIdx.x * 256 + threadIdx.x; float a, b = d[i], r;\n"
    + "\n".join(
        f"{{ a = x[{k * COUNT} + i]; {statement} y[{k * COUNT} + i] = r; }}"
        for k, (statement, *_) in enumerate(FUNCTIONS.values())
    )
    + "}"
)


def operands() -> tuple[Any, Any]:
    """A row of operands for each function, and divisors."""
    draw = np.random.default_rng(5)
    rows = [draw.uniform(*span, COUNT) for *_, span in FUNCTIONS.values()]
    # 16-bit numbers of either kind: seven bits of fraction, not below 2^-14
    x = np.array(rows, np.float32)
    short = (x.view(np.uint32) & 0xFFFF0000).view(np.float32)
    for k, (statement, *_) in enumerate(FUNCTIONS.values()):
        if "16" in statement or "half" in statement:
            x[k] = short[k]
    return x, draw.uniform(0.5, 3, COUNT).astype(np.float32)


def errors(x: Any, d: Any, results: Any) -> dict[str, Any]:
    """The errors of each function's results, as fractions of the largest that is documented."""
    found = {}
    for (name, (_, function, bound, _)), given, y in zip(
        FUNCTIONS.items(), x.astype(np.float64), results.astype(np.float64), strict=True
    ):
        exact = function(given, d.astype(np.float64)) if function is np.divide else function(given)
        found[name] = (y - exact) / bound(given, d, exact)
    return found


POWERS = {
    ptx("rcp.approx.f32"): (np.reciprocal, 2.0 ** np.arange(-9, 10)),
    ptx("rsqrt.approx.f32"): (lambda x: x**-0.5, 4.0 ** np.arange(-9, 10)),
    ptx("sqrt.approx.f32"): (np.sqrt, 4.0 ** np.arange(-9, 10)),
    ptx("ex2.approx.f32"): (np.exp2, np.arange(-9.0, 10)),
    ptx("lg2.approx.f32"): (np.log2, 2.0 ** np.array([1, 2, 4, 8, 16])),  # not below 1
    "r = __log2f(a);": (np.log2, 2.0 ** np.array([1, 2, 4, 8, 16])),
    "b = a; a = 3; " + ptx("div.approx.f32"): (lambda x: 3 / x, 2.0 ** np.arange(-9, 10)),
    "r = __fdividef(3, a);": (lambda x: 3 / x, 2.0 ** np.arange(-9, 10)),
}
"""Operands with exact results: powers of two, and quotients of them."""
POWERS_SOURCE = (
    'extern "C" __global__ void k(const float* x, float* y) { float a, b = 0, r; (void)b;\n'
    + "".join(
        f"a = x[{k}]; {statement} y[{k}] = r;\n"
        for k, statement in enumerate(one for one, (_, x) in POWERS.items() for _ in x)
    )
    + "}"
)


def powers() -> tuple[Any, Any]:
    """The operands of `POWERS_SOURCE`, and its results."""
    x = np.concatenate([values for _, values in POWERS.values()])
    y = np.concatenate([function(values) for function, values in POWERS.values()])
    return x.astype(np.float32), y.astype(np.float32)
