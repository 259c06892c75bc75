"""A function with a Triton kernel of its own, profiled and replayed on a real GPU."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.gpu, pytest.mark.torch]
MODULE = """
import torch
import triton
import triton.language as tl


@triton.jit
def double(source, target, size, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(target + at, 2 * tl.load(source + at, mask=at < size), mask=at < size)


values = torch.randn(1 << 22, device="cuda")
weights = torch.randn(2048, 2048, device="cuda")


def compute():
    doubled = torch.empty_like(values)
    double[(triton.cdiv(values.numel(), 1024),)](values, doubled, values.numel(), BLOCK=1024)
    return (doubled.view(2048, 2048) @ weights).sum()
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the function's profile, with its replay."""
    pytest.importorskip("torch", reason="needs PyTorch")
    pytest.importorskip("triton", reason="needs Triton")
    folder = tmp_path_factory.mktemp("function")
    (folder / "doubling.py").write_text(MODULE)
    for words in (("profile", "doubling:compute", "--out", "run"), ("replay", "run")):
        # Of its own: what the module keeps on the GPU is still there when the process ends.
        command = [sys.executable, "-m", "pytest_gpuenergy.cli", *words]
        subprocess.run(command, cwd=folder, check=True)
    return folder / "run"


def test_its_triton_kernel_is_a_call_with_figures(run):
    report: Any = json.loads((run / "results/gpu_energy_report.json").read_text())
    assert not [one for one in report["missing"] if one.startswith("c")]
    for account in report["accounts"]:
        assert account["coverage"] == 1
        assert "triton.double" in [part["operator"] for part in account["parts"]]


def test_its_calls_take_what_it_takes_as_a_whole(run):
    report: Any = json.loads((run / "results/gpu_energy_report.json").read_text())
    (graph,) = [one for one in report["accounts"] if one["level"] == "graph"]
    assert abs(graph["energy_error"]) < 0.1
