"""cuDNN's float32 convolution through PyTorch, measured like our kernels.

Collected only when its path is named:

    pytest studies/peers --powercap current --gpuenergy-json cudnn.json
    pytest studies/peers --powercap current --tf32 -k case5 --gpuenergy-json cudnn.json

Each memory format is an item. cuDNN tries all its algorithms and keeps the fastest
(``torch.backends.cudnn.benchmark``). `against_cudnn.py` prints the table.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from cudnn_convolution import FORMATS, SEED, Precision, convolution, cudnn_settings, error_bound

from pytest_gpuenergy.engine import cached_reference

if TYPE_CHECKING:
    from pytest_gpuenergy.devices import Device
    from pytest_gpuenergy.pytest_plugin import EnergyBenchmark
    from pytest_gpuenergy.workloads import Conv2d

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
    if not bench_workload.is_plain:
        pytest.skip("this study measures convolutions in float32 and NCHW, without bias and ReLU")
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
