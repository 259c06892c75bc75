"""Mathematical functions of CUDA that C++ does not have, by what they are inverse or equal to."""

import math

import numpy as np
import pytest

pytestmark = pytest.mark.slow

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
