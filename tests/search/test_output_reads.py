"""Which texts may read what their outputs held before a launch."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from pytest_gpuenergy.search import (
    MOVES,
    KernelSpec,
    LaunchPlan,
    TensorSpec,
    outputs_read,
    read_spec,
)

KERNELS = Path(__file__).parents[2] / "bench/search/kernels"
CUDA = """
template <typename T> __device__ void put(T* to, int i, T value) {{ to[i] = value; }}
__device__ float same(const float* from) {{ return *from; }}
__device__ void deep(float* p) {{ if (same(p) > 1.0f) p[0] = 1.0f; }}
{top}
__global__ void f(const float* x, float* y, int n) {{
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  {body}
}}
"""
TRITON = """
import triton
import triton.language as tl

@triton.jit
def put(to, at, value):
    tl.store(to + at, value)

@triton.jit
def get(at):
    return tl.load(at)

@triton.jit
def f(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    {body}
"""
SPEC = KernelSpec(
    name="f",
    language="cuda",
    source="",
    entry="f",
    launch=LaunchPlan((1,), (32,)),
    arguments=("x", "y", "n"),
    tensors=(TensorSpec("x", ("N",)), TensorSpec("y", ("N",), role="output")),
    sizes=({"N": 64},),
)


def test_an_output_in_a_struct_counts_as_read_by_other_texts():
    spec = replace(SPEC, source=CUDA.format(body="", top=""), arguments=(("x", "y"), "n"))
    assert not outputs_read(spec.baseline, spec)
    assert outputs_read(replace(spec.baseline, source=spec.source + " "), spec) == {"y"}
    inputs = replace(spec, arguments=(("x", "n"), "y"))
    assert not outputs_read(replace(spec.baseline, source=CUDA.format(body=";", top="")), inputs)


def read_by_cuda(body: str, top: str = "") -> bool:
    state = replace(SPEC.baseline, source=CUDA.format(body=body, top=top))
    return bool(outputs_read(state, SPEC))


def read_by_triton(body: str) -> bool:
    source = TRITON.format(body=body)
    return bool(outputs_read(replace(SPEC.baseline, language="triton", source=source), SPEC))


@pytest.mark.parametrize(
    "body",
    [
        "y[i] = x[i];",
        "y[i] += x[i];",
        "float* to = y + i; *to = x[i]; to += n; *to++ = 1.0f;",
        "float* to = &y[i]; to[0] = 1.0f; to = y; to[1] = 2.0f;",
        "reinterpret_cast<float4*>(y)[i] = make_float4(1, 2, 3, 4);",
        "((float2*)(y + i))->x = 1.0f;",
        "if (reinterpret_cast<size_t>(&y[i]) % 16 == 0) *reinterpret_cast<float4*>(y + i) = {};",
        "put<float>(y, i, x[i]); put(y + n, i, 1.0f);",
        "__stcs(&y[i], x[i]); atomicAdd(y + i, x[i]);",
        "wmma::store_matrix_sync(y + i, sums, n, wmma::mem_row_major);",
        "float* to = i < n ? y + i : y; *to = 1.0f;",
        "for (int k = 0; k < n; ++k) y[k] = same(x);",
    ],
)
def test_stores_are_no_reading(body):
    assert not read_by_cuda(body)


@pytest.mark.parametrize(
    "body",
    [
        "if (y[i] != 2 * x[i]) y[i] = 2 * x[i];",
        "float before = y[i]; y[i] = before;",
        "float& there = y[i]; if (there > 1.0f) there = 1.0f;",
        "auto* to = y; auto other = to + i; y[i] = other[0];",
        "const float4* to = reinterpret_cast<const float4*>(y); float4 v = *to;",
        "y[i] = __ldg(y + i);",
        "y[i] = same(y + i);",
        "deep(y);",
        "float before = atomicAdd(&y[i], 0.0f);",
        "if (atomicCAS((int*)y, 0, 1) == 0) return;",
        "float before = (y[i] += 0.0f);",
        "x[(int)y[i]];",
        "size_t at = (size_t)y; y[i] = *(float*)at;",
        "if ((size_t)y % 4294967296 > 9) return;",
        "float* both[2] = {(float*)x, y}; y[i] = both[1][i];",
        "auto f = [q = y](int k) { return q[k]; }; y[i] = f(i);",
        "while (y < x) ++y;",
        'float v; asm("ld.global.f32 %0, [%1];" : "=f"(v) : "l"(y)); y[i] = v;',
        'asm("ld.param.u64 %0, [f_param_1];" : "=l"(n)); y[i] = 1.0f;',
        r"y[i] = \u0079[i];",
        "y[i] = OLD;",
    ],
)
def test_anything_else_may_be(body):
    assert read_by_cuda(body, top="#define OLD (y[0])" if "OLD" in body else "")


def test_what_cannot_be_parsed_or_is_not_there_may_be():
    assert read_by_cuda("y[i] = = 1;")
    assert outputs_read(replace(SPEC.baseline, source="__global__ void g(float* y) {}"), SPEC)
    short = "__global__ void f(const float* x) {}"
    assert outputs_read(replace(SPEC.baseline, source=short), SPEC) == {"y"}


@pytest.mark.parametrize(
    "body",
    [
        "tl.store(y + i, tl.load(x + i, mask=i < n), mask=i < n)",
        "to = y + i\n    to += BLOCK\n    tl.store(to[None, :], 1.0)",
        "to = tl.make_block_ptr(base=y, shape=(n,), strides=(1,), offsets=(0,), "
        "block_shape=(BLOCK,), order=(0,))\n    to = tl.advance(to, (BLOCK,))\n"
        "    tl.store(to, tl.zeros((BLOCK,), y.dtype.element_ty))",
        "put(y, i, 1.0)\n    put(to=y + n, at=i, value=get(x + i))",
        "tl.atomic_add(y + i, 1.0)",
        "to = tl.make_tensor_descriptor(y, [n], [1], [BLOCK])\n    to.store([0], 1.0)",
    ],
)
def test_stores_of_triton_are_no_reading(body):
    assert not read_by_triton(body)


@pytest.mark.parametrize(
    "body",
    [
        "tl.store(y + i, tl.load(y + i))",
        "to = y + i\n    other = to\n    tl.store(y + i, tl.load(other))",
        "put(y, i, get(y + i))",
        "before = tl.atomic_add(y + i, 0.0)",
        "to = tl.make_tensor_descriptor(y, [n], [1], [BLOCK])\n    tl.store(y + i, to.load([0]))",
        "pair = (x, y)\n    tl.store(y + i, tl.load(pair[1] + i))",
        "if y == x:\n        tl.store(y + i, 1.0)",
        "y[i] = = 1",
    ],
)
def test_anything_else_in_triton_may_be(body):
    assert read_by_triton(body)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        *("layernorm", "softmax_triton"),
        *(
            pytest.param(path.stem, marks=pytest.mark.thorough)
            for path in sorted(KERNELS.glob("*.json"))
            if path.stem not in ("layernorm", "softmax_triton")
        ),
    ],
)
def test_no_rule_has_a_kernel_read_its_outputs(name):
    spec = read_spec(KERNELS / f"{name}.json")
    assert not outputs_read(spec.baseline, spec)
    moves = [move for move in MOVES if spec.language in move.languages]
    found = [one.state for move in moves for one in move.applications(spec.baseline, spec)]
    assert [state for state in found if outputs_read(state, spec)] == []
