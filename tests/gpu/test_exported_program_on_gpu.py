"""Exported programs, built with nvcc and run on a real GPU."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from pytest_gpuenergy.cli import main
from pytest_gpuenergy.devices import nvcc_target, specific_architecture
from pytest_gpuenergy.opening import open_device
from pytest_gpuenergy.report import LaunchFigures, parse_figures

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not on the PATH"),
]


@pytest.mark.parametrize(
    ("mode", "layout"),
    [("float32", "nn"), ("3xtf32", "nt"), ("tf32", "tn"), ("float16", "tt"), ("bfloat16", "nn")],
)
def test_a_product_is_right_and_its_time_and_energy_are_measured(tmp_path, mode, layout):
    sizes = f"M=500 N=252 K=650 lda=656 ldb=656 ldc=256 layout={layout} mode={mode}"
    assert main(["kernels", "export", "--gemm", sizes, "--out", str(tmp_path / "out")]) == 0
    (source,) = (tmp_path / "out").glob("kernels/*/kernel01.launch.cu")
    header = source.with_name("kernel01.workload.cuh").relative_to(tmp_path / "out")
    with open_device("auto") as gpu:
        target = nvcc_target(specific_architecture(gpu.architecture))
        flags = ["-O3", "-std=c++17", target, "-ldl", "-o", "program"]
        limit_w = gpu.nvml.nvmlDeviceGetEnforcedPowerLimit(gpu.handle) / 1000
    define = f'-DWORKLOAD_HEADER="{header}"'
    command = ["nvcc", *flags, define, "driver.cu", str(source)]
    subprocess.run(command, cwd=tmp_path / "out", check=True, timeout=300)
    done = subprocess.run(
        [tmp_path / "out" / "program"], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr
    figures = parse_figures(done.stdout)
    assert isinstance(figures, LaunchFigures), done.stdout
    assert 20 < figures.power_w < 1.05 * limit_w
    assert 1e-3 < figures.time_ms < 1
