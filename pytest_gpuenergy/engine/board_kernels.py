"""The kernels that every board of a run measures, so that the boards can be compared.

They belong to this package, so that any project has them: one that computes and one that copies.
Boards of one model get the same ones; emulated cards get small ones, because the host runs them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from pytest_gpuenergy.devices import Device
from pytest_gpuenergy.kernels import Kernel, Launch, Origin
from pytest_gpuenergy.record import peaks_of
from pytest_gpuenergy.workloads import Array, Contract, ErrorBound, Tensor, Workload

ORIGIN = "board-anchor"
"""Of these kernels, as `KernelInfo.origin`."""

_THREADS = 256
_ROTATIONS = 512
_COS, _SIN = 0.8, 0.6  # in float32 the product of the rotations stays within 1e-5 of a rotation

_ROTATE = f"""
extern "C" __global__ void __launch_bounds__({_THREADS}) rotate(const float* x, float* y) {{
  int i = 2 * (blockIdx.x * blockDim.x + threadIdx.x);
  float a = x[i], b = x[i + 1];
  for (int k = 0; k < {_ROTATIONS}; ++k) {{
    float c = {_COS}f * a - {_SIN}f * b;
    b = {_SIN}f * a + {_COS}f * b;
    a = c;
  }}
  y[i] = a;
  y[i + 1] = b;
}}
"""
_SCALE = f"""
extern "C" __global__ void __launch_bounds__({_THREADS}) scale(const float* x, float* y) {{
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  y[i] = 0.75f * x[i];
}}
"""

_BLOCKS = 2112  # 8 blocks on each of 132 multiprocessors at a time, twice
_EMULATED_BLOCKS = 264
_L2_TIMES = 2  # the arrays of `scale` take so many times the L2
_USUAL_L2_BYTES = 50 << 20
_MIB = 1 << 20


class BoardKernel(NamedTuple):
    """A kernel with what it computes."""

    kernel: Kernel
    workload: Workload


def board_kernels(device: Device) -> tuple[BoardKernel, ...]:
    """The kernels for a card's model: ``rotate`` in registers, ``scale`` in the device memory.

    On an H200 a launch of either takes some 20 µs to 40 µs.
    """
    peaks = peaks_of(device.name)
    l2_bytes = _USUAL_L2_BYTES if peaks is None else peaks.l2_bytes
    copied = -(-_L2_TIMES * l2_bytes // 2 // _MIB) * _MIB // 4 // _THREADS
    rotating = _BLOCKS
    if device.emulated:
        rotating = copied = _EMULATED_BLOCKS
    return (
        _made("rotate", _ROTATE, rotating, 2, 6 * _ROTATIONS // 2, _rotated),
        _made("scale", _SCALE, copied, 1, 1, lambda inputs: {"y": np.multiply(inputs["x"], 0.75)}),
    )


def _made(
    name: str, source: str, blocks: int, per_thread: int, flops: int, compute: object
) -> BoardKernel:
    elements = blocks * _THREADS * per_thread
    tensors = (
        Tensor("x", (elements,), "float32", "input"),
        Tensor("y", (elements,), "float32", "output"),
    )
    rounding = 1e-3 if name == "rotate" else 1e-6
    workload = Contract(
        f"board-{name}",
        tensors,
        compute,  # type: ignore[arg-type]
        flops=elements * flops,
        bound=ErrorBound(rounding, rounding),
    )
    launch = Launch(name, (blocks, 1, 1), (_THREADS, 1, 1), ("x", "y"))
    return BoardKernel(Kernel(source, (launch,), origin=Origin(ORIGIN)), workload)


def _rotated(inputs: Mapping[str, Array]) -> dict[str, Array]:
    """The product of all rotations at once, by the constants as float32 has them."""
    x = inputs["x"]
    factor = complex(np.float32(_COS), np.float32(_SIN)) ** _ROTATIONS
    rotated = np.multiply(x[0::2] + np.multiply(x[1::2], 1j), factor)
    y = np.empty_like(x)
    y[0::2], y[1::2] = rotated.real, rotated.imag
    return {"y": y}
