"""Pairs of kernels for gpuenergy ab: the same work, and at least 1 % more of it.

The first revision has MORE = 0 everywhere; the second has another comment, and MORE = 1 in the
kernels called "more". There each 50th block reads another part of the memory as well, each
hundredth does its arithmetic twice, or each thread takes 1 % more steps: about 2 % in EDP.
"""

import os

import numpy as np
import pytest

from pytest_gpuenergy.workloads import Contract, Tensor

MORE = 0
NOTE = "one"
SMALL = bool(os.environ.get("AA_SMALL"))  # for the emulated GPU
KERNEL = """
// NOTE
extern "C" __global__ void kernel(const float* __restrict__ x, float* __restrict__ y) {
  SHARED
  const int i = blockIdx.x * blockDim.x + threadIdx.x, t = threadIdx.x;
  BODY
  if (AGAIN && blockIdx.x % 50 < MORE)
    for (int k = i; k < COUNT; k += gridDim.x * blockDim.x)
      ((const volatile float*)x)[(k + COUNT / 2) % COUNT];
}
"""
ROW = """
    float sum = 0;
    for (int k = 0; k < 8; k++) sum += x[blockIdx.x * 2048 + k * 256 + t];
    part[t] = sum;
    __syncthreads();
    for (int s = 128; s; s /= 2) {
      if (t < s) part[t] += part[t + s];
      __syncthreads();
    }
    if (t == 0) y[blockIdx.x] = part[0];
"""
TRANSPOSE = """
    const int row = blockIdx.x / (SIDE / 16) * 16, column = blockIdx.x % (SIDE / 16) * 16;
    tile[t / 16][t % 16] = x[(row + t / 16) * SIDE + column + t % 16];
    __syncthreads();
    y[(column + t / 16) * SIDE + row + t % 16] = tile[t % 16][t / 16];
    __syncthreads();
"""
CHAIN = """
    float v = x[i], w = v;
    for (int k = 0; k < 1000 + 10 * MORE; k++) {
      w = fmaf(w, 0.5f, v);
      w = fminf(w, 4.f * fabsf(v));
    }
    y[i] = fmaxf(v, -fabsf(w));
"""
SIDE = 256 if SMALL else 4096


def stencil(x):
    return x + np.roll(x, 1) + np.roll(x, -1)


def transposed(x):
    return x.reshape(SIDE, SIDE).T.reshape(-1)


# Threads, inputs, outputs, shared memory, text, reference.
KINDS = {
    "copy64mib": (1 << 24, 1 << 24, 1 << 24, "", "y[i] = 2 * x[i];", lambda x: 2 * x),
    "copy8mib": (1 << 21, 1 << 21, 1 << 21, "", "y[i] = 2 * x[i];", lambda x: 2 * x),
    "stencil": (
        1 << 23,
        1 << 23,
        1 << 23,
        "",
        "y[i] = x[i] + x[(i + 1) % COUNT] + x[(i + COUNT - 1) % COUNT];",
        stencil,
    ),
    "rows": (
        1 << 21,
        1 << 24,
        1 << 13,
        "__shared__ float part[256];",
        ROW,
        lambda x: x.reshape(-1, 2048).sum(axis=1),
    ),
    "transpose": (
        SIDE * SIDE,
        SIDE * SIDE,
        SIDE * SIDE,
        "__shared__ float tile[16][17];",
        TRANSPOSE,
        transposed,
    ),
    "exp": (
        1 << 23,
        1 << 23,
        1 << 23,
        "",
        """float v = x[i];
        for (int k = 0; k < 40 + 40 * (blockIdx.x % 100 < MORE); k++)
          v = k == 40 ? expf(-x[i] * x[i]) : expf(-v * v);
        y[i] = v;""",
        None,
    ),
    "chain": (1 << 20, 1 << 20, 1 << 20, "", CHAIN, lambda x: x),
    "gather": (
        1 << 22,
        1 << 22,
        1 << 22,
        "",
        "y[i] = x[(int)((i * 2654435761u) % COUNT)];",
        lambda x: x[(np.arange(x.size, dtype=np.uint64) * 2654435761 % 2**32 % x.size)],
    ),
}


def repeated_exp(x):
    for _ in range(40):
        x = np.exp(-x * x)
    return x


def text(name, shared, body, count, more):
    number = str(MORE if more else 0)
    source = KERNEL.replace("AGAIN", str(int(name not in ("chain", "exp"))))
    source = source.replace("SHARED", shared).replace("BODY", body).replace("NOTE", NOTE)
    return source.replace("MORE", number).replace("SIDE", str(SIDE)).replace("COUNT", str(count))


@pytest.mark.parametrize("more", [False, True], ids=["same", "more"])
@pytest.mark.parametrize("name", KINDS)
def test_pair(name, more, powercap, load_kernel, energy_benchmark):
    threads, read, written, shared, body, reference = KINDS[name]
    divisor = 1024 if SMALL and name != "transpose" else 1
    threads, read, written = (max(256, n // divisor) for n in (threads, read, written))
    if name == "rows":
        threads, written = read // 8, read // 2048
    contract = Contract(
        name,
        (Tensor("x", (read,), "float32", "input"), Tensor("y", (written,), "float32", "output")),
        lambda inputs: {"y": (reference or repeated_exp)(inputs["x"])},
        flops=4000 * threads if name == "chain" else threads,
        init={"x": (0.5, 2.0)},
    )
    kernel = load_kernel(
        text(name, shared, body, read, more),
        entry="kernel",
        grid=threads // 256,
        block=256,
        arguments=("x", "y"),
    )
    energy_benchmark(kernel, workload=contract, label="more" if more else "same")
