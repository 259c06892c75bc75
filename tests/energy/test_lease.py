"""A power limit is put back, whatever happens to the process that changed it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from pytest_gpuenergy.devices.device import Device
from pytest_gpuenergy.devices.emulated.device import EmulatedDevice
from pytest_gpuenergy.devices.nvml import GuardedNvml
from pytest_gpuenergy.energy.lease import (
    LeaseRecord,
    PowerCapLease,
    enforced_limit_w,
    leftover,
    restore_leftover,
)
from pytest_gpuenergy.energy.powercap import CURRENT, PowerCap
from pytest_gpuenergy.errors import CapWritesDeniedError, PowerCapError

CAP = PowerCap(300.0)
PRIOR_MW = 450_000
"""Neither the default nor the greatest limit, so that only the prior one is right."""

CHILD = """
import os, signal
from pytest_gpuenergy.devices.select import open_device
from pytest_gpuenergy.energy.lease import PowerCapLease
from pytest_gpuenergy.energy.powercap import PowerCap
device = open_device("emulated")
lease = PowerCapLease(device)
"""
DIE = "os.kill(os.getpid(), signal.SIGKILL)\n"


@pytest.fixture
def card(device: EmulatedDevice) -> EmulatedDevice:
    """A card with a limit of its owner's."""
    write(device, PRIOR_MW)
    return device


def write(device: EmulatedDevice, limit_mw: int) -> None:
    device.nvml.nvmlDeviceSetPowerManagementLimit(device.handle, limit_mw)


def present_mw(device: EmulatedDevice) -> int:
    return int(device.nvml.nvmlDeviceGetPowerManagementLimit(device.handle))


def killed(body: str) -> None:
    """Run ``body`` in a process that ends by SIGKILL."""
    died = subprocess.run([sys.executable, "-c", CHILD + body + DIE], timeout=60, check=False)
    assert died.returncode == -signal.SIGKILL


def record_path(device: EmulatedDevice, state: Path) -> Path:
    return state / "leases" / f"{device.uuid}.json"


def test_the_card_is_set_and_tells_what_it_enforces(card: EmulatedDevice) -> None:
    assert PowerCapLease(card).set(CAP) == 300.0
    assert present_mw(card) == 300_000


def test_a_card_that_enforces_less_says_so(card: EmulatedDevice) -> None:
    card.inject("enforced_limit", {"power_w": 250})
    assert PowerCapLease(card).set(CAP) == 250.0


def test_the_prior_limit_is_restored(card: EmulatedDevice) -> None:
    lease = PowerCapLease(card)
    lease.set(CAP)
    lease.restore()
    assert present_mw(card) == PRIOR_MW


def test_the_prior_limit_survives_several_caps(card: EmulatedDevice) -> None:
    lease = PowerCapLease(card)
    for watts in (300.0, 500.0, 200.0):
        lease.set(PowerCap(watts))
    lease.restore()
    assert present_mw(card) == PRIOR_MW


def test_restoring_twice_writes_once(card: EmulatedDevice) -> None:
    lease = PowerCapLease(card)
    lease.set(CAP)
    lease.restore()
    write(card, 600_000)
    lease.restore()
    assert present_mw(card) == 600_000


def test_current_puts_the_prior_limit_back(card: EmulatedDevice) -> None:
    lease = PowerCapLease(card)
    lease.set(CAP)
    assert lease.set(CURRENT) == PRIOR_MW / 1e3


def test_current_writes_nothing(card: EmulatedDevice) -> None:
    card.inject("power_limit", "no_permission")
    lease = PowerCapLease(card)
    assert lease.set(CURRENT) == PRIOR_MW / 1e3
    lease.restore()


def test_a_cap_that_is_already_set_writes_nothing(card: EmulatedDevice, own_folders: Path) -> None:
    card.inject("power_limit", "no_permission")
    assert PowerCapLease(card).set(PowerCap(PRIOR_MW / 1e3)) == PRIOR_MW / 1e3
    assert not record_path(card, own_folders).exists()


def test_nothing_is_left_on_disk_when_all_is_restored(
    card: EmulatedDevice, own_folders: Path
) -> None:
    lease = PowerCapLease(card)
    lease.set(CAP)
    assert record_path(card, own_folders).exists()
    lease.restore()
    assert not list((own_folders / "leases").iterdir())


def test_a_limit_that_somebody_set_since_is_theirs(card: EmulatedDevice) -> None:
    lease = PowerCapLease(card)
    lease.set(CAP)
    write(card, 600_000)
    lease.restore()
    assert present_mw(card) == 600_000


def test_the_next_cap_fails_when_somebody_changed_the_limit(card: EmulatedDevice) -> None:
    lease = PowerCapLease(card)
    lease.set(CAP)
    write(card, 600_000)
    with pytest.raises(PowerCapError, match=r"Somebody else has changed .* H200 to 600 W: end the"):
        lease.set(PowerCap(400.0))


def test_the_next_start_restores_after_a_kill(card: EmulatedDevice) -> None:
    killed("lease.set(PowerCap(300.0))\n")
    assert present_mw(card) == 300_000
    PowerCapLease(card)
    assert present_mw(card) == PRIOR_MW


def test_the_next_start_restores_after_a_kill_at_the_second_cap(card: EmulatedDevice) -> None:
    killed("lease.set(PowerCap(300.0)); lease.set(PowerCap(550.0))\n")
    assert restore_leftover(card) == "The power limit of NVIDIA H200 is 450 W again."
    assert present_mw(card) == PRIOR_MW


@pytest.mark.parametrize("earlier", ["", "lease.set(PowerCap(550.0))\n"])
@pytest.mark.parametrize("written", [False, True])
def test_a_kill_in_the_middle_of_a_write_is_undone(
    card: EmulatedDevice, earlier: str, written: bool
) -> None:
    killed(
        earlier
        + "write = device.nvml.nvmlDeviceSetPowerManagementLimit\n"
        + "def die(*arguments):\n"
        + ("    write(*arguments)\n" if written else "")
        + f"    {DIE}"
        + "device.nvml.nvmlDeviceSetPowerManagementLimit = die\n"
        + "lease.set(PowerCap(300.0))\n"
    )
    restore_leftover(card)
    assert present_mw(card) == PRIOR_MW
    assert leftover(card.uuid) is None


def test_a_limit_set_since_the_kill_is_left_alone(card: EmulatedDevice) -> None:
    killed("lease.set(PowerCap(300.0))\n")
    write(card, 600_000)
    assert restore_leftover(card) == (
        "The power limit of NVIDIA H200 has been set to 600 W since; it is left alone."
    )
    assert present_mw(card) == 600_000


def test_without_a_leftover_nothing_is_restored(card: EmulatedDevice) -> None:
    assert restore_leftover(card) is None


def test_the_record_of_a_living_process_is_no_leftover(card: EmulatedDevice) -> None:
    PowerCapLease(card).set(CAP)
    assert leftover(card.uuid) is None


def test_a_record_whose_process_number_was_used_again_is_a_leftover(
    card: EmulatedDevice, own_folders: Path
) -> None:
    PowerCapLease(card).set(CAP)
    path = record_path(card, own_folders)
    record = json.loads(path.read_text())
    path.write_text(json.dumps({**record, "started": record["started"] + 1}))
    found = leftover(card.uuid)
    assert isinstance(found, LeaseRecord)
    assert (found.pid, found.prior_mw, found.set_mw) == (os.getpid(), PRIOR_MW, 300_000)


def test_a_leftover_that_cannot_be_restored_stays(card: EmulatedDevice) -> None:
    killed("lease.set(PowerCap(300.0))\n")
    card.inject("power_limit", "no_permission")
    with pytest.raises(PowerCapError, match="run as root"):
        PowerCapLease(card)
    assert leftover(card.uuid) is not None


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "{}", "null", '{"prior_mw": "much"}', "\0\0", '{"prior_mw": null}'],
)
def test_a_damaged_record_is_refused(card: EmulatedDevice, own_folders: Path, text: str) -> None:
    PowerCapLease(card).set(CAP)
    record_path(card, own_folders).write_text(text)
    with pytest.raises(PowerCapError, match=r"cannot be read: set the card's limit by hand .*nvid"):
        PowerCapLease(card)


@pytest.mark.parametrize(
    ("error", "advice"),
    [
        ("no_permission", "run as root"),
        ("not_supported", "this card's limit cannot be changed; use --powercap current"),
        ("invalid_argument", "within the card's constraints"),
        ("unknown", "check the card with nvidia-smi"),
    ],
)
def test_a_refusal_says_what_to_do(
    card: EmulatedDevice, own_folders: Path, error: str, advice: str
) -> None:
    card.inject("power_limit", error)
    lease = PowerCapLease(card)
    with pytest.raises(PowerCapError, match=rf"H200 cannot be set to 300 W \(.*\): .*{advice}"):
        lease.set(CAP)
    assert present_mw(card) == PRIOR_MW
    assert not record_path(card, own_folders).exists()


def test_a_later_refusal_keeps_the_record_of_the_first_cap(card: EmulatedDevice) -> None:
    lease = PowerCapLease(card)
    lease.set(CAP)
    fault = card.inject("power_limit", "unknown")
    with pytest.raises(PowerCapError):
        lease.set(PowerCap(500.0))
    card.state.withdraw(fault)
    lease.restore()
    assert present_mw(card) == PRIOR_MW


def test_a_limit_outside_the_constraints_is_refused(card: EmulatedDevice) -> None:
    with pytest.raises(PowerCapError, match="choose a limit within the card's constraints"):
        PowerCapLease(card).set(PowerCap(5000.0))


def test_an_unavailable_cap_is_not_tried(card: EmulatedDevice) -> None:
    cap = PowerCap(300.0, 1, unavailable="100 W lies outside")
    with pytest.raises(PowerCapError, match="Power cap 300W is skipped: 100 W lies outside"):
        PowerCapLease(card).set(cap)
    assert present_mw(card) == PRIOR_MW


def test_a_card_that_does_not_tell_its_limit_is_refused(card: EmulatedDevice) -> None:
    card.inject("nvmlDeviceGetPowerManagementLimit", "not_supported")
    with pytest.raises(PowerCapError, match="does not tell its power limit"):
        PowerCapLease(card).set(CAP)


def test_an_enforced_limit_that_is_not_told_is_none(card: EmulatedDevice) -> None:
    card.inject("nvmlDeviceGetEnforcedPowerLimit", "not_supported")
    assert enforced_limit_w(card) is None


def test_a_card_that_takes_another_limit_is_refused_and_restored(
    card: EmulatedDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    exact = card.nvml.nvmlDeviceSetPowerManagementLimit
    lease = PowerCapLease(card)
    with monkeypatch.context() as rounding:
        rounding.setattr(
            card.nvml,
            "nvmlDeviceSetPowerManagementLimit",
            lambda handle, limit_mw: exact(handle, limit_mw // 50_000 * 50_000),
        )
        with pytest.raises(PowerCapError, match="took 300 W when asked for 325 W"):
            lease.set(PowerCap(325.0))
    lease.restore()
    assert present_mw(card) == PRIOR_MW


def test_nothing_is_set_when_the_prior_limit_cannot_be_noted(
    card: EmulatedDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = PowerCapLease(card)

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(PowerCapError, match=r"No space left .* so no limit is set"):
        lease.set(CAP)
    assert present_mw(card) == PRIOR_MW


class RealNvml:
    """Stands for a real card's `pynvml`; keeps what was written."""

    class NVMLError(Exception):
        pass

    def __init__(self) -> None:
        self.limit_mw = PRIOR_MW
        self.writes: list[int] = []

    def nvmlDeviceGetPowerManagementLimit(self, _: object) -> int:  # noqa: N802
        return self.limit_mw

    nvmlDeviceGetEnforcedPowerLimit = nvmlDeviceGetPowerManagementLimit  # noqa: N815

    def nvmlDeviceSetPowerManagementLimit(self, _: object, limit_mw: int) -> None:  # noqa: N802
        self.writes.append(limit_mw)
        self.limit_mw = limit_mw


@pytest.fixture
def real() -> Callable[[RealNvml], Device]:
    def make(nvml: RealNvml) -> Device:
        fields: dict[str, Any] = {"name": "Real", "uuid": "GPU-real", "handle": 0}
        return cast(Device, SimpleNamespace(nvml=GuardedNvml(nvml), **fields))

    return make


@pytest.mark.parametrize("word", ["deny", "DENY", "0", "no"])
def test_denied_writes_never_reach_a_real_card(
    real: Callable[[RealNvml], Device], monkeypatch: pytest.MonkeyPatch, word: str
) -> None:
    monkeypatch.setenv("GPUENERGY_CAP_WRITES", word)
    nvml = RealNvml()
    with pytest.raises(CapWritesDeniedError, match="forbids changing the power limit"):
        PowerCapLease(real(nvml)).set(CAP)
    assert nvml.writes == []


@pytest.mark.parametrize("word", ["", "allow", "ALLOW"])
def test_allowed_writes_reach_the_card_and_are_undone(
    real: Callable[[RealNvml], Device], monkeypatch: pytest.MonkeyPatch, word: str
) -> None:
    monkeypatch.setenv("GPUENERGY_CAP_WRITES", word)
    nvml = RealNvml()
    lease = PowerCapLease(real(nvml))
    lease.set(CAP)
    lease.restore()
    assert nvml.writes == [300_000, PRIOR_MW]
