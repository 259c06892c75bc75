"""What the description of a GPU on another host answers."""

from __future__ import annotations

import pytest

from pytest_gpuenergy.control import CURRENT
from pytest_gpuenergy.support import UnavailableError
from pytest_gpuenergy.tuning import RemoteDevice, card_resources


def remote(*, cores: int | None, energy_mj: float | None) -> RemoteDevice:
    return RemoteDevice(
        "NVIDIA H200",
        "GPU-1",
        "sm_90",
        emulated=False,
        versions={},
        cores=cores,
        enforced=CURRENT,
        energy_mj=lambda: energy_mj,
    )


FUNCTIONS = ("nvmlDeviceGetNumGpuCores", "nvmlDeviceGetTotalEnergyConsumption")


@pytest.mark.parametrize(("function", "answer"), [*zip(FUNCTIONS, (16896, 2.5), strict=True)])
def test_nvml_answers_what_the_host_reported(function, answer):
    device = remote(cores=16896, energy_mj=2.5)
    assert getattr(device.nvml, function)(device.handle) == answer


@pytest.mark.parametrize("function", FUNCTIONS)
def test_what_the_host_did_not_report_is_an_error_of_nvml(function):
    device = remote(cores=None, energy_mj=None)
    with pytest.raises(device.nvml.NVMLError, match="its host reports none"):
        getattr(device.nvml, function)(device.handle)


def test_a_number_of_cores_that_is_not_known_is_explained_as_for_a_card_of_this_host():
    with pytest.raises(UnavailableError, match=r"number of cores \(its host reports none\).*need"):
        card_resources(remote(cores=None, energy_mj=1.0))
