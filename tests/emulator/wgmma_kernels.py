"""CUDA text with ``wgmma``, and matrices as it finds them in shared memory, by the PTX ISA."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pytest_gpuenergy.workloads import rounded_to

ROWS = 64
DEPTHS = {"bf16": 16, "f16": 16, "tf32": 8, "e4m3": 32, "e5m2": 32}
BYTES = {kind: 32 // depth for kind, depth in DEPTHS.items()}
TURNED = ("bf16", "f16")
"""The types whose matrices may be transposed in shared memory."""
SWIZZLES = {0: 0, 128: 1, 64: 2, 32: 3}


def product(name, columns, kind, *, a="descriptor", flags=(1, 1, 0, 0)):
    """Return a device function name(d, a, b, accumulate); d is an array of columns / 2 floats."""
    count = columns // 2
    d = ", ".join(f"%{k}" for k in range(count))
    outputs = ", ".join(f'"+f"(d[{k}])' for k in range(count))
    if a == "descriptor":
        parameter, operand, given, used = "uint64_t a", f"%{count}", '"l"(a)', 1
    else:
        parameter, used = "const uint32_t* a", 4
        operand = "{" + ", ".join(f"%{count + k}" for k in range(4)) + "}"
        given = ", ".join(f'"r"(a[{k}])' for k in range(4))
    transposes = {"descriptor": 2, "registers": 1}[a] if kind in TURNED else 0
    constants = ", ".join(map(str, [*flags[:2], *flags[4 - transposes :]]))
    return f"""
__device__ __forceinline__ void {name}(float (&d)[{count}], {parameter}, uint64_t b,
                                       int accumulate) {{
  asm volatile("{{\\n.reg .pred p;\\nsetp.ne.b32 p, %{count + used + 1}, 0;\\n"
    "wgmma.mma_async.sync.aligned.m64n{columns}k{DEPTHS[kind]}.f32.{kind}.{kind} {{{d}}}, "
    "{operand}, %{count + used}, p, {constants};\\n}}\\n"
    : {outputs} : {given}, "l"(b), "r"(accumulate));
}}"""


COMMON = """
#include <cstdint>
__device__ __forceinline__ void fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int N> __device__ __forceinline__ void wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" :: "n"(N) : "memory");
}
__device__ __forceinline__ uint32_t shared_address(const void* p) {
  return (uint32_t)__cvta_generic_to_shared(p);
}
__device__ __forceinline__ uint64_t field(uint64_t bytes) { return (bytes & 0x3ffff) >> 4; }
__device__ __forceinline__ uint64_t descriptor(uint32_t at, int leading, int stride, int swizzle) {
  return field(at) | field(leading) << 16 | field(stride) << 32 | (uint64_t)swizzle << 62;
}
template <int columns>
__device__ __forceinline__ void store(const float (&d)[columns / 2], float* y) {
  int row = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4;
#pragma unroll
  for (int k = 0; k < columns / 2; ++k)
    y[(row + k / 2 % 2 * 8) * columns + k / 4 * 8 + threadIdx.x % 4 * 2 + k % 2] = d[k];
}
"""


@dataclass(frozen=True)
class Layout:
    """The layout of a matrix of rows x depth in shared memory.

    `leading`, `stride` and the width of the `swizzle` are in bytes.
    """

    swizzle: int
    transposed: bool
    leading: int
    stride: int


def layout(swizzle, rows, depth, itemsize, *, transposed, gap=0):
    """Return a layout without overlaps and its bytes; between bricks are `gap` unused ones."""
    width = max(swizzle, 16)
    brick = 8 * width  # eight rows of the pattern
    in_row = width // itemsize
    if not transposed and swizzle:
        leading, stride = 16, brick * (1 + gap)  # the leading offset does not count
        return Layout(swizzle, transposed, leading, stride), rows // 8 * stride
    if not transposed:
        stride = brick * (1 + gap)
        leading = rows // 8 * stride
        return Layout(swizzle, transposed, leading, stride), depth // in_row * leading
    inner = brick * (1 + gap)
    outer = depth // 8 * inner
    across = -(-rows // in_row)
    pair = (inner, outer) if not swizzle else (outer, inner)
    return Layout(swizzle, transposed, *pair), across * outer


def offsets(lay, rows, depth, itemsize, start=0):
    """Return the address of each element in bytes, by row and depth."""
    row, k = np.meshgrid(np.arange(rows), np.arange(depth), indexing="ij")
    width = max(lay.swizzle, 16)
    in_row = width // itemsize
    if lay.transposed:
        outer, inner = (lay.stride, lay.leading) if not lay.swizzle else (lay.leading, lay.stride)
        at = row % in_row * itemsize + row // in_row * outer + k % 8 * width + k // 8 * inner
    else:
        at = row % 8 * width + row // 8 * lay.stride + k % in_row * itemsize
        at = at + (k // in_row * lay.leading if not lay.swizzle else 0)
    at = at + start
    return at ^ ((at >> 7) % (width // 16) << 4)


def encoded(values, kind):
    """Return elements that are exact in `kind` as unsigned integers."""
    if kind == "f16":
        return values.astype("<f2").view("<u2")
    if kind in ("e4m3", "e5m2"):
        dtype = {"e4m3": "float8_e4m3fn", "e5m2": "float8_e5m2"}[kind]
        return rounded_to(values.astype(np.float64), dtype)
    words = values.astype("<f4").view("<u4")
    return (words >> 16).astype("<u2") if kind == "bf16" else words


PIPELINE = """
#include <cuda.h>
__device__ __forceinline__ void init(uint64_t* barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;"
    :: "r"(shared_address(barrier)), "r"(arrivals) : "memory");
}
__device__ __forceinline__ void arrive(uint64_t* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];"
    :: "r"(shared_address(barrier)) : "memory");
}
__device__ __forceinline__ void expect(uint64_t* barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
    :: "r"(shared_address(barrier)), "r"(bytes) : "memory");
}
__device__ __forceinline__ void wait_parity(uint64_t* barrier, int parity) {
  asm volatile("{\\n.reg .pred p;\\nagain:\\n"
    "mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\\n@p bra done;\\nbra again;\\ndone:\\n}"
    :: "r"(shared_address(barrier)), "r"(parity) : "memory");
}
__device__ __forceinline__ void load_tile(void* to, const CUtensorMap* map, int x, int y,
                                          uint64_t* barrier) {
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
    " [%0], [%1, {%3, %4}], [%2];"
    :: "r"(shared_address(to)), "l"(map), "r"(shared_address(barrier)), "r"(x), "r"(y) : "memory");
}
__device__ __forceinline__ void store_tile(const CUtensorMap* map, int x, int y, const void* from) {
  asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%2, %3}], [%1];"
    :: "l"(map), "r"(shared_address(from)), "r"(x), "r"(y) : "memory");
}
"""
