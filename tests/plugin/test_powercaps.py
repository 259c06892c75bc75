"""Power caps in a run: what is set, what is flagged or skipped, and that all is put back."""

from __future__ import annotations

import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpuenergy.cli import main
from pytest_gpuenergy.devices.select import open_device
from pytest_gpuenergy.energy.powercap import CURRENT, PowerCap
from pytest_gpuenergy.energy.writers import choose_writer
from pytest_gpuenergy.header import header_lines

if TYPE_CHECKING:
    from conftest import Project


def inject(monkeypatch: pytest.MonkeyPatch, **faults: object) -> None:
    monkeypatch.setenv("GPUENERGY_EMULATED_FAULTS", json.dumps(faults))


def limit_w(spec: str = "emulated", index: int = 0) -> float:
    with open_device(spec, index=index) as device:
        return float(device.nvml.nvmlDeviceGetPowerManagementLimit(device.handle)) / 1e3


def set_limit(watts: float, spec: str = "emulated", index: int = 0) -> None:
    with open_device(spec, index=index) as device:
        device.nvml.nvmlDeviceSetPowerManagementLimit(device.handle, round(watts * 1e3))


def test_the_owners_limit_is_put_back_not_the_default_one(project: Project) -> None:
    set_limit(400)
    project.run("--powercap", "1,5").assert_outcomes(passed=2)
    assert limit_w() == 400


def test_a_limit_set_by_the_command_is_the_runs_own(project: Project) -> None:
    assert main(["powercap", "set", "300", "--gpu-device", "emulated"]) == 0
    project.run("--powercap", "current,5").assert_outcomes(passed=2)
    enforced = {m.cap: m.enforced_power_limit_w for m in project.stored().measurements}
    assert enforced == {"current": 300, "700W": 700}
    assert limit_w() == 300
    assert main(["powercap", "restore"]) == 0
    assert limit_w() == 700


def test_caps_refused_half_way_are_skipped_and_the_next_start_restores(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    inject(monkeypatch, power_limit={"error": "unknown", "after_calls": 1})
    result = project.run_apart("--powercap", "1,2,3", "-rs")
    result.assert_outcomes(passed=1, skipped=2)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(
        [
            "gpuenergy: error: The power limit of NVIDIA H200 is not back at 700 W, where it was "
            "(gpuenergy powercap restore tries again): *",
            "SKIPPED * The power limit of NVIDIA H200 cannot be set to 325 W (*): check the card *",
        ]
    )
    assert [m.cap for m in project.report().measurements] == ["200W"]
    assert limit_w() == 200
    monkeypatch.delenv("GPUENERGY_EMULATED_FAULTS")
    result = project.run("--powercap", "current")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(
        ["left behind by a run that was killed: The power limit of NVIDIA H200 is 700 W again."]
    )
    assert limit_w() == 700


def test_a_limit_that_cannot_be_read_back_skips_the_item(project: Project) -> None:
    project.module(
        """
        import pytest

        @pytest.fixture(autouse=True)
        def blind(gpu):
            error = {"error": "unknown", "after_calls": 1}  # what comes before the write
            gpu.inject("nvmlDeviceGetPowerManagementLimit", error)

        def test_blind(powercap):
            raise AssertionError("the cap was set")
        """
    )
    result = project.run_apart("--powercap", "300W", "-rs")
    result.assert_outcomes(skipped=1)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(
        [
            "gpuenergy: error: * is not back at 700 W, where it was *",
            "SKIPPED * NVIDIA H200 does not tell its power limit (*): check it with nvidia-smi, *",
        ]
    )
    assert limit_w() == 300
    assert main(["powercap", "restore"]) == 0
    assert limit_w() == 700


def test_a_lower_enforced_limit_flags_the_measurement(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    inject(monkeypatch, enforced_limit={"power_w": 250})
    result = project.run("--powercap", "1,3", "-v")
    result.assert_outcomes(passed=2)
    low, high = project.stored().measurements
    assert "enforced_limit_lower" not in low.validity
    assert "enforced_limit_lower" in high.validity
    assert (high.power_limit_w, high.enforced_power_limit_w) == (450, 250)


def test_a_foreign_limit_in_mid_run_flags_the_item_and_skips_the_caps_that_follow(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    inject(monkeypatch, limit_changed={"power_w": 600, "after_s": 1.5})
    result = project.run("--powercap", "1,2,3", "-rs")
    result.assert_outcomes(passed=1, skipped=2)
    (measurement,) = project.stored().measurements
    assert "power_limit_changed" in measurement.validity
    result.stdout.fnmatch_lines(
        ["SKIPPED * Somebody else has changed the power limit of NVIDIA H200 to 600 W: end *"]
    )
    assert limit_w() == 600


def test_a_cap_that_cannot_be_set_fails_when_strict(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    inject(monkeypatch, power_limit="no_permission")
    result = project.run("--powercap", "1", "--strict-powercap")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*cannot be set to 200 W (*): run as root *"])


def test_of_several_gpus_only_the_selected_one_is_touched(project: Project) -> None:
    spec = "emulated:h200x4"
    for index in range(4):
        set_limit(600 + index, spec, index)
    project.module(
        """
        from pytest_gpuenergy.devices.select import open_device

        def test_others(powercap):
            limits_w = []
            for index in range(4):
                with open_device("emulated:h200x4", index=index) as gpu:
                    limit_mw = gpu.nvml.nvmlDeviceGetPowerManagementLimit(gpu.handle)
                    limits_w.append(limit_mw / 1000)
            assert limits_w == [powercap.power_limit_w, 601, 602, 603]
        """
    )
    project.run("--gpu-device", spec, "--powercap", "1,2").assert_outcomes(passed=2)
    assert [limit_w(spec, index) for index in range(4)] == [600, 601, 602, 603]


def test_the_summary_names_the_caps_that_changed_nothing(project: Project) -> None:
    result = project.run("--powercap", "1,4,5")
    result.assert_outcomes(passed=3)
    idle = [m for m in project.stored().measurements if not m.cap_binding]
    assert idle
    named = [m.cap for m in sorted(idle, key=lambda m: m.power_limit_w)]
    result.stdout.fnmatch_lines(
        [f"caps that changed nothing (no kernel was held back): {', '.join(named)}"]
    )


# -- the header of a real GPU, with an emulated one's NVML in its place ----------------------


def header(
    monkeypatch: pytest.MonkeyPatch,
    *caps: PowerCap,
    persistent: bool = True,
    find: Callable[[Any], object] = lambda _: SimpleNamespace(name="zeusd (/run/zeusd.sock)"),
) -> list[str]:
    with open_device("emulated") as device:
        mode = int(persistent)
        monkeypatch.setattr(type(device.nvml), "nvmlDeviceGetPersistenceMode", lambda *_: mode)
        names = ("name", "uuid", "nvml", "handle", "clock")
        real = SimpleNamespace(emulated=False, **{name: getattr(device, name) for name in names})
        session: Any = SimpleNamespace(
            device=real, caps=list(caps), limit_writer=lambda: find(real)
        )
        return header_lines(session)


def test_the_header_names_who_sets_the_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    assert header(monkeypatch, PowerCap(200.0), CURRENT)[-1] == (
        "gpuenergy: power limits are set through zeusd (/run/zeusd.sock)"
    )


def test_the_header_says_when_nobody_may(monkeypatch: pytest.MonkeyPatch) -> None:
    assert header(monkeypatch, PowerCap(200.0), find=choose_writer)[-1] == (
        "gpuenergy: power caps are skipped. GPUENERGY_CAP_WRITES=deny forbids changing the power "
        "limit of a real GPU: unset it, or use --powercap current."
    )


def test_the_header_advises_persistence_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    assert header(monkeypatch, PowerCap(200.0), persistent=False)[-1] == (
        "gpuenergy: persistence mode is off, so that a power limit is lost whenever the driver "
        "unloads: sudo nvidia-smi -pm 1"
    )


def test_a_run_that_touches_nothing_says_nothing_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = header(monkeypatch, CURRENT, persistent=False)
    assert lines[-1] == "gpuenergy: energy from the NVML energy counter; power caps: current"
