"""What a program imports from the package itself, and what it can do without pytest."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import pytest_gpuenergy
from pytest_gpuenergy import (
    Contract,
    InputError,
    Kernel,
    KernelFault,
    Scalar,
    Tensor,
    load_kernel,
    measure,
    open_station,
    verify,
)

SOURCE = """
extern "C" __global__ void scale(const float* x, float* y, float factor) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  y[i] = factor * x[i];
}
"""
WRONG = SOURCE.replace("factor * x[i]", "i == 77 ? 0.0f : factor * x[i]")
SCALE = Contract(
    "scale",
    (Tensor("x", (4096,), "float32", "input"), Tensor("y", (4096,), "float32", "output")),
    lambda inputs: {"y": 2 * inputs["x"]},
    flops=4096,
    values=(Scalar("factor", "float32", 2.0),),
)


def scale(source: str = SOURCE) -> Kernel:
    return load_kernel(source, entry="scale", grid=32, block=128, arguments=("x", "y", "factor"))


def test_every_name_is_there():
    for name in pytest_gpuenergy.__all__:
        assert getattr(pytest_gpuenergy, name).__doc__


def test_importing_the_package_imports_no_numpy():
    code = "import sys, pytest_gpuenergy; sys.exit('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.slow
def test_a_right_kernel_is_verified():
    found = verify(scale(), SCALE, device="emulated")
    assert found.normwise_error <= found.normwise_bound


@pytest.mark.slow
def test_a_wrong_kernel_raises_its_fault():
    with pytest.raises(KernelFault, match=r"y\[77\]") as found:
        verify(scale(WRONG), SCALE, device="emulated")
    assert found.value.outcome == "correctness"


@pytest.mark.slow
def test_kernels_are_measured_on_one_station():
    with open_station("emulated") as station:
        free, capped = (
            measure(scale(), SCALE, device=station, power_limit_w=limit_w, label="twice")
            for limit_w in (None, 300.0)
        )
    assert free.time_ms is not None
    assert free.energy_mj is not None
    assert (free.cap, capped.cap, capped.enforced_power_limit_w) == ("current", "300W", 300.0)
    assert capped.kernel.label == "twice"


@pytest.mark.slow
def test_the_measurement_of_a_wrong_kernel_has_no_figures():
    measured = measure(scale(WRONG), SCALE, device="emulated")
    assert (measured.outcome, measured.energy_mj) == ("correctness", None)
    assert "y[77]" in (measured.error or "")


def test_an_unknown_device_is_refused():
    with pytest.raises(InputError, match="'cpu' is not understood"):
        verify(scale(), SCALE, device="cpu")


def test_every_name_is_on_a_page():
    pages = Path(__file__).parents[1] / "docs/reference/api"
    text = "".join(page.read_text(encoding="utf-8") for page in pages.glob("*.md"))
    missing = [n for n in pytest_gpuenergy.__all__ if f"::: pytest_gpuenergy.{n}\n" not in text]
    assert missing == []
