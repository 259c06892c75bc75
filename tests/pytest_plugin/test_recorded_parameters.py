"""The record has the parameters of an item and the launches of its kernel."""

from __future__ import annotations

import csv

import pytest

from pytest_gpuenergy.cli import main
from pytest_gpuenergy.report import page_data

BENCH = '''
import enum
import numpy as np
import pytest
from parts import SCALE

class Layout(enum.Enum):
    ROWS = 1

SOURCE = """
extern "C" __global__ void scale(const float* x, float* y, float factor) {
  __shared__ float tile[2][64];  // 512 bytes
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  tile[0][threadIdx.x % 64] = factor;
  __syncthreads();
  y[i] = tile[0][threadIdx.x % 64] * x[i];
}
"""

@pytest.mark.parametrize("block", [64, np.int32(128)])
@pytest.mark.parametrize(
    ("share", "layout", "how", "thing", "fast"), [(0.5, Layout.ROWS, "plain", object(), True)]
)
def test_scale(block, share, layout, how, thing, fast, powercap, load_kernel, energy_benchmark):
    kernel = load_kernel(
        SOURCE, entry="scale", grid=(1024 // int(block), 1, 1), block=int(block),
        arguments=("x", "y", "factor"), shared_bytes=256,
    )
    energy_benchmark(kernel, workload=SCALE)
'''


@pytest.mark.slow
def test_parameters_and_launches_are_recorded_tabulated_and_can_be_axes(project, monkeypatch):
    project.module(BENCH)
    project.run("--powercap", "1").assert_outcomes(passed=2)
    report = project.report()
    first, second = sorted(report.measurements, key=lambda m: m.parameters["block"])
    assert first.parameters == {
        "block": 64,
        "share": 0.5,
        "layout": "ROWS",
        "how": "plain",
        "fast": True,
    }
    assert second.parameters["block"] == 128
    (launch,) = first.kernel.launches
    assert (launch.entry, launch.grid, launch.block) == ("scale", (16, 1, 1), (64, 1, 1))
    assert (launch.shared_bytes, launch.static_shared_bytes) == (256, 512)

    monkeypatch.chdir(project.path)
    assert main(["report", "--tidy", "tidy.csv"]) == 0
    with (project.path / "tidy.csv").open(newline="", encoding="utf-8") as file:
        row = next(row for row in csv.DictReader(file) if row["parameter_block"] == "64")
    names = ("grid_x", "blocks", "block_x", "threads", "shared_bytes", "parameter_share")
    assert [row[name] for name in names] == ["16", "16", "64", "64", "768", "0.5"]

    axes = {one["name"]: one["values"] for one in page_data(report)["axes"]}
    assert dict(zip(axes["parameter_block"], axes["grid_x"], strict=True)) == {64: 16, 128: 8}
