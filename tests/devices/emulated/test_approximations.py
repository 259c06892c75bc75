"""Approximate instructions and fast intrinsics are off by as much as is documented, and no more."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from pytest_gpuenergy.devices.emulated.device import EmulatedDevice
from pytest_gpuenergy.engine.verification import verify
from pytest_gpuenergy.kernels.kernel import Kernel, Launch
from pytest_gpuenergy.support.errors import KernelFault
from pytest_gpuenergy.workloads import Contract, ErrorBound, Tensor

pytestmark = pytest.mark.slow

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
    "#include <cuda_fp16.h>\n__global__ void k(const float* x, const float* d, float* y) {"
    " int i = blockIdx.x * 256 + threadIdx.x; float a, b = d[i], r;\n"
    + "\n".join(
        f"{{ a = x[{k * COUNT} + i]; {statement} y[{k * COUNT} + i] = r; }}"
        for k, (statement, *_) in enumerate(FUNCTIONS.values())
    )
    + "}"
)


def computed(run: Any, x: Any, d: Any) -> Any:
    inputs = {"x": x.reshape(-1), "d": d}
    y = run(SOURCE, inputs, {"y": (x.size, "float32")}, grid=COUNT // 256, block=256)["y"]
    return y.reshape(x.shape)


def operands() -> tuple[Any, Any]:
    draw = np.random.default_rng(5)
    rows = [draw.uniform(*span, COUNT) for *_, span in FUNCTIONS.values()]
    # 16-bit numbers of either kind: seven bits of fraction, not below 2^-14
    x = np.array(rows, np.float32)
    short = (x.view(np.uint32) & 0xFFFF0000).view(np.float32)
    for k, (statement, *_) in enumerate(FUNCTIONS.values()):
        if "16" in statement or "half" in statement:
            x[k] = short[k]
    return x, draw.uniform(0.5, 3, COUNT).astype(np.float32)


def test_errors_reach_the_documented_maximum_and_have_both_signs(run: Any) -> None:
    x, d = operands()
    results = computed(run, x, d).astype(np.float64)
    wrong = {}
    for (name, (_, function, bound, _)), given, y in zip(
        FUNCTIONS.items(), x.astype(np.float64), results, strict=True
    ):
        divides = function is np.divide
        exact = function(given, d.astype(np.float64)) if divides else function(given)
        error = (y - exact) / bound(given, d, exact)
        # A relative error of a power of two's neighbour may be half as large.
        if not (0.8 < np.abs(error).max() <= 1 and abs(error.mean()) < 0.05):
            wrong[name] = np.abs(error).max(), error.mean()
    assert not wrong


def test_the_same_operands_have_the_same_result(run: Any) -> None:
    x, d = operands()
    x[:, COUNT // 2 :] = x[:, : COUNT // 2]
    d[COUNT // 2 :] = d[: COUNT // 2]
    y = computed(run, x, d)
    np.testing.assert_array_equal(y[:, COUNT // 2 :], y[:, : COUNT // 2])


ZERO, MINUS, INF, NAN = 0.0, -0.0, np.inf, np.nan
SPECIAL = {
    "rcp.approx.f32": [(ZERO, INF), (MINUS, -INF), (INF, ZERO), (-INF, MINUS), (NAN, NAN)],
    "sqrt.approx.f32": [(ZERO, ZERO), (MINUS, MINUS), (INF, INF), (-1, NAN), (-INF, NAN)],
    "rsqrt.approx.f32": [(ZERO, INF), (MINUS, -INF), (INF, ZERO), (-1, NAN), (NAN, NAN)],
    "ex2.approx.f32": [(ZERO, 1), (MINUS, 1), (INF, INF), (-INF, ZERO), (NAN, NAN)],
    "ex2.approx.ftz.f32": [(-126.5, ZERO), (1e-40, 1)],
    "lg2.approx.f32": [(ZERO, -INF), (MINUS, -INF), (INF, INF), (-1, NAN), (1, ZERO)],
    "lg2.approx.ftz.f32": [(1e-40, -INF)],
    "sin.approx.f32": [(ZERO, ZERO), (MINUS, MINUS), (INF, NAN), (NAN, NAN)],
    "cos.approx.f32": [(ZERO, 1), (MINUS, 1), (-INF, NAN)],
    "tanh.approx.f32": [(ZERO, ZERO), (MINUS, MINUS), (INF, 1), (-INF, -1), (NAN, NAN)],
}
DIVISIONS = [
    (3, 2.0**127, ZERO), (-3, 2.0**127, MINUS), (INF, 2.0**127, NAN), (3, ZERO, INF),
    (ZERO, ZERO, NAN), (3, INF, ZERO), (ZERO, 3, ZERO), (INF, 3, INF),
]  # fmt: skip
"""A divisor above 2^126 makes zero of a quotient, and NaN of an infinite one."""


def test_special_values_are_those_of_the_isa(run: Any) -> None:
    cases = [(ptx(op), one, 1.0, y) for op, pairs in SPECIAL.items() for one, y in pairs]
    for division in (ptx("div.approx.f32"), "r = __fdividef(a, b);"):
        cases += [(division, *case) for case in DIVISIONS]
    cases += [
        (ptx("div.full.f32"), 3 * 2.0**125, 2.0**127, 0.75),
        ("r = __powf(a, b);", -2, 2, NAN),
        ("r = __expf(a);", ZERO, 1, 1),
    ]
    source = "__global__ void k(const float* x, float* y) { float a, b, r;\n" + "".join(
        f"a = x[{2 * k}], b = x[{2 * k + 1}]; {statement} y[{k}] = r;\n"
        for k, (statement, *_) in enumerate(cases)
    )
    x = np.array([case[1:3] for case in cases], np.float32).reshape(-1)
    got = run(source + "}", {"x": x}, {"y": (len(cases), "float32")})["y"]
    expected = np.array([case[3] for case in cases], np.float32)
    same = (got == expected) & (np.signbit(got) == np.signbit(expected))
    rounds = np.isclose(got, expected, rtol=3e-7, atol=0) & (expected == 0.75)
    both = np.isnan(got) & np.isnan(expected)
    off = [(c, g) for c, g, ok in zip(cases, got, same | both | rounds, strict=True) if not ok]
    assert off == []


def test_powers_are_made_of_a_logarithm(run: Any) -> None:
    source = "__global__ void k(const float* x, float* y) { int i = threadIdx.x;"
    source += " y[i] = __powf(x[i], 20.0f); y[256 + i] = __tanf(x[i]); }"
    x = np.linspace(2.1, 9, 256, dtype=np.float32)
    power, tangent = run(source, {"x": x}, {"y": (512, "float32")}, block=256)["y"].reshape(2, -1)
    wide = x.astype(np.float64)
    error = np.abs(power / wide**20 - 1)
    assert 1e-6 < error.max() < 20 * 2 * 2.0**-22 * np.log2(9)
    assert 1e-7 < np.abs(tangent / np.tan(wide) - 1)[np.abs(np.sin(2 * wide)) > 0.1].max() < 1e-4


def test_double_precision_keeps_twenty_bits(run: Any) -> None:
    source = """__global__ void k(const double* x, double* y) { int i = threadIdx.x;
      asm("rcp.approx.ftz.f64 %0, %1;" : "=d"(y[i]) : "d"(x[i]));
      asm("rsqrt.approx.ftz.f64 %0, %1;" : "=d"(y[64 + i]) : "d"(x[i])); }"""
    x = np.linspace(1.01, 9, 64)
    y = run(source, {"x": x}, {"y": (128, "float64")}, block=64)["y"]
    np.testing.assert_array_equal(y.view(np.uint64) & 0xFFFFFFFF, 0)
    for error in (np.abs(y[:64] * x - 1), np.abs(y[64:] * np.sqrt(x) - 1)):
        assert 2.0**-23 < error.max() < 2.0**-18


@pytest.fixture
def gpu() -> Iterator[EmulatedDevice]:
    with EmulatedDevice() as device:
        yield device


EXACT = {
    "tanh": (np.tanh, "r = tanhf(a);"),
    "sigmoid": (lambda x: 1 / (1 + np.exp(-x)), "r = 1.0f / (1.0f + expf(-a));"),
    "angle": (np.sin, "r = sinf(a);"),
    "power": (lambda x: np.abs(x) ** 2.5, "r = powf(fabsf(a), 2.5f);"),
}
CLAIMS = [  # function, kernel, the bound that it fails or None, the bound that it meets
    ("tanh", ptx("tanh.approx.f32"), None, 5e-4),
    ("tanh", "r = __tanhf(a);", None, 5e-4),
    ("sigmoid", "r = 0.5f + 0.5f * __tanhf(0.5f * a);", None, 1e-3),
    ("sigmoid", "r = __fdividef(1.0f, 1.0f + __expf(-a));", 1e-8, 1e-6),
    ("angle", "r = __sinf(a);", None, 1e-3),
    ("power", "r = __powf(fabsf(a), 2.5f);", 1e-7, 1e-5),
]  # fmt: skip


def judged(gpu: EmulatedDevice, name: str, statement: str, bound: float | None) -> None:
    tensors = (
        Tensor("x", (COUNT,), "float32", "input"),
        Tensor("y", (COUNT,), "float32", "output"),
    )
    function = EXACT[name][0]
    options: dict[str, Any] = {} if bound is None else {"bound": ErrorBound(bound, bound)}
    source = (
        'extern "C" __global__ void f(const float* x, float* y) {\n'
        f"int i = blockIdx.x * 256 + threadIdx.x; float a = x[i], b = 0, r; (void)b;\n"
        f"{statement}\ny[i] = r; }}"
    )
    kernel = Kernel(source, (Launch("f", (COUNT // 256, 1, 1), (256, 1, 1), ("x", "y")),))
    contract = Contract(name, tensors, lambda given: {"y": function(given["x"])}, **options)
    verify(gpu, kernel, contract)


@pytest.mark.parametrize(("name", "statement", "fails", "meets"), CLAIMS)
def test_an_approximation_passes_only_where_its_error_is_allowed(
    gpu: EmulatedDevice, name: str, statement: str, fails: float | None, meets: float
) -> None:
    with pytest.raises(KernelFault, match=r"are wrong|off by"):
        judged(gpu, name, statement, fails)
    judged(gpu, name, statement, meets)


@pytest.mark.parametrize("name", EXACT)
def test_an_accurate_function_passes(gpu: EmulatedDevice, name: str) -> None:
    judged(gpu, name, EXACT[name][1], None)
