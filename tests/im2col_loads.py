"""Loads of pixels by im2col: a kernel that makes one, drawn loads, and their elements."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count, islice
from typing import Any

import numpy as np
from hypothesis import strategies as st

from pytest_gpuenergy.kernels import Im2col, Kernel, Launch, TensorMap
from pytest_gpuenergy.workloads import Array, Scalar

SHARED_BYTES = 32 << 10
DTYPES = ("float16", "float32", "int32")


def _load(rank: int) -> str:
    """Return a statement that loads if `rank` is this one."""
    at = ", ".join(f"%{3 + k}" for k in range(rank))
    offsets = ", ".join(f"%{3 + rank + k}" for k in range(rank - 2))
    operands = [f'"r"(c[{k}])' for k in range(rank)] + [f'"h"(o[{k}])' for k in range(rank - 2)]
    return (
        f'if (rank == {rank}) asm volatile("cp.async.bulk.tensor.{rank}d.shared::cluster.global'
        f'.im2col.mbarrier::complete_tx::bytes [%0], [%1, {{{at}}}], [%2], {{{offsets}}};" :: '
        f'"r"(s), "l"(&map), "r"(b), {", ".join(operands)} : "memory");'
    )


SOURCE = f"""#include <cuda.h>
#include <cstdint>
__global__ void load(const __grid_constant__ CUtensorMap map, uint32_t* y, int rank, int bytes,
                     int c0, int c1, int c2, int c3, int c4, int o0, int o1, int o2) {{
  extern __shared__ __align__(1024) uint32_t box[];
  __shared__ uint64_t full;
  uint32_t s = (uint32_t)__cvta_generic_to_shared(box);
  uint32_t b = (uint32_t)__cvta_generic_to_shared(&full);
  if (!threadIdx.x) {{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" :: "r"(b) : "memory");
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }}
  __syncthreads();
  if (!threadIdx.x) {{
    int c[] = {{c0, c1, c2, c3, c4}};
    uint16_t o[] = {{(uint16_t)o0, (uint16_t)o1, (uint16_t)o2}};
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
      :: "r"(b), "r"(bytes) : "memory");
    {" ".join(_load(rank) for rank in (3, 4, 5))}
  }}
  asm volatile("{{\\n.reg .pred p;\\nagain:\\n"
    "mbarrier.try_wait.parity.shared::cta.b64 p, [%0], 0;\\n@p bra done;\\nbra again;\\ndone:\\n}}"
    :: "r"(b) : "memory");
  for (int i = threadIdx.x; i < bytes / 4; i += blockDim.x) y[i] = box[i];
}}"""


@dataclass(frozen=True)
class Im2colLoad:
    """A load through the map ``map`` of the tensor ``T``.

    Attributes:
        tensor_map: the tensor map.
        first: the coordinates of the first pixel, with its first channel.
        offsets: what is added to the pixels in W, H and D.
    """

    tensor_map: TensorMap
    first: tuple[int, ...]
    offsets: tuple[int, ...]

    @property
    def scalars(self) -> dict[str, Scalar]:
        nbytes = math.prod(self.tensor_map.box) * self.tensor_map.itemsize
        absent = 5 - len(self.first)
        at = (*self.first, *[0] * absent, *self.offsets, *[0] * absent)
        values = (len(self.first), nbytes, *at)
        return {f"i{k}": Scalar(f"i{k}", "int32", value) for k, value in enumerate(values)}

    @property
    def kernel(self) -> Kernel:
        arguments = ("map", "y", *self.scalars)
        launch = Launch("load", (1, 1, 1), (32, 1, 1), arguments, SHARED_BYTES)
        return Kernel(SOURCE, (launch,), tensor_maps=(self.tensor_map,))

    def pixels(self) -> Iterator[tuple[int, ...]]:
        """Yield the pixels that are visited, without the offsets: W, H, D and N of each."""
        walk, sizes = self.tensor_map.im2col, self.tensor_map.dims[1:-1]
        assert walk is not None
        ends = [size + upper for size, upper in zip(sizes, walk.upper, strict=True)]

        def image(start: list[int], k: int) -> Iterator[tuple[int, ...]]:
            if k < 0:
                yield ()
                return
            for at in range(start[k], ends[k], walk.strides[k]):
                for inner in image(start, k - 1):
                    yield (*inner, at)
                start[:k] = walk.lower[:k]

        start = list(self.first[1:-1])
        for n in count(self.first[-1]):
            for pixel in image(start, len(sizes) - 1):
                yield (*pixel, n)
            start[:] = walk.lower

    def box(self, tensor: Array) -> Array:
        """Return the elements of shared memory after the load of ``tensor``, which is flat."""
        dims, (channels, pixels) = self.tensor_map.dims, self.tensor_map.box
        strides = [n // self.tensor_map.itemsize for n in self.tensor_map.strides_bytes]
        rows = np.zeros((pixels, channels), tensor.dtype)
        for row, pixel in zip(rows, islice(self.pixels(), pixels), strict=True):
            at = [place + offset for place, offset in zip(pixel, (*self.offsets, 0), strict=True)]
            if all(0 <= place < dim for place, dim in zip(at, dims[1:], strict=True)):
                start = sum(place * stride for place, stride in zip(at, strides, strict=True))
                channel = self.first[0] + np.arange(channels)
                there = (channel >= 0) & (channel < dims[0])
                row[there] = tensor[start + channel[there]]
        chunks = rows.reshape(-1, 16 // self.tensor_map.itemsize)
        at = np.arange(len(chunks))
        result = np.empty_like(chunks)
        result[at ^ (at >> 3) % max(self.tensor_map.swizzle_bytes // 16, 1)] = chunks
        return result.reshape(-1)


@st.composite
def im2col_loads(draw: Any, *, on_stride: bool = True) -> Im2colLoad:
    """Draw a load of a convolution: its padding, stride, dilation, filter, and first pixel.

    The first channel is a multiple of 16 bytes: an H200 refuses others. Unless the load is
    ``on_stride``, the first pixel may lie anywhere in the bounding box.
    """
    dtype = draw(st.sampled_from(DTYPES))
    item, spatial = np.dtype(dtype).itemsize, draw(st.integers(1, 3))
    swizzle = draw(st.sampled_from((0, 32, 64, 128)))
    channels = (swizzle or 16 * draw(st.integers(1, 5))) // item
    sizes, walks, first, offsets = [], [], [], []
    for _ in range(spatial):
        padding, stride = draw(st.integers(0, 3)), draw(st.integers(1, 3))
        dilation, taps = draw(st.integers(1, 2)), draw(st.integers(1, 3))
        reach = dilation * (taps - 1)
        sizes.append(draw(st.integers(max(1, reach - 2 * padding + 1), 7)))
        walks.append((-padding, padding - reach, stride))
        steps = range(-padding, sizes[-1] + padding - reach, stride if on_stride else 1)
        first.append(draw(st.sampled_from(steps)))
        offsets.append(dilation * draw(st.integers(0, taps - 1)))
    dims = (draw(st.integers(1, 60)), *sizes, draw(st.integers(1, 3)))
    strides, row = [], dims[0] * item
    for dim in dims[1:]:
        strides.append(-(-row // 16) * 16 + 16 * draw(st.integers(0, 1)))
        row = strides[-1] * dim
    lower, upper, steps = zip(*walks, strict=True)
    given = TensorMap(
        "map", "T", dtype, dims, tuple(strides), (channels, draw(st.integers(1, 100))), swizzle,
        Im2col(lower, upper, steps),
    )  # fmt: skip
    piece = 16 // item
    channel = piece * draw(st.integers(-channels // piece - 1, dims[0] // piece + 1))
    return Im2colLoad(given, (channel, *first, draw(st.integers(0, dims[-1]))), tuple(offsets))
