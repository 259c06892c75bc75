"""Memory that a kernel takes itself."""

import pytest

from pytest_gpuenergy.support import KernelFault

pytestmark = pytest.mark.slow

TAKEN = [
    "float* p = new float[8]; p[t % 8] = t; y[t] = p[t % 8]; delete[] p;",
    "float* p = (float*)malloc(32); p[7] = t; y[t] = p[7]; free(p);",
    "struct S { float a = 1; }; S* p = new S; y[t] = p->a + t - 1; delete p;",
    "__shared__ float* p; if (!t) p = new float[64]; __syncthreads(); p[t] = t; __syncthreads();"
    " y[t] = p[t]; __syncthreads(); if (!t) delete[] p;",
    "for (int k = 0; k < 100; ++k) { char* p = (char*)malloc(4096); p[0] = k; free(p); } y[t] = t;",
    "void* p = malloc(9 << 20); y[t] = p ? -1 : t; free(p);",
    "int free = t; y[t] = free;",
]


@pytest.mark.parametrize("body", TAKEN)
def test_a_kernel_may_take_memory(check_races, run_orders, body):
    assert check_races(body, grid=3).launches[0].blocks_run == 3
    for result in run_orders(body, grid=3):
        assert (result["y"][:64] == range(64)).all()


@pytest.mark.parametrize(
    ("body", "outcome"),
    [
        ("float* p = new float[8]; p[8] = x[t]; __syncthreads(); y[t] = p[8];", "correctness"),
        ("float* p = new float[8]; y[t] = p[-1];", "correctness"),
        ("float* p = new float[8]; delete[] p; y[t] = p[0];", "correctness"),
        ("float* p = (float*)malloc(6); y[t] = p[1];", "correctness"),
        ("void* p = malloc(8); free(p); free(p); y[t] = 1;", "runtime"),
        ("free(y);", "runtime"),
    ],
)
def test_it_must_not_leave_that_memory(fault_of, body, outcome):
    assert fault_of(body).outcome == outcome


def test_a_heap_that_is_used_up_gives_null(run_orders):
    with pytest.raises(KernelFault, match="illegal address"):
        run_orders("volatile float* p = new float[1 << 20]; p[t] = x[t]; y[t] = p[t];")
