"""Two real GPUs of one host under Ray, each with a worker; no power limit is written."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_gpuenergy.opening import count_gpus

pytestmark = [pytest.mark.gpu, pytest.mark.ray]
LIMIT_S = 400
PARTS = '''
from pytest_gpuenergy.workloads import Contract, Scalar, Tensor

SOURCE = """
extern "C" __global__ void scale(const float* x, float* y, float factor) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < 1 << 24; i += gridDim.x * blockDim.x)
    y[i] = factor * x[i];
}
"""
LAUNCH = {"entry": "scale", "grid": 2048, "block": 256, "arguments": ("x", "y", "factor")}
SCALE = Contract(
    "scale",
    (Tensor("x", (1 << 24,), "float32", "input"), Tensor("y", (1 << 24,), "float32", "output")),
    lambda inputs: {"y": 2 * inputs["x"]},
    flops=1 << 24,
    values=(Scalar("factor", "float32", 2.0),),
)
'''
BENCH = """
import os
import time
from pathlib import Path

import pytest
from parts import LAUNCH, SCALE, SOURCE

@pytest.mark.parametrize("number", range(4))
def test_scale(number, powercap, load_kernel, energy_benchmark):
    Path(MEETING, os.environ["PYTEST_XDIST_WORKER"]).touch()
    deadline_s = time.monotonic() + 120
    while len(list(Path(MEETING).iterdir())) < 2:  # so that neither does everything alone
        assert time.monotonic() < deadline_s
        time.sleep(0.1)
    energy_benchmark(load_kernel(SOURCE, **LAUNCH), workload=SCALE)
"""


@pytest.fixture
def ray_head(ray_folder: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A cluster of this host alone, with its GPUs."""
    del ray_folder
    if count_gpus() < 2:
        pytest.skip("needs two GPUs")
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, head_node_args={"num_gpus": count_gpus()})
    monkeypatch.setenv("RAY_ADDRESS", made.address)
    yield
    made.shutdown()


@pytest.mark.usefixtures("ray_head")
def test_each_of_two_gpus_measures(pytester, tmp_path_factory):
    meeting = tmp_path_factory.mktemp("meeting")
    pytester.makepyfile(parts=PARTS, test_scale=BENCH.replace("MEETING", repr(str(meeting))))
    pytester.makepyprojecttoml("[tool.pytest.ini_options]\n")
    listed = subprocess.run(
        [sys.executable, "-m", "pytest_gpuenergy.cli", "hosts", "--ray", "--json"],
        capture_output=True,
        text=True,
        check=True,
        timeout=LIMIT_S,
    )
    (host,) = json.loads(listed.stdout)["hosts"]
    assert len(host["gpus"]) == count_gpus()
    result = pytester.runpytest_subprocess(
        *("-p", "no:benchmark", "-v", "--powercap", "current", "--gpuenergy-fleet", "ray"),
        timeout=LIMIT_S,
    )
    result.assert_outcomes(passed=4)
    files = Path(os.environ["GPUENERGY_STATE"]).rglob("measurements.jsonl")
    records = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    assert len({record["node_id"] for record in records}) == 4
    assert len({record["gpu_uuid"] for record in records}) >= 2
    assert all(record["energy_mj"] > 0 for record in records)
