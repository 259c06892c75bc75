"""The device that --gpu-device names is opened."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from hypothesis import given, strategies as st

from pytest_gpuenergy import devices
from pytest_gpuenergy.devices import FoundGpu
from pytest_gpuenergy.opening import EmulatedSpec, check_spec, count_gpus, open_device
from pytest_gpuenergy.support import DeviceError, InputError

GPUS = [FoundGpu(0, "GPU-aa11", "NVIDIA H200", "h0"), FoundGpu(1, "GPU-bb22", "NVIDIA A30", "h1")]


class FakeDevice:
    """A stand-in for the device of a GPU; ``mig`` has the MIG mode of each handle."""

    mig: ClassVar[dict[object, int]] = {}

    def __init__(self, nvml: object, gpu: FoundGpu) -> None:
        self.nvml, self.gpu = nvml, gpu
        self.handle, self.name, self.uuid = gpu.handle, gpu.name, gpu.uuid
        self.closed = False
        opened.append(self)

    def close(self) -> None:
        self.closed = True


opened: list[FakeDevice] = []


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> list[FoundGpu]:
    """The GPUs of the machine, which a test may change."""
    gpus = list(GPUS)

    def mig_mode(handle: object) -> tuple[int, int]:
        if handle not in FakeDevice.mig:
            raise OSError("not supported")
        return FakeDevice.mig[handle], 0

    nvml = SimpleNamespace(nvmlDeviceGetMigMode=mig_mode, NVMLError=OSError)
    monkeypatch.setattr(FakeDevice, "mig", {"h0": 0})
    monkeypatch.setattr(devices, "find_gpus", lambda: (nvml, gpus))
    monkeypatch.setattr(devices, "CudaDevice", FakeDevice)
    opened.clear()
    return gpus


@pytest.fixture
def no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without an NVIDIA driver."""

    def fail() -> Any:
        raise DeviceError("The CUDA driver library libcuda.so.1 is missing.")

    monkeypatch.setattr(devices, "find_gpus", fail)


@pytest.mark.parametrize(
    ("spec", "wanted"),
    [
        ("emulated", EmulatedSpec("h200", 1)),
        ("emulated:a30", EmulatedSpec("a30", 1)),
        ("emulatedx2", EmulatedSpec("h200", 2)),
        ("emulated:rtx3090x16", EmulatedSpec("rtx3090", 16)),
        ("auto", None),
        ("0", None),
        ("GPU-aa11", None),
    ],
)
def test_words_that_are_understood(spec, wanted):
    assert check_spec(spec) == wanted


@pytest.mark.parametrize(
    "spec", ["", "cuda", "-1", "emulated:", "emulated:h200x", "emulated x2", "gpu-aa", "H200"]
)
def test_words_that_are_not_understood_list_the_choices(spec):
    with pytest.raises(InputError, match=r"is not understood|no emulated GPU") as raised:
        check_spec(spec)
    assert "emulated" in str(raised.value)


@pytest.mark.parametrize("count", [0, 17, 99])
def test_too_many_or_no_gpus_are_refused(count):
    with pytest.raises(InputError, match=f"asks for {count} GPUs: choose 1 to 16"):
        check_spec(f"emulatedx{count}")


def test_an_unknown_profile_lists_the_profiles():
    with pytest.raises(InputError, match="no emulated GPU 'gtx280': choose one of h200"):
        check_spec("emulated:gtx280")


@given(st.text(max_size=20) | st.text(max_size=9).map("emulated".__add__))
def test_any_words_are_understood_or_an_input_error(spec):
    with contextlib.suppress(InputError):
        emulated = check_spec(spec)
        assert (emulated is not None) == spec.startswith("emulated")


@pytest.mark.parametrize(
    ("spec", "gpu"), [("auto", 0), ("0", 0), ("1", 1), ("GPU-bb22", 1), ("GPU-b", 1)]
)
def test_a_real_gpu_is_chosen(found, spec, gpu):
    device: Any = open_device(spec)
    assert device.gpu is found[gpu]
    assert not device.closed


@pytest.mark.usefixtures("found")
def test_a_gpu_in_mig_mode_is_refused(monkeypatch):
    monkeypatch.setitem(FakeDevice.mig, "h1", 1)
    with pytest.raises(DeviceError, match=r"NVIDIA A30 is in MIG mode, .* use another GPU"):
        open_device("1")
    assert opened[-1].closed


def test_an_emulated_gpu_in_mig_mode_is_refused(monkeypatch):
    monkeypatch.setenv("GPUENERGY_EMULATED_FAULTS", '{"mig": true}')
    with pytest.raises(DeviceError, match="NVIDIA H200 is in MIG mode"):
        open_device("emulated")
    monkeypatch.delenv("GPUENERGY_EMULATED_FAULTS")
    open_device("emulated").close()


@pytest.mark.usefixtures("found")
@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("2", r"CUDA sees 2 GPU\(s\) here, numbered from 0"),
        ("GPU-cc", "there is no such GPU here; choose from GPU-aa11, GPU-bb22"),
    ],
)
def test_a_gpu_that_is_not_there_is_refused(spec, message):
    with pytest.raises(InputError, match=message):
        open_device(spec)


def test_without_a_gpu_auto_is_emulated(found):
    found.clear()
    with open_device("auto") as device:
        assert (device.emulated, device.name) == (True, "NVIDIA H200")


@pytest.mark.usefixtures("no_driver")
def test_without_a_driver_auto_is_emulated():
    with open_device("auto") as device:
        assert device.emulated


@pytest.mark.usefixtures("no_driver")
@pytest.mark.parametrize("spec", ["0", "GPU-aa11"])
def test_without_a_driver_a_named_gpu_is_refused(spec):
    with pytest.raises(InputError, match=rf"{spec} names an NVIDIA GPU, .* libcuda\.so\.1 is miss"):
        open_device(spec)


def test_without_a_gpu_a_named_one_is_refused(found):
    found.clear()
    with pytest.raises(InputError, match="--gpu-device 0: CUDA sees no GPU here; use emulated"):
        open_device("0")


@pytest.mark.usefixtures("no_driver")
def test_an_emulated_gpu_needs_no_driver():
    with open_device("emulated:a30") as device:
        assert (device.name, device.architecture) == ("NVIDIA A30", "sm_80")


def test_workers_share_the_emulated_gpus_in_turn():
    uuids = []
    for index in range(4):
        with open_device("emulatedx2", index=index) as device:
            uuids.append(device.uuid)
    assert uuids[:2] == uuids[2:]
    assert len(set(uuids)) == 2


@pytest.mark.usefixtures("found")
@pytest.mark.parametrize(
    ("spec", "count"),
    [("auto", 2), ("1", 1), ("GPU-aa11", 1), ("emulated", 1), ("emulated:a30x3", 3)],
)
def test_there_are_as_many_gpus_as_workers_can_have_one_of(spec, count):
    assert count_gpus(spec) == count
    if count > 1:
        opened = [open_device(spec, index=index) for index in range(count + 1)]
        assert len({device.uuid for device in opened}) == count


@pytest.mark.usefixtures("no_driver")
def test_without_a_driver_there_is_one_emulated_gpu_to_count():
    assert count_gpus("auto") == 1
