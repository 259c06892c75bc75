"""Mathematical functions and approximate instructions, off by no more than is documented."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from approximate_functions import COUNT, POWERS_SOURCE, SOURCE, errors, operands, powers, ptx
from points import MORE, nightly

from pytest_gpuenergy.emulator import EmulatedDevice
from pytest_gpuenergy.engine import verify_on_device
from pytest_gpuenergy.kernels import Kernel, Launch
from pytest_gpuenergy.record import Correctness
from pytest_gpuenergy.support import KernelFault
from pytest_gpuenergy.workloads import Contract, ErrorBound, Tensor

pytestmark = pytest.mark.slow


def computed(run: Any, x: Any, d: Any) -> Any:
    inputs = {"x": x.reshape(-1), "d": d}
    y = run(SOURCE, inputs, {"y": (x.size, "float32")}, grid=COUNT // 256, block=256)["y"]
    return y.reshape(x.shape)


def test_errors_reach_the_documented_maximum_and_have_both_signs(run):
    x, d = operands()
    found = errors(x, d, computed(run, x, d))
    assert {name for name, error in found.items() if np.abs(error).max() > 1} == set()
    assert {name for name, error in found.items() if np.abs(error).max() < 0.8} == set()
    assert {name for name, error in found.items() if abs(error.mean()) > 0.05} == set()


def test_powers_of_two_are_exact(run):
    x, exact = powers()
    y = run(POWERS_SOURCE, {"x": x}, {"y": (x.size, "float32")})["y"]
    np.testing.assert_array_equal(y, exact)


@pytest.mark.parametrize(
    ("statement", "function", "x"),
    [
        (ptx("lg2.approx.f32"), np.log2, 2.0 ** -np.arange(1, 33)),  # as on an H200
        ("r = __log2f(a);", np.log2, 2.0 ** -np.arange(1, 33)),
        ("b = a; a = 2 * a; " + ptx("div.approx.f32"), lambda x: 0 * x + 2, np.arange(3, 35)),
        MORE("b = a; a = 2 * a; " + ptx("div.full.f32"), lambda x: 0 * x + 2, np.arange(3, 35)),
        MORE("r = __log10f(a);", np.log10, 10.0 ** np.arange(1, 33)),
    ],
)
def test_other_results_may_be_off_though_they_are_powers_of_two(run, statement, function, x):
    source = "__global__ void k(const float* x, float* y) { float a = x[threadIdx.x], b = 0, r;"
    source += f" (void)b; {statement} y[threadIdx.x] = r; }}"
    given = x.astype(np.float32)
    y = run(source, {"x": given}, {"y": (x.size, "float32")}, block=x.size)["y"]
    exact = function(given.astype(np.float64)).astype(np.float32)
    powers_of_two = np.frexp(exact)[0] == np.copysign(0.5, exact)
    assert np.any(y[powers_of_two] != exact[powers_of_two])
    np.testing.assert_allclose(y, exact, rtol=2.0**-21)


def test_the_same_operands_have_the_same_result(run):
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


def test_special_values_are_those_of_the_isa(run):
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


def test_powers_are_made_of_a_logarithm(run):
    source = "__global__ void k(const float* x, float* y) { int i = threadIdx.x;"
    source += " y[i] = __powf(x[i], 20.0f); y[256 + i] = __tanf(x[i]); }"
    x = np.linspace(2.1, 9, 256, dtype=np.float32)
    power, tangent = run(source, {"x": x}, {"y": (512, "float32")}, block=256)["y"].reshape(2, -1)
    wide = x.astype(np.float64)
    error = np.abs(power / wide**20 - 1)
    assert 1e-6 < error.max() < 20 * 2 * 2.0**-22 * np.log2(9)
    assert 1e-7 < np.abs(tangent / np.tan(wide) - 1)[np.abs(np.sin(2 * wide)) > 0.1].max() < 1e-4


def test_double_precision_keeps_twenty_bits(run):
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
    MORE("tanh", "r = __tanhf(a);", None, 5e-4),
    MORE("sigmoid", "r = 0.5f + 0.5f * __tanhf(0.5f * a);", None, 1e-3),
    ("sigmoid", "r = __fdividef(1.0f, 1.0f + __expf(-a));", 1e-8, 1e-6),
    MORE("angle", "r = __sinf(a);", 1e-7, 1e-3),
    ("power", "r = __powf(fabsf(a), 2.5f);", 1e-7, 1e-5),
]  # fmt: skip


def judged(gpu: EmulatedDevice, name: str, statement: str, bound: float | None) -> Correctness:
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
    return verify_on_device(gpu, kernel, contract)


@pytest.mark.parametrize(("name", "statement", "fails", "meets"), CLAIMS)
def test_an_approximation_passes_only_where_its_error_is_allowed(
    gpu, name, statement, fails, meets
):
    with pytest.raises(KernelFault, match=r"are wrong|off by"):
        judged(gpu, name, statement, fails)
    judged(gpu, name, statement, meets)


@pytest.mark.parametrize("name", nightly(EXACT, {"tanh", "angle"}))
def test_an_accurate_function_passes(gpu, name):
    found = judged(gpu, name, EXACT[name][1], None)
    assert found.max_relative_error <= found.max_relative_bound


FUNCTIONS = {
    "sinpi": lambda x: math.sin(math.pi * x),
    "cospi": lambda x: math.cos(math.pi * x),
    "erfcx": lambda x: math.exp(x * x) * math.erfc(x),
    "normcdf": lambda x: math.erfc(-x / math.sqrt(2)) / 2,
    "cyl_bessel_i0": lambda x: sum((x / 2) ** (2 * k) / math.factorial(k) ** 2 for k in range(30)),
    "cyl_bessel_i1": lambda x: sum(
        (x / 2) ** (2 * k + 1) / math.factorial(k) / math.factorial(k + 1) for k in range(30)
    ),
    "rcbrt": lambda x: math.copysign(abs(x) ** (-1 / 3), x),
    "rhypot": lambda x: 1 / math.hypot(x, 2),
    "norm3d": lambda x: math.hypot(x, 2, 3),
    "rnorm4d": lambda x: 1 / math.hypot(x, 2, 3, 4),
}
INVERSE = {
    "erfinv(erf(x))": 1e-12,
    "erfcinv(erfc(x))": 1e-12,
    "normcdfinv(normcdf(x))": 1e-12,
}
MORE = {"rhypot": ", 2", "norm3d": ", 2, 3", "rnorm4d": ", 2, 3, 4"}
X = np.array([-2.9, -1.5, -0.5, -1e-9, 1e-9, 0.25, 1.0, 2.75])


def test_they_equal_their_definitions_in_both_precisions(run):
    calls = [f"{name}{{}}(x{MORE.get(name, '')})" for name in FUNCTIONS] + list(INVERSE)
    double = "".join(f"y[{16 * k} + t] = {call.format('')};" for k, call in enumerate(calls))
    single = "".join(
        f"y[{16 * k + 8} + t] = {call.format('f').replace('x', '(float)x')};"
        for k, call in enumerate(calls[: len(FUNCTIONS)])
    ).replace("erfc(float)x", "erfcx")
    source = f"""__global__ void k(const double* in, double* y) {{
      int t = threadIdx.x; double x = in[t]; {double} {single} }}"""
    y = run(source, {"x": X}, {"y": (16 * len(calls), "float64")}, block=8)["y"].reshape(-1, 16)
    for row, function in zip(y, FUNCTIONS.values(), strict=False):
        expected = [function(x) for x in X]
        np.testing.assert_allclose(row[:8], expected, rtol=1e-12, atol=1e-15)
        np.testing.assert_allclose(row[8:], expected, rtol=1e-6, atol=1e-6)
    for row, (call, rtol) in zip(y[len(FUNCTIONS) :], INVERSE.items(), strict=True):
        np.testing.assert_allclose(row[:8], X, rtol=rtol, atol=1e-15, err_msg=call)


def test_tails_and_signs_are_those_of_the_functions(run):
    source = """__global__ void k(double* y) {
      double s, c; sincospi(7.0, &s, &c); float p, q; sincospif(0.5f, &p, &q);
      double values[] = {erfcinv(1e-300), erfinv(1.0), erfcinv(2.0), erfcx(1e8), s, c, p, q,
                         cyl_bessel_i1(-0.5), erfinv(-0.5)};
      for (int k = 0; k < 10; ++k) y[k] = values[k]; }"""
    y = run(source, {}, {"y": (10, "float64")})["y"]
    i1 = FUNCTIONS["cyl_bessel_i1"](0.5)
    assert math.erfc(y[0]) == pytest.approx(1e-300, rel=1e-9)
    assert (y[1], y[2]) == (math.inf, -math.inf)
    assert y[3] == pytest.approx(1 / (1e8 * math.sqrt(math.pi)))
    assert y[4:8].tolist() == [0, -1, 1, 0]
    assert y[8] == pytest.approx(-i1)
    assert math.erf(y[9]) == pytest.approx(-0.5)
