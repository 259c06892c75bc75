"""Collected items: power caps as parameters, their ids, and caps that cannot be set."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from pytest_gpuenergy.emulator import EmulatedDevice
from pytest_gpuenergy.kernels import Job, LibraryCall, TritonKernel
from pytest_gpuenergy.report import RunFolder
from pytest_gpuenergy.support import KernelFault
from pytest_gpuenergy.workloads import IoContract

if TYPE_CHECKING:
    from conftest import Project


def ids(project: Project, *arguments: str) -> list[str]:
    result = project.run("--collect-only", "-q", "--gpuenergy-order", "file", *arguments)
    assert result.ret == pytest.ExitCode.OK
    return re.findall(r"^[\w.]+::(.+)$", result.stdout.str(), re.M)


@pytest.mark.parametrize(
    ("arguments", "labels"),
    [
        ("", "200W 325W 450W 575W 700W"),
        ("--gpu-device emulated:a30", "100W 120W 140W 160W 165W"),
        ("--powercap current", "current"),
        ("--powercap 1,5", "200W 700W"),
        ("--powercap 300W,2,325W", "300W 325W"),
        ("--powercap all,current", "200W 325W 450W 575W 700W current"),
    ],
)
def test_items_have_the_caps_of_the_device_or_those_that_are_asked_for(project, arguments, labels):
    assert ids(project, *arguments.split()) == [f"test_scale[{cap}]" for cap in labels.split()]


def test_the_cap_comes_last_in_the_id(project):
    project.module(
        """
        import pytest

        @pytest.mark.parametrize("case", ["case1-k01", "case1-k10"])
        def test_conv2d(case, powercap):
            pass
        """
    )
    assert ids(project, "--powercap", "3,current") == [
        "test_conv2d[case1-k01-450W]",
        "test_conv2d[case1-k01-current]",
        "test_conv2d[case1-k10-450W]",
        "test_conv2d[case1-k10-current]",
    ]


def test_a_test_that_sets_the_cap_itself_is_left_alone(project):
    project.module(
        """
        import pytest
        from pytest_gpuenergy.control import Setpoint

        @pytest.mark.parametrize("powercap", [Setpoint(350.0)], ids=["mine"], indirect=True)
        def test_own(powercap, gpu):
            assert gpu.nvml.nvmlDeviceGetPowerManagementLimit(gpu.handle) == 350_000

        @pytest.mark.parametrize(("powercap", "x"), [("no cap at all", 1)])
        def test_direct(powercap, x):
            assert powercap == "no cap at all"
        """
    )
    assert ids(project) == ["test_own[mine]", "test_direct[no cap at all-1]"]
    project.run().assert_outcomes(passed=2)


def test_the_fixture_may_be_asked_for_by_a_mark_or_not_at_all(project):
    project.module(
        """
        import pytest

        def test_plain():
            pass

        @pytest.mark.usefixtures("powercap")
        def test_marked():
            pass
        """
    )
    marked = ["test_marked[200W]", "test_marked[325W]"]
    assert ids(project, "--powercap", "1,2") == ["test_plain", *marked]


def test_the_card_is_under_the_cap_and_put_back_afterwards(project):
    project.module(
        """
        def test_limit(powercap, gpu):
            limit_mw = gpu.nvml.nvmlDeviceGetPowerManagementLimit(gpu.handle)
            assert limit_mw == powercap.power_limit_w * 1000
        """
    )
    project.run().assert_outcomes(passed=5)
    assert project.limit_w() == 700


def test_current_touches_nothing(project, inject):
    inject(power_limit="no_permission")
    project.run("--powercap", "current").assert_outcomes(passed=1)
    (measurement,) = project.stored().measurements
    assert measurement.power_limit_w is None
    assert measurement.enforced_power_limit_w == 700


def test_a_table_of_the_project_replaces_ours(project):
    project.ini('[tool.gpuenergy.powercaps]\n"NVIDIA H200" = [100, 450, 1000]')
    assert ids(project) == ["test_scale[100W]", "test_scale[450W]", "test_scale[1000W]"]


def test_a_table_that_is_none_is_refused(project):
    project.ini('[tool.gpuenergy.powercaps]\n"NVIDIA H200" = [0]')
    project.refused().fnmatch_lines(
        ["*/pyproject.toml: the power caps of 'NVIDIA H200' must be a list of positive watts, *."]
    )


@pytest.mark.slow
def test_a_card_that_tells_no_limits_can_be_measured_as_it_is(project, inject):
    inject(nvmlDeviceGetPowerManagementLimitConstraints="not_supported")
    result = project.run()
    assert result.ret != pytest.ExitCode.OK
    result.stdout.fnmatch_lines(
        ["NVIDIA H200 does not report its power limits (*): use --powercap current."]
    )
    project.run("--powercap", "current").assert_outcomes(passed=1)
    assert project.stored().run.power_limits_w == {}


SEVERAL = """
import pytest

@pytest.mark.parametrize("kernel", ["a", "b", "c"])
def test_mixed(kernel, powercap):
    pass

def test_plain():
    pass
"""


def test_items_of_several_caps_and_kernels_are_interleaved(project):
    project.module(SEVERAL)
    caps = ("--powercap", "200W,325W,450W")
    assert ids(project, *caps, "--gpuenergy-order", "interleaved") == [
        *(f"test_mixed[{item}]" for item in ("a-200W", "b-450W", "c-325W")),
        *(f"test_mixed[{item}]" for item in ("c-200W", "b-325W", "a-450W")),
        *(f"test_mixed[{item}]" for item in ("a-325W", "b-200W", "c-450W")),
        "test_plain",
    ]


def test_the_order_of_the_file_can_be_kept(project):
    project.module(SEVERAL)
    project.ini('gpuenergy_order = "file"')
    found = ids(project, "--powercap", "200W,325W")
    assert found[:4] == [f"test_mixed[{k}-{cap}]" for k in "ab" for cap in ("200W", "325W")]


@pytest.mark.slow
def test_a_cold_cache_costs_energy_and_is_recorded(project):
    parts = (project.path / "parts.py").read_text()
    larger = parts.replace("1024", "262144").replace('"grid": 8', '"grid": 2048')
    (project.path / "parts.py").write_text(larger)
    for state in ("hot", "cold"):
        project.run("--powercap", "700W", "--gpuenergy-cache", state).assert_outcomes(passed=1)
    reports = [RunFolder(folder).load() for folder in project.runs]
    found = {report.run.options["gpuenergy-cache"]: report.measurements for report in reports}
    (hot,), (cold,) = found["hot"], found["cold"]
    assert (hot.cache, cold.cache) == ("hot", "cold")
    assert cold.energy_mj > 1.1 * hot.energy_mj


def test_buffers_too_small_to_be_cold_are_refused(project):
    result = project.run("--powercap", "700W", "--gpuenergy-cache", "cold")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        ["constraints: Its buffers of 8192 bytes cannot be kept out of an L2 cache of 50 MiB, *"]
    )


@pytest.mark.slow
def test_a_run_is_not_resumed_under_another_cache(project):
    caps = ("--powercap", "700W")
    project.run(*caps).assert_outcomes(passed=1)
    before = project.report()
    result = project.run(*caps, "--gpuenergy-resume", "--gpuenergy-cache", "cold")
    assert result.ret != pytest.ExitCode.OK
    result.stdout.fnmatch_lines(
        ["*The last run was made with a hot cache, but this one uses a cold cache: run without *"]
    )
    assert project.report() == before


TRITON = TritonKernel("import triton", "add", (1, 1, 1), ("x",))
CALL = LibraryCall("torch.matmul", {"input": "x", "other": "x", "out": "y"})
ITEM = """
from pytest_gpuenergy.kernels import LibraryCall, TritonKernel
from pytest_gpuenergy.workloads import Contract, Tensor

X, Y = (Tensor(n, (4, 4), "float32", role) for n, role in (("x", "input"), ("y", "output")))
WORK = Contract("w", (X, Y), dict)

def test_triton(energy_benchmark):
    energy_benchmark(TritonKernel("import triton", "add", (1, 1, 1), ("x",)), workload=WORK)

def test_library(energy_benchmark):
    call = LibraryCall("torch.matmul", {"input": "x", "other": "x", "out": "y"})
    energy_benchmark(call, workload=WORK)
"""


def test_items_of_other_kinds_are_skipped_with_the_reason(project):
    project.module(ITEM)
    result = project.run("--powercap", "current", "-rs")
    result.assert_outcomes(skipped=2)
    result.stdout.fnmatch_lines_random(
        [
            f"*{name} needs a real GPU: the emulated one runs CUDA text only*"
            for name in ("add", "torch.matmul")
        ]
    )


@pytest.mark.parametrize("kernel", [TRITON, CALL])
def test_the_emulated_gpu_refuses_other_kinds(kernel):
    with EmulatedDevice() as device:
        device.prepare([kernel])
        with pytest.raises(KernelFault, match="needs a real GPU") as fault:
            device.compile(kernel)
        with pytest.raises(KernelFault, match="needs a real GPU"):
            device.run_once(Job(kernel, IoContract("w")), {})
    assert fault.value.outcome == "constraints"


def test_the_emulated_gpu_has_no_libraries():
    with EmulatedDevice() as device, pytest.raises(KernelFault, match="needs a real GPU"):
        device.offered(CALL, IoContract("w"))
