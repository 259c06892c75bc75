"""On a real GPU, an mbarrier waits for the copies of threads that arrive at it with cp.async."""

from __future__ import annotations

import numpy as np
import pytest

from pytest_gpuenergy.engine import verify_on_device
from pytest_gpuenergy.kernels import Kernel, Launch
from pytest_gpuenergy.workloads import Contract, Tensor

pytestmark = pytest.mark.gpu
BLOCKS, THREADS = 512, 128
SOURCE = """#include <cstdint>
__device__ uint32_t at(const void* p) { return (uint32_t)__cvta_generic_to_shared(p); }
__global__ void reverse(const float* x, float* y) {
  __shared__ float s[128];
  __shared__ uint64_t bar;
  int t = threadIdx.x, from = blockIdx.x * 128;
  if (!t) asm volatile("mbarrier.init.shared::cta.b64 [%0], 128;" :: "r"(at(&bar)) : "memory");
  __syncthreads();
  for (int k = 0; k < 4; ++k) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;"
      :: "r"(at(s + t)), "l"(x + (from + 128 * k + t) % 65536) : "memory");
    ARRIVE
    asm volatile("{\\n.reg .pred p;\\nagain:\\n"
      "mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\\n@!p bra again;\\n}"
      :: "r"(at(&bar)), "r"(k & 1) : "memory");
    y[4 * from + 128 * k + t] = s[127 - t];
    __syncthreads();
  }
}"""
ARRIVALS = {
    "expected": 'asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];"'
    ' :: "r"(at(&bar)) : "memory");',
    "more": 'asm volatile("cp.async.mbarrier.arrive.shared::cta.b64 [%0];"'
    ' :: "r"(at(&bar)) : "memory");'
    ' asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" :: "r"(at(&bar)) : "memory");',
}


@pytest.mark.parametrize("arrival", ARRIVALS.values(), ids=ARRIVALS)
def test_what_threads_copy_is_there_after_the_phase(gpu, arrival):
    count = BLOCKS * THREADS

    def reverse(inputs):
        x = inputs["x"].reshape(BLOCKS, THREADS)[:, ::-1]
        block, step = np.indices((BLOCKS, 4))
        return {"y": x[(block + step) % BLOCKS].reshape(-1)}

    workload = Contract(
        "reverse",
        (
            Tensor("x", (count,), "float32", "input"),
            Tensor("y", (4 * count,), "float32", "output"),
        ),
        reverse,
    )
    launch = Launch("reverse", (BLOCKS, 1, 1), (THREADS, 1, 1), ("x", "y"))
    verify_on_device(gpu, Kernel(SOURCE.replace("ARRIVE", arrival), (launch,)), workload)
