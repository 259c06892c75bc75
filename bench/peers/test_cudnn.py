"""cuDNN's float32 convolution through PyTorch, measured like our kernels.

Collected only when its path is named:

    pytest bench/peers --powercap current --gpuenergy-json cudnn.json
    pytest bench/peers --powercap current --tf32 -k case5 --gpuenergy-json cudnn.json

Each memory format is an item. cuDNN tries all its algorithms and keeps the fastest
(``torch.backends.cudnn.benchmark``). `against_cudnn.py` prints the table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

import pytest

from pytest_gpuenergy.engine.references import cached_reference
from pytest_gpuenergy.workloads.bounds import ErrorBound

if TYPE_CHECKING:
    from pytest_gpuenergy.devices.device import Device
    from pytest_gpuenergy.pytest_plugin.energy_benchmark import EnergyBenchmark
    from pytest_gpuenergy.workloads import Conv2d

Precision = Literal["ieee", "tf32"]
FORMATS = {"contiguous": "contiguous_format", "channels_last": "channels_last"}
"""PyTorch's attributes for memory formats, by their names in item ids."""
SEED = 0
TF32_ERROR = 2.0**-9

# PyTorch's own deprecation warnings are not failures of ours.
pytestmark = pytest.mark.filterwarnings("default")


@pytest.mark.usefixtures("powercap")
@pytest.mark.parametrize(
    ("memory_format", "precision"),
    [pytest.param(name, "ieee", id=name) for name in FORMATS]
    + [pytest.param(name, "tf32", id=f"{name}-tf32", marks=pytest.mark.tf32) for name in FORMATS],
)
def test_cudnn(
    bench_workload: Conv2d,
    memory_format: str,
    precision: Precision,
    torch: Any,
    energy_benchmark: EnergyBenchmark,
) -> None:
    with cudnn_settings(torch, precision):
        measurement = energy_benchmark(
            convolution(torch, bench_workload, getattr(torch, FORMATS[memory_format])),
            workload=bench_workload,
            reference=cached_reference(bench_workload, SEED)["output"],
            bound=error_bound(bench_workload, precision),
            label=f"cudnn-{memory_format}" + ("-tf32" if precision == "tf32" else ""),
        )
    assert "host_gaps" not in measurement.validity


@pytest.fixture
def torch(gpu: Device) -> Any:
    """PyTorch with cuDNN on this GPU; skips if it is missing."""
    if gpu.emulated:
        pytest.skip("cuDNN needs an NVIDIA GPU, and this one is emulated")
    found = pytest.importorskip("torch", reason="cuDNN is called through PyTorch, which is missing")
    if not found.cuda.is_available() or not found.backends.cudnn.is_available():
        pytest.skip(f"PyTorch {found.__version__} has no CUDA or no cuDNN here")
    return found


def convolution(torch: Any, workload: Conv2d, memory_format: Any) -> Callable[[], Any]:
    """A function that launches ``workload`` on the inputs of `SEED` and returns the output."""
    shape = workload.shape
    inputs = workload.make_inputs(SEED)
    data, weight = (
        torch.from_numpy(inputs[name]).cuda().to(memory_format=memory_format)
        for name in ("data", "weight")
    )
    conv2d = torch.nn.functional.conv2d

    def convolve() -> Any:
        return conv2d(
            data, weight, None, shape.strides, shape.padding, shape.dilation, shape.groups
        )

    return convolve


def error_bound(workload: Conv2d, precision: Precision) -> ErrorBound:
    """The workload's own bound, plus 2^-9 for TF32.

    TF32 keeps 10 bits of a factor's fraction (NVIDIA A100 Tensor Core GPU Architecture, 2020), so
    each factor has a relative error of at most 2^-10, even if it is truncated, and each product one
    of 2^-9. If zero-mean products are each off by some fraction, their sum is off by about that
    fraction of its typical size.
    """
    bound = workload.error_bound
    if precision == "ieee":
        return bound
    return ErrorBound(bound.max_relative + TF32_ERROR, bound.normwise + TF32_ERROR)


@contextmanager
def cudnn_settings(torch: Any, precision: Precision) -> Iterator[None]:
    """Let cuDNN choose among all its algorithms of that precision; restored afterwards."""
    cudnn = torch.backends.cudnn
    wanted = [(cudnn, "benchmark", True), (cudnn, "benchmark_limit", 0)]
    if hasattr(cudnn, "conv"):  # PyTorch 2.9; its older switch warns there
        wanted.append((cudnn.conv, "fp32_precision", precision))
    else:
        wanted.append((cudnn, "allow_tf32", precision == "tf32"))
    prior = [(where, name, getattr(where, name)) for where, name, _ in wanted]
    try:
        for where, name, value in wanted:
            setattr(where, name, value)
        yield
    finally:
        for where, name, value in prior:
            setattr(where, name, value)
