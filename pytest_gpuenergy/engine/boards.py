"""Measures the same few kernels on each board of a run, at each setpoint, to compare boards.

The energy of a kernel differs by some percent between boards of one model. The figures of these
kernels show by how much; `report.Boards` derives each board's gain from them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace

from pytest_gpuenergy.control import Setpoint
from pytest_gpuenergy.devices import Device
from pytest_gpuenergy.engine.harness import Harness, Subject, describe_kernel, describe_workload
from pytest_gpuenergy.kernels import Kernel, Launch, Origin
from pytest_gpuenergy.record import peaks_of
from pytest_gpuenergy.report import BOARD_CHECK, RunFolder
from pytest_gpuenergy.support import GpuEnergyError
from pytest_gpuenergy.workloads import Array, Contract, ErrorBound, Tensor, Workload

_TRIES = 2
"""The most measurements of a kernel whose figures are flagged."""

ORIGIN = "board-anchor"
"""The `KernelInfo.origin` of these kernels."""

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

_BLOCKS = 2112
"""The blocks of ``rotate``: each of an H200's 132 multiprocessors holds 8 at a time, twice."""
_EMULATED_BLOCKS = 264
"""The blocks of both kernels on an emulated GPU, where they run on the host."""
_L2_TIMES = 2
"""The size of the arrays of ``scale`` relative to the L2, so that they come from device memory."""
_USUAL_L2_BYTES = 50 << 20
"""The size of the L2 that is assumed for a model whose peaks are unknown."""
_MIB = 1 << 20


class BoardWatch:
    """Measures the kernels that compare boards, on the GPU of one process.

    Args:
        device: the GPU.
        harness: the harness that measures on it.
        folder: the run's folder, to which each measurement is written immediately.
    """

    def __init__(self, device: Device, harness: Harness, folder: RunFolder) -> None:
        self._device = device
        self._harness = harness
        self._folder = folder
        self._done: set[tuple[Setpoint, Setpoint]] = set()

    def ensure(self, subject: Subject) -> None:
        """Measure the kernels at the applied setpoint of ``subject``, unless the run has done so.

        If a kernel fails, the run goes on, with a measurement that has an error but no figures.

        Raises:
            ReportError: a measurement cannot be written.
        """
        place = (subject.setpoint, subject.enforced)
        if place in self._done:
            return
        self._done.add(place)
        # Another process may have this GPU too, or have had it before the run was resumed.
        earlier = self._folder.board_checks()
        for board_kernel in board_kernels(self._device):
            (label,) = {launch.entry for launch in board_kernel.kernel.launches}
            node_id = f"board::{label}-{subject.setpoint.label}-{self._device.uuid}"
            own = Subject(node_id, label, subject.setpoint, subject.enforced)
            if any(
                m.node_id == own.node_id
                and m.kernel.digest == board_kernel.kernel.digest
                and m.measured
                and not m.validity
                and Setpoint.enforced_for(m) == own.enforced
                for m in earlier
            ):
                continue
            kernel, workload = board_kernel
            for _ in range(_TRIES):
                try:
                    check = self._harness.measure_again(kernel, workload, own)
                except (GpuEnergyError, OSError) as error:  # items meet it too, and report it
                    info = describe_workload(workload)
                    draft = self._harness.draft_of_callable(info, own, ORIGIN)
                    check = replace(
                        draft,
                        kernel=describe_kernel(kernel, label),
                        outcome="runtime",
                        error=str(error),
                    )
                self._folder.append(check, BOARD_CHECK)
                if not (check.measured and check.validity):
                    break


class BoardKernel(NamedTuple):
    """A kernel that compares boards, with its workload."""

    kernel: Kernel
    workload: Workload


def board_kernels(device: Device) -> tuple[BoardKernel, ...]:
    """Return the kernels for a card's model.

    ``rotate`` works in registers, ``scale`` in device memory. On an H200 a launch of either takes
    some 20 µs to 40 µs.
    """
    peaks = peaks_of(device.name)
    l2_bytes = _USUAL_L2_BYTES if peaks is None else peaks.l2_bytes
    copied = -(-_L2_TIMES * l2_bytes // 2 // _MIB) * _MIB // 4 // _THREADS
    rotating = _BLOCKS
    if device.emulated:
        rotating = copied = _EMULATED_BLOCKS
    return (
        _board_kernel("rotate", _ROTATE, rotating, 2, 6 * _ROTATIONS // 2, _rotate_inputs),
        _board_kernel(
            "scale", _SCALE, copied, 1, 1, lambda inputs: {"y": np.multiply(inputs["x"], 0.75)}
        ),
    )


def _board_kernel(
    name: str,
    source: str,
    blocks: int,
    per_thread: int,
    flops: int,
    compute: Callable[[Mapping[str, Array]], dict[str, Array]],
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
        compute,
        flops=elements * flops,
        bound=ErrorBound(rounding, rounding),
    )
    launch = Launch(name, (blocks, 1, 1), (_THREADS, 1, 1), ("x", "y"))
    return BoardKernel(Kernel(source, (launch,), origin=Origin(ORIGIN)), workload)


def _rotate_inputs(inputs: Mapping[str, Array]) -> dict[str, Array]:
    """Apply all rotations at once, with the constants rounded to float32."""
    x = inputs["x"]
    factor = complex(np.float32(_COS), np.float32(_SIN)) ** _ROTATIONS
    rotated = np.multiply(x[0::2] + np.multiply(x[1::2], 1j), factor)
    y = np.empty_like(x)
    y[0::2], y[1::2] = rotated.real, rotated.imag
    return {"y": y}
