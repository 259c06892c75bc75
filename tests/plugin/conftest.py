"""What the tests of the plugin share: a small project of its own, with a kernel that is right."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

import pytest

# Imported here they stay imported: pytester forgets what a run in this process imports.
import pytest_gpuenergy.benchmark
import pytest_gpuenergy.bridge
import pytest_gpuenergy.devices.emulated.device
import pytest_gpuenergy.devices.emulated.host
import pytest_gpuenergy.header
import pytest_gpuenergy.outputs
import pytest_gpuenergy.progress
import pytest_gpuenergy.session  # noqa: F401
from pytest_gpuenergy.report import Report, RunFolder, load_report

INI = """
[tool.pytest.ini_options]
filterwarnings = ["error"]
gpu_device = "emulated"
addopts = ["-p", "no:hypothesispytest"]
"""

PARTS = '''
from pytest_gpuenergy.workloads import Contract, Scalar, Tensor

SOURCE = """
extern "C" __global__ void scale(const float* x, float* y, float factor) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  y[i] = factor * x[i];
}
"""
LAUNCH = {"entry": "scale", "grid": 8, "block": 128, "arguments": ("x", "y", "factor")}
SCALE = Contract(
    "scale",
    (Tensor("x", (1024,), "float32", "input"), Tensor("y", (1024,), "float32", "output")),
    lambda inputs: {"y": 2 * inputs["x"]},
    flops=1024,
    values=(Scalar("factor", "float32", 2.0),),
)
'''
"""A module ``parts`` that the tests of the small project import."""

BENCH = """
from parts import LAUNCH, SCALE, SOURCE

def test_scale(powercap, load_kernel, energy_benchmark):
    energy_benchmark(load_kernel(SOURCE, **LAUNCH), workload=SCALE)
"""


@dataclass(frozen=True)
class Project:
    """A project in a folder of its own, whose tests run on the emulated GPU."""

    pytester: pytest.Pytester

    @property
    def path(self) -> Path:
        return self.pytester.path

    def ini(self, text: str) -> None:
        """Add lines to the pytest options, or tables after them."""
        with (self.path / "pyproject.toml").open("a") as file:
            file.write(text + "\n")

    def module(self, text: str, name: str = "test_scale") -> None:
        self.pytester.makepyfile(**{name: text})

    def run(self, *arguments: str) -> pytest.RunResult:
        return self.pytester.runpytest_inprocess(*arguments)

    def run_apart(self, *arguments: str) -> pytest.RunResult:
        """In a process of its own."""
        return self.pytester.runpytest_subprocess(*arguments)

    @property
    def runs(self) -> list[Path]:
        """Run folders, oldest first."""
        return sorted((self.path / ".gpuenergy" / "runs").glob("*"))

    def stored(self) -> Report:
        """What the only run has put on disk, item by item."""
        (folder,) = self.runs
        return RunFolder(folder).load()

    def report(self) -> Report:
        """The JSON view of the only run."""
        (folder,) = self.runs
        return load_report(folder / "report.json")


@pytest.fixture(autouse=True)
def own_surroundings(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GPUs are locked for the whole machine by files in the temporary folder: have one apart."""
    folder = str(tmp_path_factory.mktemp("tmp"))
    monkeypatch.setenv("TMPDIR", folder)
    monkeypatch.setattr(tempfile, "tempdir", folder)
    for variable in ("PYTEST_XDIST_WORKER", "GPUENERGY_EMULATED_FAULTS"):
        monkeypatch.delenv(variable, raising=False)


@pytest.fixture
def project(pytester: pytest.Pytester) -> Project:
    (pytester.path / "pyproject.toml").write_text(INI)
    pytester.makepyfile(parts=PARTS, test_scale=BENCH)
    return Project(pytester)


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """In processes started from now on, CUDA sees no GPU."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
