"""Twins of an emulated GPU: cards of their own, as if just switched on."""

from __future__ import annotations

import os
from pathlib import Path

from pytest_gpuenergy.control import Lease, Setpoint
from pytest_gpuenergy.devices import Device
from pytest_gpuenergy.opening import open_device


def limit_w(device: Device) -> float:
    return float(device.nvml.nvmlDeviceGetPowerManagementLimit(device.handle)) / 1e3


def test_what_passes_on_a_twin_does_not_pass_on_the_card() -> None:
    with open_device("emulated") as device:
        before_s = device.clock.now_s()
        with device.twin() as twin:
            twin.clock.sleep_s(100.0)
        assert device.clock.now_s() - before_s < 1.0


def test_every_twin_begins_at_the_same_moment() -> None:
    with open_device("emulated") as device:
        moments = []
        for _ in range(2):
            device.clock.sleep_s(7.0)
            with device.twin() as twin:
                moments.append(twin.clock.now_s())
        assert moments[0] == moments[1]


def test_a_twin_has_the_limit_and_the_name_of_its_card() -> None:
    with open_device("emulated") as device:
        lease = Lease(device)
        lease.set(Setpoint(300.0))
        with device.twin() as twin:
            assert (twin.uuid, twin.name) == (device.uuid, device.name)
            assert limit_w(twin) == 300
        lease.restore()


def test_a_twin_leaves_no_files_behind() -> None:
    with open_device("emulated") as device, device.twin():
        pass
    assert not list(Path("/dev/shm").glob(f"gpuenergy-{os.getpid()}-*"))
