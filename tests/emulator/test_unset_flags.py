"""Flags that are never set, and places in memory that nobody has written."""

from __future__ import annotations

import numpy as np
import pytest
from points import nightly

from pytest_gpuenergy.emulator import needs_zeros, with_values
from pytest_gpuenergy.support import KernelFault
from pytest_gpuenergy.workloads import Tensor

X = np.linspace(-8, -1, 32).astype(np.float32)
UNSET = " = ::cuhost::cuhost_unset"


@pytest.fixture
def three_runs(built):
    """Make three_runs(runner, body): y[0] after each run of a verification with its own poison."""

    def go(runner, body):
        kernel, arenas = built(
            f"__global__ void k(const float* x, float* y, float* w) {{ {body} }}",
            {"x": X},
            {"y": (1, "float32")},
            arguments=("x", "y", "w"),
            workspaces=(Tensor("w", (64,), "float32", "workspace"),),
        )
        results = []
        with runner.open(kernel, arenas, {}, timeout_s=20.0) as program:
            for turn in range(3):
                program.run(order_seed=turn)
                results.append(float(arenas["y"].value()[0]))
        return results

    return go


@pytest.fixture
def is_seen(three_runs):
    """Make is_seen(...): whether a run depends on how locals are filled, or runs differ."""

    def go(*arguments):
        try:
            return len(set(three_runs(*arguments))) > 1
        except KernelFault as fault:
            return "y[0] depends on what a local variable of k holds" in str(fault)

    return go


FLAGS = {
    "set in a branch": "bool f; if (x[0] > 0) f = true; y[0] = f ? 1 : 2;",
    "reset in a branch": "bool f; if (x[0] > 0) f = false; y[0] = f ? 1 : 2;",
    "as a number": "bool f; if (x[0] > 0) f = true; y[0] = f;",
    "beside one with a value": "bool g = false, f; if (x[0] > 0) f = g; y[0] = f ? 1 : 2;",
    "volatile": "volatile bool f; if (x[0] > 0) f = true; y[0] = f ? 1 : 2;",
    "by its address": "bool f; bool* p = &f; if (x[0] > 0) *p = true; y[0] = *p ? 1 : 2;",
    "in a lambda": "auto g = [&] { bool f; if (x[0] > 0) f = true; return f; };"
    " y[0] = g() ? 1 : 2;",
    "all of": "bool all; for (int i = 0; i < 32; ++i) all &= x[i] < 0; y[0] = all ? 1 : 2;",
    "any of": "bool any; for (int i = 0; i < 32; ++i) any |= x[i] > 0; y[0] = any ? 1 : 2;",
    "shared": "__shared__ bool f; if (x[0] > 0) f = true; y[0] = f ? 1 : 2;",
    "a member in shared memory": "__shared__ struct { char a, b, c; bool f; } s;"
    " if (x[0] > 0) s.f = true; y[0] = s.f ? 1 : 2;",
}
ALIKE = {"reset in a branch", "as a number", "beside one with a value", "any of"}
"""Flags that are seen in the way that others are."""


@pytest.mark.slow
@pytest.mark.parametrize("name", nightly(FLAGS, ALIKE))
def test_a_flag_without_a_value_is_seen(is_seen, each_compiler, name):
    assert is_seen(each_compiler, FLAGS[name])


PARTS = {
    "an element": "bool f[4]; if (x[0] > 0) f[1] = true; y[0] = f[1] ? 1 : 2;",
    "a member": "struct { bool f; int n; } s; if (x[0] > 0) s.f = true; y[0] = s.f ? 1 : 2;",
    "a last member": "struct { char a, b, c; bool f; } s; s.a = 1; if (x[0] > 0) s.f = true;"
    " y[0] = s.f ? 1 : 2;",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", PARTS)
def test_a_flag_in_an_array_or_structure_is_seen(is_seen, runner, name):
    assert is_seen(runner, PARTS[name])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("void f(bool a, int b) { g(a, b); }", False),
        ("template <bool A> __device__ int f(int (*g)(int), bool a, bool b);", False),
        ("void f(bool a, int b) { bool c[2]; }", True),
        ("struct S { bool a; }; void f(bool a, S b) {}", True),
        ("void f() { for (bool a, b; a;) {} }", True),
        ("void f() { g([&](bool a, int b) { bool c[2]; return a; }, 1); }", True),
    ],
)
def test_only_flags_that_have_no_value_need_another_build(text, expected):
    assert needs_zeros(text, "") == expected


@pytest.mark.slow
@pytest.mark.parametrize("place", [0, 1, 2, 3, 17])
@pytest.mark.parametrize(
    ("what", "expected"),
    [("w[P] = fmaxf(w[P], x[0]); y[0] = w[P];", -8), ("y[0] = fminf(w[P], x[0]);", -8)],
)
def test_every_place_of_a_workspace_is_seen_by_a_maximum_and_a_minimum(
    three_runs, runner, what, expected, place
):
    results = three_runs(runner, what.replace("P", str(place)))
    assert any(result != expected for result in results)


@pytest.mark.parametrize(
    "text",
    [
        "void f() { bool a@; }",
        "void f() { bool a@, b = true, c@; volatile bool d@; }",
        "void f() { if (x) { bool a@;\n } for (;;) { bool b@; } }",
        "struct S { bool a; void f() { bool b@; } bool c[2]; };",
        "void f() { struct { bool a, b; } s; bool c@; }",
        "void f() { __shared__ bool a; static bool b; extern bool c; const bool d = 1; }",
        "bool a; __device__ bool b; namespace n { bool c; }",
        "void f(bool a, bool b) { bool c[2], *d, e@; bool g = h(a, b), i{}; }",
        'void f() { /* bool a; */ const char* s = "bool b;"; } // bool c;',
        "void f() { auto g = [&](bool a) { bool b@; }; }",
        "template <bool a> struct S { union { bool b; int c; }; };",
    ],
)
def test_only_a_flag_of_a_function_gets_a_value(text):
    assert with_values(text.replace("@", "")) == text.replace("@", UNSET)
