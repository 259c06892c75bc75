"""`gpuenergy powercap` on the emulated GPU."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from command_outcomes import ended

from pytest_gpuenergy.cli import main
from pytest_gpuenergy.control import Lease, Setpoint
from pytest_gpuenergy.devices import gpu_lock
from pytest_gpuenergy.opening import open_device
from pytest_gpuenergy.support import DeviceError

H200 = ["--gpu-device", "emulated:h200"]


def printed(*words: object) -> str:
    return ended(0, "powercap", *words).out


def in_a_process(*words: str) -> None:
    """As from a shell."""
    root = Path(__file__).parents[2]
    subprocess.run(
        [sys.executable, "-m", "pytest_gpuenergy.cli", "powercap", *words, *H200],
        check=True,
        stdout=subprocess.DEVNULL,
        timeout=60,
        env={**os.environ, "PYTHONPATH": str(root)},
    )


def killed_run(watts: int) -> None:
    """A run that sets a cap and has no time to put anything back."""
    body = (
        "import os, signal\n"
        "from pytest_gpuenergy.opening import open_device\n"
        "from pytest_gpuenergy.control.lease import Lease\n"
        "from pytest_gpuenergy.control.setpoint import Setpoint\n"
        f"Lease(open_device('emulated:h200')).set(Setpoint({watts}.0))\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    died = subprocess.run([sys.executable, "-c", body], check=False, timeout=60)
    assert died.returncode == -signal.SIGKILL


def state() -> dict[str, object]:
    shown: dict[str, object] = json.loads(printed("show", "--json", *H200))
    return shown


@pytest.mark.parametrize(
    "words",
    [
        ("set", "300W"),
        ("set", "--smclock", "1500"),
        ("set", "3", "--gpu-device", "auto"),
        ("restore", "--gpu-device", "auto"),
    ],
    ids=" ".join,
)
def test_without_a_gpu_nothing_is_written_unless_the_emulated_one_is_named(
    words, capsys, monkeypatch
):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    assert main(["powercap", *words]) != 0
    (sentence,) = capsys.readouterr().err.splitlines()
    assert f"powercap {words[0]} finds no NVIDIA GPU" in sentence
    assert "--gpu-device emulated" in sentence
    shown = state()
    assert (shown["power_limit_w"], shown["locked_sm_clock_mhz"]) == (700.0, None)


def test_show_tells_limits_and_caps():
    shown = state()
    assert (shown["min_w"], shown["max_w"], shown["power_limit_w"]) == (200.0, 700.0, 700.0)
    assert shown["emulated"] is True
    assert [cap["power_limit_w"] for cap in shown["caps"]] == [200.0, 325.0, 450.0, 575.0, 700.0]  # type: ignore[attr-defined]
    text = printed("show", *H200)
    for words in ("(emulated)", "constraints 200 W to 700 W", "3    450 W"):
        assert words in text
    beyond = "450 W is outside this card's constraints"
    assert beyond in printed("show", "--gpu-device", "emulated:a100")


def test_the_table_is_that_of_the_project(tmp_path, monkeypatch):
    table = '[tool.gpuenergy.powercaps]\n"H200" = [250, 333]\n'
    (tmp_path / "pyproject.toml").write_text(table)
    monkeypatch.chdir(tmp_path)
    assert "power limit 333W" in printed("set", "2", *H200)


def test_a_limit_outlives_the_command_that_names_what_restore_would_do():
    text = printed("set", "300W", *H200)
    assert "power limit 300W, enforced 300 W" in text
    assert "gpuenergy powercap restore returns to 700 W" in text
    assert state()["power_limit_w"] == 300.0
    assert "power limit 450W, enforced 450 W" in printed("set", "3", *H200)  # as show lists it


def test_set_and_restore_speak_json():
    shown = json.loads(printed("set", "300", "--json", *H200))
    assert (shown["power_limit_w"], shown["enforced_power_limit_w"]) == (300.0, 300.0)
    assert shown["restore_to_w"] == 700.0
    (restored,) = json.loads(printed("restore", "--json", *H200))
    assert (restored["uuid"], restored["power_limit_w"]) == (shown["uuid"], 700.0)
    assert restored["message"] == "The power limit of NVIDIA H200 is back at 700 W."


def test_restore_without_a_gpu_is_for_every_gpu_that_was_set():
    for device in ("emulated:h200", "emulated:a30"):
        assert (
            main(["powercap", "set", "160" if "a30" in device else "300", "--gpu-device", device])
            == 0
        )
    assert "The power limit of NVIDIA A30 is back at 165 W." in printed("restore")
    assert state()["power_limit_w"] == 700.0
    assert (
        printed("restore") == "nothing to restore: no power limit or clock was set by gpuenergy\n"
    )


def test_one_gpu_that_cannot_be_restored_does_not_hold_the_others():
    with open_device("emulated:a30") as a30:
        assert main(["powercap", "set", "160", "--gpu-device", "emulated:a30"]) == 0
        assert main(["powercap", "set", "300", *H200]) == 0
        fault = a30.inject("power_limit", "unknown")  # type: ignore[attr-defined]
        assert "NVIDIA A30 was not restored to 165 W" in ended(1, "powercap", "restore").err
        assert state()["power_limit_w"] == 700.0
        a30.state.withdraw(fault)  # type: ignore[attr-defined]
    assert "NVIDIA A30 is back at 165 W" in printed("restore")


@pytest.mark.slow
def test_a_gpu_in_the_middle_of_a_run_is_not_among_them():
    with open_device("emulated:a30") as a30, gpu_lock(a30, wait_s=0):
        lease = Lease(a30)
        lease.set(Setpoint(120.0))
        assert printed("restore").startswith("nothing to restore")
        lease.restore()


def test_a_record_of_a_card_that_is_gone_is_told_after_the_others(own_folders, monkeypatch):
    def no_driver() -> None:
        raise DeviceError("NVML does not start.")

    monkeypatch.setattr("pytest_gpuenergy.devices.load_nvml", no_driver)
    assert main(["powercap", "set", "300", *H200]) == 0
    (record,) = (own_folders / "leases").iterdir()
    for name in ("GPU-0", "GPU-1"):
        (own_folders / "leases" / f"{name}.kept.json").write_text(record.read_text())
    shown = ended(1, "powercap", "restore")
    assert "is back at 700 W" in shown.out
    assert shown.err.endswith("GPU-0, GPU-1: NVML does not start.\n")


@pytest.mark.slow
def test_restore_undoes_a_killed_run_and_then_what_was_set():
    assert main(["powercap", "set", "300", *H200]) == 0
    killed_run(500)
    assert main(["hosts", "--gpu-device", "emulated:h200"]) == 0  # it changes nothing
    assert state()["power_limit_w"] == 500.0
    assert main(["powercap", "restore", *H200]) == 0
    assert state()["power_limit_w"] == 700.0


def test_a_limit_that_somebody_set_since_is_left_alone():
    assert main(["powercap", "set", "300", *H200]) == 0
    with open_device("emulated:h200") as device:
        device.nvml.nvmlDeviceSetPowerManagementLimit(device.handle, 600_000)
    assert "has been set to 600 W since; it is left alone." in printed("restore", *H200)
    assert state()["power_limit_w"] == 600.0


@pytest.mark.slow
def test_restore_puts_back_what_was_before():
    in_a_process("set", "300")
    in_a_process("set", "250.5")
    assert state()["restore_to_w"] == 700.0
    assert "before it was set: 700 W" in printed("show", *H200)
    assert main(["powercap", "restore", *H200]) == 0
    assert state()["power_limit_w"] == 700.0


def test_clocks_are_locked_until_they_are_restored():
    assert printed("set", "--smclock", "1500", *H200) == (
        "NVIDIA H200 (emulated): SM clocks locked to 1500 MHz; gpuenergy powercap restore unlocks "
        "them: what they were locked to before cannot be read\n"
    )
    shown = state()
    assert (shown["locked_sm_clock_mhz"], shown["power_limit_w"]) == (1500, 700.0)
    assert shown["restore_to_w"] is None
    assert main(["powercap", "set", "300", *H200]) == 0  # which leaves the clocks
    shown = state()
    assert (shown["locked_sm_clock_mhz"], shown["power_limit_w"]) == (1500, 300.0)
    assert "locked to 1500 MHz; gpuenergy powercap restore unlocks" in printed("show", *H200)
    assert printed("restore") == (
        "The power limit of NVIDIA H200 is back at 700 W. The SM clocks of NVIDIA H200 are "
        "unlocked, which is the default.\n"
    )
    shown = state()
    assert (shown["locked_sm_clock_mhz"], shown["power_limit_w"]) == (None, 700.0)


def test_a_card_that_cannot_be_locked_is_shown():
    assert "SM clocks   unknown, and cannot be locked" in printed(
        "show", "--gpu-device", "emulated:p100"
    )
    command = ["powercap", "set", "--smclock", "1000", "--gpu-device", "emulated:p100"]
    assert "does not report which SM clocks it supports" in ended(1, *command).err


def test_nothing_to_restore_is_said():
    assert "nothing to restore" in printed("restore", *H200)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["set", "5000", *H200], "200 W to 700 W"),
        (["set", "lots", *H200], "powercap set 'lots' is not understood: give an index (1 to 5)"),
        (["set", "all", *H200], "give an index (1 to 5) or watts such as 300W"),
        (["set", "1,2", *H200], "give an index (1 to 5) or watts such as 300W"),
        (["set", "", *H200], "powercap set '' is not understood"),
        (["set", "6", *H200], "powercap set 6: this GPU accepts 200 W to 700 W"),
        (["set", "5000W", *H200], "powercap set 5000W: this GPU"),
        (["set", "9" * 5000, *H200], "is not understood"),
        (["set", "5", "--gpu-device", "emulated:a100"], "powercap set 5: 450 W is outside"),
        (["set"], "powercap set names nothing: give CAP, --smclock MHZ, or both"),
        (["set", "--smclock", "1503", *H200], "of which 1500 MHz and 1515 MHz are nearest"),
        (["set", "--smclock", "all", *H200], "--smclock 'all' is not understood: give megahertz"),
        (["show", "--gpu-device", "emulated:nothing"], "nothing"),
        (["show", "--gpu-device", "toaster"], "is not understood"),
    ],
)
def test_what_cannot_be_is_refused(words, said):
    assert said in ended(2, "powercap", *words).err


def test_a_card_that_refuses_ends_with_1(monkeypatch):
    monkeypatch.setenv("GPUENERGY_EMULATED_FAULTS", '{"power_limit": "no_permission"}')
    assert "run as root" in ended(1, "powercap", "set", "300", *H200).err


def test_what_a_run_that_is_over_left_is_told_though_its_process_lives(monkeypatch):
    with open_device("emulated:a30") as a30:
        Lease(a30).set(Setpoint(120.0))
    monkeypatch.setenv("GPUENERGY_EMULATED_FAULTS", '{"power_limit": "no_permission"}')
    assert "was not restored to 165 W" in ended(1, "powercap", "restore").err
    monkeypatch.delenv("GPUENERGY_EMULATED_FAULTS")
    assert "NVIDIA A30 is back at 165 W" in printed("restore")
