"""``wgmma``: where its operands lie, what it computes, and when."""

from __future__ import annotations

import numpy as np
import pytest
import wgmma_kernels as texts
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pytest_gpuenergy.workloads.workload import Scalar

pytestmark = pytest.mark.slow

BYTES = 49152
B_AT = 16384
SOURCE = """{common}{products}
__global__ void __launch_bounds__(128) k(const uint32_t* x, const float* c, float* y,
    int a_leading, int a_stride, int a_swizzle, int b_leading, int b_stride, int b_swizzle,
    int form, int accumulate) {{
  extern __shared__ __align__(1024) uint32_t s[];
  for (int i = threadIdx.x; i < {bytes} / 4; i += 128) s[i] = x[i];
  asm volatile("fence.proxy.async;" ::: "memory");
  __syncthreads();
  float d[{count}];
  for (int k = 0; k < {count}; ++k) d[k] = c[threadIdx.x * {count} + k];
  uint64_t a = descriptor(shared_address(s), a_leading, a_stride, a_swizzle);
  uint64_t b = descriptor(shared_address(s) + {b_at}, b_leading, b_stride, b_swizzle);
  fence();
  {calls}
  commit();
  wait<0>();
  store<{columns}>(d, y);
}}"""
FORMS = [(1, 1, 0, 0), (1, 1, 1, 0), (1, -1, 0, 1), (-1, 1, 1, 1)]


def _source(columns, kind):
    forms = FORMS[:1] if kind == "tf32" else FORMS
    products = "".join(
        texts.product(f"p{k}", columns, kind, flags=flags) for k, flags in enumerate(forms)
    )
    calls = " ".join(f"if (form == {k}) p{k}(d, a, b, accumulate);" for k in range(len(forms)))
    return SOURCE.format(common=texts.COMMON, products=products, bytes=BYTES, b_at=B_AT,
                         count=columns // 2, columns=columns, calls=calls)  # fmt: skip


def _held(matrix):
    """Which elements of a result each thread holds, in the order of its registers."""
    thread, k = np.meshgrid(np.arange(128), np.arange(matrix.shape[1] // 2), indexing="ij")
    row = thread // 32 * 16 + thread % 32 // 4 + k // 2 % 2 * 8
    return matrix[row, k // 4 * 8 + thread % 4 * 2 + k % 2]


@settings(max_examples=12, deadline=None,
          suppress_health_check=[HealthCheck.function_scoped_fixture])  # fmt: skip
@pytest.mark.parametrize(("columns", "kind"), [(8, "bf16"), (256, "bf16"), (72, "f16"), (40, "tf32")])
@given(data=st.data())
def test_products_of_matrices_in_shared_memory(run, columns, kind, data):
    form = data.draw(st.integers(0, 0 if kind == "tf32" else 3))
    a_scale, b_scale, *transposed = FORMS[form]
    accumulate = data.draw(st.booleans())
    swizzles = data.draw(st.tuples(*[st.sampled_from(sorted(texts.SWIZZLES))] * 2))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    depth, itemsize = texts.DEPTHS[kind], 4 if kind == "tf32" else 2
    image = rng.integers(0, 2**32, BYTES // 4, np.uint32).view(f"<u{itemsize}")
    scalars, operands = [], []
    for name, rows, start, swizzle, turned in zip("ab", (64, columns), (0, B_AT), swizzles,
                                                  transposed, strict=True):  # fmt: skip
        gap = data.draw(st.integers(0, 1)) if rows == 64 else 0
        lay, size = texts.layout(swizzle, rows, depth, itemsize, transposed=bool(turned), gap=gap)
        assert size <= (B_AT if name == "a" else BYTES - B_AT)
        matrix = rng.integers(-4, 5, (rows, depth)).astype("<f4")
        at = texts.offsets(lay, rows, depth, itemsize, start)
        image[at // itemsize] = texts.encoded(matrix, kind)
        operands.append(matrix)
        sizes = (lay.leading, lay.stride, texts.SWIZZLES[swizzle])
        scalars += [Scalar(f"{name}{k}", "int32", one) for k, one in enumerate(sizes)]
    scalars += [Scalar("form", "int32", form), Scalar("accumulate", "int32", int(accumulate))]
    c = rng.integers(-99, 100, (64, columns)).astype("<f4")
    inputs = {"x": image.view("<u4"), "c": np.ascontiguousarray(_held(c))}
    y = run(_source(columns, kind), inputs, {"y": (64 * columns, "float32")}, block=128,
            shared_bytes=BYTES, scalars=scalars,
            arguments=("x", "c", "y", *(one.name for one in scalars)))["y"]  # fmt: skip
    expected = a_scale * b_scale * operands[0] @ operands[1].T + accumulate * c
    np.testing.assert_array_equal(y.reshape(64, columns), expected)
