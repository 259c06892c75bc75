"""Shared by the plugin's tests: a small project with a correct kernel."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from execnet import XSpec, gateway_io
from small_project import BENCH, INI, NOT_NEEDED, PARTS

from pytest_gpuenergy.opening import open_device
from pytest_gpuenergy.report import Report, RunFolder, load_report

TEST = """
import os
import pytest
from parts import LAUNCH, SCALE, SOURCE
{head}
{marks}
def test_scale({arguments}load_kernel, energy_benchmark):
    {before}
    m = energy_benchmark(load_kernel({source}, **LAUNCH), workload=SCALE{more})
    {after}
"""


@dataclass(frozen=True)
class Project:
    """A project in its own folder, whose tests run on the emulated GPU.

    Attributes:
        pytester: the folder, and runs in it.
        baselines: reports by all that they depend on, of all tests.
        request: for what not every test needs.
    """

    pytester: pytest.Pytester
    baselines: dict[object, bytes]
    request: pytest.FixtureRequest

    @property
    def path(self) -> Path:
        return self.pytester.path

    def ini(self, text: str) -> None:
        """Add lines to the pytest options, or tables after them."""
        with (self.path / "pyproject.toml").open("a") as file:
            file.write(text + "\n")

    def module(self, text: str, name: str = "test_scale") -> None:
        self.pytester.makepyfile(**{name: text})

    def bench(
        self,
        source: str = "SOURCE",
        *,
        head: str = "",
        marks: str = "",
        arguments: str = "powercap, ",
        before: str = "",
        more: str = "",
        after: str = "",
        name: str = "test_scale",
    ) -> None:
        """Write a test that measures the kernel of this source; the rest is Python text, too."""
        text = TEST.format(
            source=source,
            head=head,
            marks=marks,
            arguments=arguments,
            before=before,
            more=more,
            after=after,
        )
        self.module(text, name)

    def run(self, *arguments: str) -> pytest.RunResult:
        """Run pytest in this process, whose own pytest finds exceptions that are never raised."""
        leave_out = () if "xdist" in arguments else NOT_NEEDED
        return self.pytester.runpytest_inprocess(*leave_out, *arguments)

    @property
    def python(self) -> Path:
        """A warm Python for processes."""
        found: Path = self.request.getfixturevalue("warm_python")
        return found

    def run_apart(self, *arguments: str) -> pytest.RunResult:
        """Run pytest in another process, a fork of one that has imported what it needs."""
        return self.pytester.run(self.python, "-m", "pytest", *arguments)

    def run_as_users_do(self, *arguments: str) -> pytest.RunResult:
        """Run pytest in a process that imports all by itself."""
        return self.pytester.runpytest_subprocess(*arguments)

    def baseline(self, *arguments: str, passed: int) -> None:
        """Write the report ``base.json`` of a run, which the first test with these files makes."""
        files = [path.read_bytes() for path in sorted(self.path.glob("*.[pt]*"))]
        key = (arguments, *files, os.environ.get("GPUENERGY_EMULATED_FAULTS"))
        path = self.path / "base.json"
        if key not in self.baselines:
            self.run(*arguments, "--gpuenergy-json", path.name).assert_outcomes(passed=passed)
            self.baselines[key] = path.read_bytes()
        path.write_bytes(self.baselines[key])

    def refused(self, *arguments: str) -> pytest.LineMatcher:
        """The error output of a run that is refused before anything is measured."""
        result = self.run(*arguments)
        assert result.ret == pytest.ExitCode.USAGE_ERROR
        assert "Traceback" not in result.stdout.str() + result.stderr.str()
        assert not self.runs
        return result.stderr

    @staticmethod
    def limit_w(spec: str = "emulated", index: int = 0) -> float:
        """The current power limit of an emulated card."""
        with open_device(spec, index=index) as device:
            return float(device.nvml.nvmlDeviceGetPowerManagementLimit(device.handle)) / 1e3

    @property
    def runs(self) -> list[Path]:
        """Run folders, oldest first."""
        return sorted((self.path / ".gpuenergy" / "runs").glob("*"))

    def stored(self) -> Report:
        """The raw measurements of the only run."""
        (folder,) = self.runs
        return RunFolder(folder).load()

    def report(self) -> Report:
        """The JSON view of the only run."""
        (folder,) = self.runs
        return load_report(folder / "report.json")


@pytest.fixture(scope="module", autouse=True)  # a session goes on with the tests of other rooms
def few_launches() -> Iterator[None]:
    """Launch kernels 20 times instead of for 50 ms, which only tests of verification need."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pytest_gpuenergy.emulator.host.host_kernel._MOST", 20)
        yield


@pytest.fixture(autouse=True)
def own_surroundings(machine_apart: None) -> None:
    """Do not wait for a GPU that another run is using."""


@pytest.fixture(autouse=True)
def warm_workers(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let pytest-xdist start its workers as forks."""
    start = gateway_io.popen_args

    def popen_args(spec: XSpec) -> list[str]:
        words = start(spec)
        return words if spec.python else [str(request.getfixturevalue("warm_python")), *words[1:]]

    monkeypatch.setattr(gateway_io, "popen_args", popen_args)


@pytest.fixture
def inject(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Give the emulated card these faults, or none any more."""
    return lambda **faults: monkeypatch.setenv("GPUENERGY_EMULATED_FAULTS", json.dumps(faults))


@pytest.fixture(scope="session")
def baselines() -> dict[object, bytes]:
    """What `Project.baseline` keeps."""
    return {}


@pytest.fixture
def project(
    pytester: pytest.Pytester, baselines: dict[object, bytes], request: pytest.FixtureRequest
) -> Project:
    (pytester.path / "pyproject.toml").write_text(INI)
    pytester.makepyfile(parts=PARTS, test_scale=BENCH)
    return Project(pytester, baselines, request)


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide all GPUs from CUDA in processes started from now on."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
