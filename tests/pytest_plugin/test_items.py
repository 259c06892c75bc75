"""Collected items: power caps as parameters, their ids, and caps that cannot be set."""

from __future__ import annotations

import json
import os
import re
from typing import TYPE_CHECKING

import pytest

from pytest_gpuenergy.devices import gpu_lock
from pytest_gpuenergy.emulator import EmulatedDevice
from pytest_gpuenergy.kernels import AnyKernel, Job, LibraryCall, TritonKernel
from pytest_gpuenergy.opening import open_device
from pytest_gpuenergy.report import RunFolder
from pytest_gpuenergy.support import KernelFault
from pytest_gpuenergy.workloads import IoContract

if TYPE_CHECKING:
    from conftest import Project

TABLE = """
[tool.gpuenergy.powercaps]
"NVIDIA H200" = [100, 450, 1000]
"""


def ids(project: Project, *arguments: str) -> list[str]:
    result = project.run("--collect-only", "-q", "--gpuenergy-order", "file", *arguments)
    assert result.ret == pytest.ExitCode.OK
    return re.findall(r"^[\w.]+::(.+)$", result.stdout.str(), re.M)


def test_the_emulated_gpu_runs_under_every_cap_of_its_table(project: Project) -> None:
    assert ids(project) == [f"test_scale[{watts}W]" for watts in (200, 325, 450, 575, 700)]


def test_the_table_is_the_one_of_the_device(project: Project) -> None:
    assert ids(project, "--gpu-device", "emulated:a30") == [
        f"test_scale[{watts}W]" for watts in (100, 120, 140, 160, 165)
    ]


@pytest.mark.parametrize(
    ("caps", "labels"),
    [
        ("current", ["current"]),
        ("1,5", ["200W", "700W"]),
        ("300W,2,325W", ["300W", "325W"]),
        ("all,current", ["200W", "325W", "450W", "575W", "700W", "current"]),
    ],
)
def test_caps_are_chosen_by_index_watts_or_name(
    project: Project, caps: str, labels: list[str]
) -> None:
    assert ids(project, "--powercap", caps) == [f"test_scale[{label}]" for label in labels]


def test_the_cap_comes_last_in_the_id(project: Project) -> None:
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


def test_a_test_that_sets_the_cap_itself_is_left_alone(project: Project) -> None:
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


def test_a_test_without_the_fixture_is_run_once(project: Project) -> None:
    project.module("def test_plain():\n    pass\n")
    assert ids(project) == ["test_plain"]


def test_a_mark_that_uses_the_fixture_is_enough(project: Project) -> None:
    project.module(
        """
        import pytest

        @pytest.mark.usefixtures("powercap")
        def test_marked():
            pass
        """
    )
    assert ids(project, "--powercap", "1,2") == ["test_marked[200W]", "test_marked[325W]"]


def test_the_card_is_under_the_cap_and_put_back_afterwards(project: Project) -> None:
    project.module(
        """
        def test_limit(powercap, gpu):
            limit_mw = gpu.nvml.nvmlDeviceGetPowerManagementLimit(gpu.handle)
            assert limit_mw == powercap.power_limit_w * 1000
        """
    )
    project.run().assert_outcomes(passed=5)
    with open_device("emulated") as device:
        assert device.nvml.nvmlDeviceGetPowerManagementLimit(device.handle) == 700_000


def test_current_touches_nothing(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUENERGY_EMULATED_FAULTS", json.dumps({"power_limit": "no_permission"}))
    project.run("--powercap", "current").assert_outcomes(passed=1)
    (measurement,) = project.stored().measurements
    assert measurement.power_limit_w is None
    assert measurement.enforced_power_limit_w == 700


def test_a_table_of_the_project_replaces_ours(project: Project) -> None:
    project.ini(TABLE)
    assert ids(project) == ["test_scale[100W]", "test_scale[450W]", "test_scale[1000W]"]


def test_a_table_value_that_the_card_cannot_take_is_skipped_with_the_reason(
    project: Project,
) -> None:
    project.ini(TABLE)
    result = project.run("-rs")
    result.assert_outcomes(passed=1, skipped=2)
    for watts in (100, 1000):
        result.stdout.fnmatch_lines(
            [
                f"SKIPPED * Power cap {watts}W is skipped: {watts} W is outside this card's "
                "constraints of 200 W to 700 W."
            ]
        )


def test_a_table_value_that_the_card_cannot_take_fails_when_strict(project: Project) -> None:
    project.ini(TABLE)
    result = project.run("--strict-powercap", "--powercap", "1")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(
        ["Power cap 100W is skipped: 100 W is outside this card's constraints of *"]
    )


def test_all_are_those_that_the_card_can_take_even_when_strict(project: Project) -> None:
    project.ini(TABLE)
    result = project.run("--strict-powercap", "--powercap", "all", "-rs")
    assert result.ret == pytest.ExitCode.OK
    result.assert_outcomes(passed=1, skipped=2)
    result.stdout.fnmatch_lines(["SKIPPED * Power cap 100W is skipped: 100 W is outside *"])


def test_a_table_of_which_the_card_can_take_nothing_fails(project: Project) -> None:
    project.ini('[tool.gpuenergy.powercaps]\n"NVIDIA H200" = [100, 1000]')
    result = project.run("--strict-powercap", "--powercap", "all")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["*The power caps 100W, 1000W could not be set for any item*"])


def test_a_table_that_is_none_is_refused(project: Project) -> None:
    project.ini('[tool.gpuenergy.powercaps]\n"NVIDIA H200" = [0]')
    result = project.run()
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(
        ["*/pyproject.toml: the power caps of 'NVIDIA H200' must be a list of positive watts, *."]
    )
    assert not project.runs


@pytest.mark.parametrize("strict", [False, True], ids=["lenient", "strict"])
def test_a_cap_that_cannot_be_set_skips_or_fails_when_strict(
    project: Project, monkeypatch: pytest.MonkeyPatch, strict: bool
) -> None:
    monkeypatch.setenv("GPUENERGY_EMULATED_FAULTS", json.dumps({"power_limit": "no_permission"}))
    project.ini(f"strict_powercap = {str(strict).lower()}")
    result = project.run("-rs", "--powercap", "450W")
    result.assert_outcomes(skipped=int(not strict), errors=int(strict))
    reason = "The power limit of NVIDIA H200 cannot be set to 450 W (*): run as root (*)."
    result.stdout.fnmatch_lines([reason if strict else f"SKIPPED * {reason}"])
    text = result.stdout.str()
    assert text.count("cannot be set to 450 W") == 2  # once for the item, once for the run
    assert not project.stored().measurements


def test_a_limit_that_somebody_else_set_in_between_is_told(project: Project) -> None:
    project.module(
        """
        def test_meddles(powercap, gpu):
            gpu.nvml.nvmlDeviceSetPowerManagementLimit(gpu.handle, 333_000)
        """
    )
    result = project.run("-rs", "--powercap", "1,2")
    result.assert_outcomes(passed=1, skipped=1)
    result.stdout.fnmatch_lines(
        ["SKIPPED * Somebody else has changed the power limit of NVIDIA H200 to 333 W: *"]
    )


def test_a_card_that_tells_no_limits_can_be_measured_as_it_is(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    function = "nvmlDeviceGetPowerManagementLimitConstraints"
    monkeypatch.setenv("GPUENERGY_EMULATED_FAULTS", json.dumps({function: "not_supported"}))
    result = project.run()
    assert result.ret != pytest.ExitCode.OK
    result.stdout.fnmatch_lines(
        ["NVIDIA H200 does not report its power limits (*): use --powercap current."]
    )
    project.run("--powercap", "current").assert_outcomes(passed=1)
    assert project.stored().run.power_limits_w == {}


@pytest.mark.slow
def test_a_gpu_in_use_by_another_process_ends_the_run(
    project: Project,
) -> None:
    with open_device("emulated") as device, gpu_lock(device, wait_s=0):
        result = project.run("--gpuenergy-lock-wait", "0")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    sentence = f"NVIDIA H200 ({device.uuid}) is in use by process {os.getpid()}: wait for it *"
    result.stdout.fnmatch_lines([f"*error: {sentence}"])
    assert not project.runs


SEVERAL = """
import pytest

@pytest.mark.parametrize("kernel", ["a", "b", "c"])
def test_mixed(kernel, powercap):
    pass

def test_plain():
    pass
"""


def test_items_of_several_caps_and_kernels_are_interleaved(project: Project) -> None:
    project.module(SEVERAL)
    caps = ("--powercap", "200W,325W,450W")
    assert ids(project, *caps, "--gpuenergy-order", "interleaved") == [
        *(f"test_mixed[{item}]" for item in ("a-200W", "b-450W", "c-325W")),
        *(f"test_mixed[{item}]" for item in ("c-200W", "b-325W", "a-450W")),
        *(f"test_mixed[{item}]" for item in ("a-325W", "b-200W", "c-450W")),
        "test_plain",
    ]


def test_the_order_of_the_file_can_be_kept(project: Project) -> None:
    project.module(SEVERAL)
    project.ini('gpuenergy_order = "file"')
    found = ids(project, "--powercap", "200W,325W")
    assert found[:4] == [f"test_mixed[{k}-{cap}]" for k in "ab" for cap in ("200W", "325W")]


@pytest.mark.slow
def test_a_cold_cache_costs_energy_and_is_recorded(project: Project) -> None:
    parts = (project.path / "parts.py").read_text()
    larger = parts.replace("1024", "1048576").replace('"grid": 8', '"grid": 8192')
    (project.path / "parts.py").write_text(larger)
    for state in ("hot", "cold"):
        project.run("--powercap", "700W", "--gpuenergy-cache", state).assert_outcomes(passed=1)
    reports = [RunFolder(folder).load() for folder in project.runs]
    found = {report.run.options["gpuenergy-cache"]: report.measurements for report in reports}
    (hot,), (cold,) = found["hot"], found["cold"]
    assert (hot.cache, cold.cache) == ("hot", "cold")
    assert cold.energy_mj > 1.1 * hot.energy_mj


def test_buffers_too_small_to_be_cold_are_refused(project: Project) -> None:
    result = project.run("--powercap", "700W", "--gpuenergy-cache", "cold")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        ["constraints: Its buffers of 8192 bytes cannot be kept out of an L2 cache of 50 MiB, *"]
    )


@pytest.mark.slow
def test_a_run_is_not_resumed_under_another_cache(project: Project) -> None:
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


def test_items_of_other_kinds_are_skipped_with_the_reason(project: Project) -> None:
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
def test_the_emulated_gpu_refuses_other_kinds(kernel: AnyKernel) -> None:
    with EmulatedDevice() as device:
        device.prepare([kernel])
        with pytest.raises(KernelFault, match="needs a real GPU") as fault:
            device.compile(kernel)
        with pytest.raises(KernelFault, match="needs a real GPU"):
            device.run_once(Job(kernel, IoContract("w")), {})
    assert fault.value.outcome == "constraints"


def test_the_emulated_gpu_has_no_libraries() -> None:
    with EmulatedDevice() as device, pytest.raises(KernelFault, match="needs a real GPU"):
        device.offered(CALL, IoContract("w"))
