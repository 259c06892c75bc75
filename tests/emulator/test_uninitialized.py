"""Memory that a kernel reads before it has written it: one of the two poisons gives it away."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest
from points import nightly

from pytest_gpuenergy.emulator import HostRunner
from pytest_gpuenergy.support import KernelFault
from pytest_gpuenergy.workloads import Tensor

pytestmark = pytest.mark.slow

X = np.linspace(-8, -1, 32).astype(np.float32)
Runs = Callable[..., list[list[float]]]


@pytest.fixture(scope="module")
def runner(each_compiler: HostRunner) -> HostRunner:
    return each_compiler


@pytest.fixture
def both_runs(runner: HostRunner, built: Callable[..., Any]) -> Runs:
    """Make both_runs(source, x, size): y of k(x, y, w) after runs with different poisons."""

    def go(source: str, x: Any = X, size: int = 1, turns: Iterable[int] = range(2)) -> Any:
        space = Tensor("w", (64,), "float32", "workspace")
        kernel, arenas = built(
            source,
            {"x": x},
            {"y": (size, "float32")},
            arguments=("x", "y", "w"),
            workspaces=(space,),
        )
        results = []
        with runner.open(kernel, arenas, {}, timeout_s=20.0) as program:
            for turn in turns:
                program.run(order_seed=turn)
                results.append(arenas["y"].value().tolist())
        return results

    return go


FORGOTTEN = {
    "a sum": ("float s{};", "EACH s += x[i];", "s", X.sum()),
    "a maximum": ("float m = -9;", "EACH m = fmaxf(m, x[i]);", "m", -1),
    "a minimum": ("float m = 9;", "EACH m = fminf(m, -x[i]);", "m", 1),
    "a comparison": ("float m = -9;", "EACH if (x[i] > m) m = x[i];", "m", -1),
    "an integer maximum": ("int m = -99;", "EACH m = max(m, (int)x[i]);", "m", -1),
    "a flag that stays true": ("bool f = true;", "if (x[0] > 0) f = false;", "f ? 1 : 2", 1),
    "sums": ("float a[4] = {};", "EACH a[i % 4] += x[i];", "a[3]", X[3::4].sum()),
    "maxima": (
        "float a[4] = {-9, -9, -9, -9};",
        "EACH a[i % 4] = fmaxf(a[i % 4], x[i]);",
        "a[1] + a[2]",
        X[29] + X[30],
    ),
    "comparisons": (
        "float a[4] = {-9, -9, -9, -9};",
        "EACH if (a[i % 4] < x[i]) a[i % 4] = x[i];",
        "a[1] + a[2]",
        X[29] + X[30],
    ),
}  # fmt: skip
REMOVED = {
    "float s{};": "float s;",
    "float m = -9;": "float m;",
    "float m = 9;": "float m;",
    "int m = -99;": "int m;",
    "bool f = true;": "bool f;",
    "float a[4] = {};": "float a[4];",
    "float a[4] = {-9, -9, -9, -9};": "float a[4];",
}
TEXT = """#define EACH for (int i = 0; i < 32; ++i)
__global__ void k(const float* x, float* y, float* w) {{ {0} {1} y[0] = {2}; }}"""


@pytest.mark.parametrize(
    "name", nightly(FORGOTTEN, {"a minimum", "a comparison", "an integer maximum", "maxima"})
)
def test_a_local_variable_without_a_value_is_seen(both_runs, name):
    declared, loop, result, expected = FORGOTTEN[name]
    good = both_runs(TEXT.format(declared, loop, result))
    assert np.allclose(good, expected)
    with pytest.raises(KernelFault, match=r"y\[0\] depends on what a local variable of k holds"):
        both_runs(TEXT.format(REMOVED[declared], loop, result))


SHARED = {
    "flag": ("__shared__ bool f;", "if (x[0] > 0) f = true;", "f ? 1 : 2", 2),
    "integer flag": ("__shared__ int f;", "if (x[0] > 0) f = 1;", "f ? 1 : 2", 2),
    "flags": ("__shared__ unsigned char f[8];", "if (x[0] > 0) f[3] = 1;", "f[3] ? 1 : 2", 2),
    "count": ("__shared__ int n;", "EACH ++n;", "n", 32),
    "maximum": ("__shared__ int m;", "atomicMax(&m, 7);", "m", 7),
    "unsigned maximum": ("__shared__ unsigned m;", "atomicMax(&m, 7u);", "m", 7),
    "minimum": ("__shared__ int m;", "atomicMin(&m, 7);", "m", 7),
    "sum": ("__shared__ float s;", "atomicAdd(&s, 7.0f);", "s", 7),
    "float maximum": ("__shared__ float m;", "m = fmaxf(m, x[0]);", "m", -8),
}


@pytest.mark.parametrize(
    "name", nightly(SHARED, {"integer flag", "flags", "unsigned maximum", "minimum"})
)
def test_shared_memory_without_a_value_is_seen(both_runs, name):
    declared, loop, result, expected = SHARED[name]
    bad = both_runs(TEXT.format(declared, loop, result))
    assert not np.array_equal(bad, [[expected], [expected]])


ALLOCATED = {
    "a sum in a workspace": ("for (int i = 0; i < 32; ++i) w[0] += x[i]; y[0] = w[0];", X.sum()),
    "a maximum in one": ("w[0] = fmaxf(w[0], x[0]); y[0] = w[0];", -8),
    "a sum": (
        "float* p = (float*)malloc(128); p[3] += x[0]; y[0] = p[3]; free(p);",
        -8,
    ),
    "a maximum": ("float* p = new float[9]; y[0] = fmaxf(p[2], x[0]); delete[] p;", -8),
    "a flag": ("int* p = (int*)malloc(128); y[0] = p[9] ? 1 : 2; free(p);", 2),
}


@pytest.mark.parametrize("name", ALLOCATED)
def test_allocated_memory_without_a_value_is_seen(both_runs, name):
    body, expected = ALLOCATED[name]
    text = f"__global__ void k(const float* x, float* y, float* w) {{ {body} }}"
    bad = both_runs(text)
    assert not np.allclose(bad, expected)


RARE = {
    "a number": "float r; if (v < 50.f) r = v; y[i] = r;",
    "a number that is returned": "y[i] = below(v);",
    "a switch": "int r; switch (v < 50.f) { case 1: r = 3; } y[i] = r == 3 ? v : r;",
    "a flag": "bool f; if (v < 50.f) f = true; y[i] = f ? v : 0.f;",
    "an index": "int j; if (v < 50.f) j = i; y[i] = v < 50.f ? v : (float)j;",
}
"""Zero is right for values from 50 on."""


@pytest.mark.parametrize("turn", range(4))
@pytest.mark.parametrize("name", RARE)
def test_a_local_that_is_unset_on_a_rare_path_is_seen_in_each_run(both_runs, name, turn):
    source = f"""__device__ float below(float v) {{ float r; if (v < 50.f) r = v; return r; }}
    __global__ void k(const float* x, float* y, float* w) {{
      for (int i = 0; i < 32; ++i) {{ float v = x[i]; {RARE[name]} }} }}"""
    assert both_runs(source, X, 32, turns=(turn,)) == [X.tolist()]
    rare = X.copy()
    rare[17] = 64.0
    with pytest.raises(KernelFault, match=r"y\[17\] depends on what a local variable of k holds"):
        both_runs(source, rare, 32, turns=(turn,))
