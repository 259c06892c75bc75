"""`gpuenergy doctor`, with the emulated GPU's NVML in the place of a driver's."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import closing
from types import SimpleNamespace

import pytest
from command_outcomes import ended

from pytest_gpuenergy import devices
from pytest_gpuenergy.commands import Check, check_gpus, doctor
from pytest_gpuenergy.control import Lease, Setpoint, sudo as sudo_rule, writers
from pytest_gpuenergy.emulator import EmulatedDevice
from pytest_gpuenergy.support import DeviceError


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[EmulatedDevice]:
    """A GPU as if it were a real one: visible to NVML and to CUDA, and settable."""
    monkeypatch.setenv("GPUENERGY_CAP_WRITES", "allow")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    with closing(EmulatedDevice()) as device:
        monkeypatch.setattr(devices, "load_nvml", lambda: device.nvml)
        monkeypatch.setattr(devices, "cuda_uuids", lambda: [device.uuid])
        monkeypatch.setattr(writers, "may_change_settings", lambda: True)
        yield device


class SimpleNVMLError(Exception):
    def __init__(self, value: int) -> None:
        super().__init__(value)
        self.value = value


def break_nvml(monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    def fail() -> None:
        try:
            raise SimpleNVMLError(code)
        except SimpleNVMLError:
            raise DeviceError("NVML does not start.") from None

    monkeypatch.setattr(devices, "load_nvml", fail)


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is looked for outside this process."""
    break_nvml(monkeypatch, 9)
    monkeypatch.setattr(doctor, "_probe", lambda _: (["1.0", "13.0"], ""))


def by_name(checks: Iterator[Check]) -> dict[str, Check]:
    return {check.name: check for check in checks}


def test_a_sound_gpu_has_nothing_to_note(gpu):
    checks = by_name(check_gpus())
    assert {check.status for check in checks.values()} == {"ok"}
    assert checks["GPU 0"].found == f"{gpu.name} {gpu.uuid}"
    assert checks["GPU 0 power limit"].found == (
        "700 W, allowed are 200 W to 700 W; this user may set it through NVML"
    )


@pytest.mark.usefixtures("gpu")
def test_a_user_who_may_not_set_limits_is_told(monkeypatch):
    monkeypatch.setattr(writers, "may_change_settings", lambda: False)
    monkeypatch.setenv("ZEUSD_SOCK_PATH", "/nowhere/zeusd.sock")
    monkeypatch.setenv("PATH", "/nowhere")
    check = by_name(check_gpus())["GPU 0 power limit"]
    assert check.status == "note"
    assert "(no zeusd at /nowhere/zeusd.sock; no sudo on the PATH): run as root" in check.found


def test_the_sudo_rule_is_printed(gpu, monkeypatch):
    monkeypatch.setattr(writers, "may_change_settings", lambda: False)
    monkeypatch.setattr(sudo_rule, "own_name", lambda: "ann")
    monkeypatch.setattr(sudo_rule, "safe_program", lambda name: f"/usr/bin/{name}")
    assert by_name(check_gpus())["GPU 0 power limit"].advice == (
        "sudo visudo, and add: ann ALL=(root) NOPASSWD: "
        f"/usr/bin/nvidia-smi -i {gpu.uuid} -pl [2-6][0-9][0-9], "
        f"/usr/bin/nvidia-smi -i {gpu.uuid} -pl 700"
    )


@pytest.mark.usefixtures("gpu")
def test_the_reason_is_printed_if_no_sudo_rule_is_safe(tmp_path, monkeypatch):
    monkeypatch.setattr(writers, "may_change_settings", lambda: False)
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    tmp_path.chmod(0o777)  # wherever temporary folders are
    monkeypatch.setenv("PATH", str(tmp_path))
    advice = by_name(check_gpus())["GPU 0 power limit"].advice
    assert advice.startswith(f"there is no safe sudo rule: {tmp_path}/nvidia-smi cannot be used")


@pytest.mark.usefixtures("gpu")
def test_forbidden_writes_are_told(monkeypatch):
    monkeypatch.setenv("GPUENERGY_CAP_WRITES", "deny")
    check = by_name(check_gpus())["GPU 0 power limit"]
    assert (check.status, "GPUENERGY_CAP_WRITES" in check.found) == ("note", True)


@pytest.mark.parametrize(
    ("fault", "value", "name", "status"),
    [
        ("mig", True, "GPU 0 MIG", "broken"),
        ("foreign_process", {"pid": 4242}, "GPU 0 other processes", "note"),
        ("processes", "not_supported", "GPU 0 other processes", "note"),
        ("nvmlDeviceGetName", "gpu_is_lost", "GPU 0", "broken"),
        ("nvmlDeviceGetUUID", "gpu_is_lost", "GPU 0", "broken"),
        (
            "nvmlDeviceGetPowerManagementLimitConstraints",
            "not_supported",
            "GPU 0 power limit",
            "note",
        ),
    ],
)
def test_what_is_wrong_with_a_card_is_found(gpu, fault, value, name, status):
    gpu.inject(fault, value)
    assert by_name(check_gpus())[name].status == status


def test_persistence_off_is_noted(gpu, monkeypatch):
    monkeypatch.setattr(type(gpu.nvml), "nvmlDeviceGetPersistenceMode", lambda *_: 0, raising=False)
    check = by_name(check_gpus())["GPU 0 persistence"]
    assert (check.status, check.advice) == ("note", "sudo nvidia-smi -pm 1")


def test_a_fixed_limit_is_noted(gpu, monkeypatch):
    name = "nvmlDeviceGetPowerManagementLimitConstraints"
    monkeypatch.setattr(type(gpu.nvml), name, lambda *_: [72000, 72000], raising=False)
    assert "fixed" in by_name(check_gpus())["GPU 0 power limit"].found


def test_nothing_is_written_to_the_card(gpu):
    gpu.inject("power_limit", "unknown")
    assert all(check.status == "ok" for check in check_gpus())


def test_a_limit_left_behind_is_noted(gpu, own_folders):
    Lease(gpu).set(Setpoint(300.0))
    (record,) = (own_folders / "leases").iterdir()
    record.write_text(json.dumps({**json.loads(record.read_text()), "started": 0}))
    check = by_name(check_gpus())["GPU 0 saved power limit"]
    assert (check.status, check.advice) == ("note", "gpuenergy powercap restore")
    assert check.found == "300 W was set by a run that was killed before it restored 700 W"


def test_clocks_left_behind_are_noted(gpu, own_folders):
    Lease(gpu).set(Setpoint(sm_clock_mhz=1500))
    (record,) = (own_folders / "leases").iterdir()
    record.write_text(json.dumps({**json.loads(record.read_text()), "started": 0}))
    found = by_name(check_gpus())
    check = found["GPU 0 locked clocks"]
    assert (check.status, check.advice) == (
        "note",
        "gpuenergy powercap restore, which unlocks them",
    )
    assert check.found == (
        "the SM clocks were locked to 1500 MHz by a run that was killed before it restored"
    )
    assert "GPU 0 saved power limit" not in found


def test_clocks_that_may_be_locked_are_told(gpu):
    check = by_name(check_gpus())["GPU 0 SM clocks"]
    assert (check.status, check.found) == (
        "ok",
        "345 MHz to 1980 MHz in 110 steps; this user may lock them through NVML",
    )
    gpu.inject("nvmlDeviceGetSupportedGraphicsClocks", "not_supported")
    assert by_name(check_gpus())["GPU 0 SM clocks"].advice == "use --smclock current"


@pytest.mark.usefixtures("gpu")
def test_clocks_that_may_not_be_locked_come_with_the_rule(monkeypatch):
    monkeypatch.setattr(writers, "may_change_settings", lambda: False)
    monkeypatch.setenv("ZEUSD_SOCK_PATH", "/nowhere/zeusd.sock")
    monkeypatch.setattr(sudo_rule, "safe_program", lambda _: "/usr/bin/nvidia-smi")
    monkeypatch.setenv("PATH", "/nowhere")
    check = by_name(check_gpus())["GPU 0 SM clocks"]
    assert check.status == "note"
    assert check.advice.startswith("sudo visudo, and add: ")
    assert check.advice.endswith(" -rgc")
    monkeypatch.setenv("GPUENERGY_CAP_WRITES", "deny")
    assert "forbids locking them" in by_name(check_gpus())["GPU 0 SM clocks"].found


def test_a_damaged_record_is_broken(gpu, own_folders):
    (own_folders / "leases").mkdir()
    (own_folders / "leases" / f"{gpu.uuid}.json").write_text("{")
    assert by_name(check_gpus())["GPU 0 saved power limit"].status == "broken"


@pytest.mark.usefixtures("gpu")
def test_gpus_hidden_from_cuda_are_noted(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr(devices, "cuda_uuids", list)
    check = by_name(check_gpus())["CUDA driver library"]
    assert (check.status, check.found) == (
        "note",
        "CUDA sees 0 of the 1 GPUs of NVML (CUDA_VISIBLE_DEVICES is empty, which hides every GPU)",
    )


@pytest.mark.usefixtures("gpu")
def test_a_gpu_that_nvml_does_not_know_is_broken(monkeypatch):
    monkeypatch.setattr(devices, "cuda_uuids", lambda: ["GPU-other"])
    check = by_name(check_gpus())["CUDA driver library"]
    assert (check.status, "GPU-other" in check.found) == ("broken", True)


@pytest.mark.usefixtures("gpu")
def test_a_missing_cuda_library_is_broken(monkeypatch):
    def missing() -> list[str]:
        raise DeviceError("libcuda.so.1 is missing.")

    monkeypatch.setattr(devices, "cuda_uuids", missing)
    assert by_name(check_gpus())["CUDA driver library"].status == "broken"


@pytest.mark.parametrize(
    ("code", "status", "said"),
    [
        (9, "note", "only the emulated GPU"),
        (12, "note", "only the emulated GPU"),
        (18, "broken", "different versions"),
        (999, "broken", "NVML does not start"),
    ],
)
def test_why_there_is_no_driver(code, status, said, monkeypatch):
    break_nvml(monkeypatch, code)
    (check,) = check_gpus()
    assert check.status == status
    assert said in check.found


@pytest.mark.usefixtures("no_gpu")
def test_the_emulated_gpu_alone_is_enough():
    report = json.loads(ended(0, "doctor", "--json").out)
    assert report["ok"] is True
    checks = {check["name"]: check for check in report["checks"]}
    assert checks["driver"]["status"] == "note"
    assert checks["emulated GPU"]["status"] == "ok"


@pytest.mark.usefixtures("no_gpu")
def test_the_table_gives_advice():
    shown = ended(0, "doctor").out
    assert "note    driver: no NVIDIA driver" in shown
    assert "        -> on a machine with an NVIDIA GPU, install its driver" in shown
    assert shown.splitlines()[-1].startswith("0 broken, ")


@pytest.mark.usefixtures("no_gpu")
def test_a_missing_compiler_is_broken(monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert "broken  emulated GPU" in ended(1, "doctor").out


@pytest.mark.usefixtures("no_gpu")
def test_a_folder_that_cannot_be_made_is_broken(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("GPUENERGY_CACHE", str(tmp_path / "file" / "cache"))
    assert "broken  cache folder" in ended(1, "doctor").out


@pytest.mark.usefixtures("no_gpu")
def test_optional_things_that_are_missing_are_notes(monkeypatch):
    monkeypatch.setattr(doctor, "find_spec", lambda _: None)
    monkeypatch.setattr(doctor, "_version", lambda name: None if "xgboost" in name else "1.0")
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("CXX", sys.executable)
    shown = ended(0, "doctor").out
    for name in ("CuPy", "TVM", "xgboost", "nvcc"):
        assert f"note    {name}: " in shown


@pytest.mark.usefixtures("no_gpu")
def test_a_missing_package_is_broken(monkeypatch):
    monkeypatch.setattr(doctor, "_version", lambda name: None if name == "numpy" else "1.0")
    assert "-> pip install numpy" in ended(1, "doctor").out


@pytest.mark.parametrize(
    ("probe", "said"),
    [
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "ended by signal 11"),
        ("raise RuntimeError('too old')", "RuntimeError: too old"),
        ("import sys; sys.exit(3)", "no message"),
    ],
)
def test_a_package_that_ends_its_process_is_broken(probe, said, monkeypatch):
    monkeypatch.setattr(doctor, "find_spec", lambda _: SimpleNamespace())
    monkeypatch.setattr(doctor, "_TVM_PROBE", probe)
    monkeypatch.setattr(doctor, "_CUPY_PROBE", probe)
    for check in (doctor.check_tvm(), doctor.check_cupy()):
        assert check.status == "broken"
        assert said in check.found


def test_a_package_that_works_tells_its_version(monkeypatch):
    monkeypatch.setattr(doctor, "find_spec", lambda _: SimpleNamespace())
    monkeypatch.setattr(doctor, "_CUPY_PROBE", """print('warning'); print('["14.2", "13.0"]')""")
    assert doctor.check_cupy() == Check("CuPy", "ok", "14.2 with NVRTC 13.0")
