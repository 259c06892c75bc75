"""Finding GPUs, with a driver library and an NVML that the test makes up."""

from __future__ import annotations

import ctypes
import uuid
from collections.abc import Callable
from typing import Any

import pytest

from pytest_gpuenergy.devices import GuardedNvml, cuda_uuids, discovery, find_gpus, has_context
from pytest_gpuenergy.support import DeviceError

FIRST = "GPU-11111111-2222-3333-4444-555555555555"
SECOND = "GPU-aaaaaaaa-bbbb-cccc-dddd-eeeeeeeeeeee"


class Cuda:
    """``libcuda.so.1`` with GPUs of these UUIDs; ``fails`` names a function that does not work."""

    def __init__(self, *gpus: str, fails: str = "", named: bool = True) -> None:
        self.gpus, self.fails, self.named = gpus, fails, named
        self.in_use: int | None = None

    def _status(self, function: str) -> int:
        return 100 if function == self.fails else 0

    def cuInit(self, _flags: int) -> int:  # noqa: N802
        return self._status("cuInit")

    def cuDeviceGetCount(self, count: Any) -> int:  # noqa: N802
        count._obj.value = len(self.gpus)
        return self._status("cuDeviceGetCount")

    def cuDeviceGet(self, device: Any, ordinal: int) -> int:  # noqa: N802
        device._obj.value = ordinal
        return self._status("cuDeviceGet")

    def cuDeviceGetUuid(self, raw: Any, device: Any) -> int:  # noqa: N802
        raw._obj[:] = uuid.UUID(self.gpus[device.value].removeprefix("GPU-")).bytes
        return self._status("cuDeviceGetUuid")

    def cuDevicePrimaryCtxGetState(self, device: Any, _flags: Any, active: Any) -> int:  # noqa: N802
        active._obj.value = device.value == self.in_use
        return self._status("cuDevicePrimaryCtxGetState")

    def cuGetErrorName(self, _status: int, name: Any) -> int:  # noqa: N802
        if self.named:
            name._obj.value = b"CUDA_ERROR_NO_DEVICE"
        return 0


class NewCuda(Cuda):
    """A newer driver, with a second version of a function."""

    def cuDeviceGetUuid_v2(self, raw: Any, device: Any) -> int:  # noqa: N802
        return Cuda.cuDeviceGetUuid(self, raw, device)

    def cuDeviceGetUuid(self, *_: Any) -> int:  # noqa: N802
        raise AssertionError("the newer function must be taken")


class Nvml:
    """An NVML that knows GPUs of these UUIDs."""

    class NVMLError(Exception):
        """As in `pynvml`."""

    def __init__(self, *gpus: str) -> None:
        self.gpus = gpus

    def nvmlDeviceGetHandleByUUID(self, gpu: bytes) -> str:  # noqa: N802
        if gpu.decode() not in self.gpus:
            raise self.NVMLError("Not Found")
        return f"handle of {gpu.decode()}"

    def nvmlDeviceGetName(self, _handle: str) -> bytes:  # noqa: N802
        return b"NVIDIA H200"


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Makes a machine of a driver library and an NVML."""

    def make(cuda: Cuda | OSError, nvml: Nvml | None = None) -> None:
        def library(name: str) -> Cuda:
            assert name == "libcuda.so.1"
            if isinstance(cuda, OSError):
                raise cuda
            return cuda

        monkeypatch.setattr(ctypes, "CDLL", library)
        monkeypatch.setattr(discovery, "load_nvml", lambda: GuardedNvml(nvml))

    return make


@pytest.mark.parametrize("kind", [Cuda, NewCuda])
def test_uuids_are_in_cudas_order_and_nvmls_form(
    machine: Callable[..., None], kind: type[Cuda]
) -> None:
    machine(kind(SECOND, FIRST))
    assert cuda_uuids() == [SECOND, FIRST]


def test_gpus_are_mapped_by_uuid_not_by_index(machine: Callable[..., None]) -> None:
    machine(Cuda(SECOND), Nvml(FIRST, SECOND))
    _, (gpu,) = find_gpus()
    assert (gpu.ordinal, gpu.uuid, gpu.name) == (0, SECOND, "NVIDIA H200")
    assert gpu.handle == f"handle of {SECOND}"


def test_a_machine_whose_gpus_are_hidden_has_none(machine: Callable[..., None]) -> None:
    machine(Cuda(), Nvml(FIRST))
    assert find_gpus()[1] == []


def test_a_machine_without_the_library_says_what_to_install(machine: Callable[..., None]) -> None:
    machine(OSError("libcuda.so.1: cannot open shared object file"))
    with pytest.raises(DeviceError, match=r"libcuda.so.1 is missing: install the NVIDIA driver"):
        cuda_uuids()


@pytest.mark.parametrize(
    "function", ["cuInit", "cuDeviceGetCount", "cuDeviceGet", "cuDeviceGetUuid"]
)
def test_a_driver_that_fails_is_named(machine: Callable[..., None], function: str) -> None:
    machine(Cuda(FIRST, fails=function))
    with pytest.raises(
        DeviceError, match=rf"{function} of the CUDA driver fails with CUDA_ERROR_NO_DEVICE: check"
    ):
        cuda_uuids()


def test_an_error_without_a_name_has_its_number(machine: Callable[..., None]) -> None:
    machine(Cuda(FIRST, fails="cuInit", named=False))
    with pytest.raises(DeviceError, match="cuInit of the CUDA driver fails with error 100"):
        cuda_uuids()


def test_a_gpu_that_nvml_does_not_know_is_named(machine: Callable[..., None]) -> None:
    machine(Cuda(FIRST), Nvml(SECOND))
    with pytest.raises(DeviceError, match=rf"CUDA sees {FIRST} but NVML does not \(Not Found\)"):
        find_gpus()


def test_a_mig_instance_is_refused(machine: Callable[..., None]) -> None:
    """CUDA gives the instance's UUID without saying that it is one; NVML knows it as MIG-."""
    machine(Cuda(FIRST), Nvml(FIRST.replace("GPU-", "MIG-")))
    with pytest.raises(DeviceError, match=r"CUDA device 0 is a MIG instance, .* CUDA_VISIBLE"):
        find_gpus()


@pytest.mark.parametrize("in_use", [None, 0, 1])
def test_it_is_known_whose_context_this_process_has(
    machine: Callable[..., None], in_use: int | None
) -> None:
    cuda = Cuda(FIRST, SECOND)
    cuda.in_use = in_use
    machine(cuda)
    assert [has_context(ordinal) for ordinal in range(2)] == [in_use == 0, in_use == 1]


def test_a_driver_that_does_not_tell_of_contexts_is_named(machine: Callable[..., None]) -> None:
    machine(Cuda(FIRST, fails="cuDevicePrimaryCtxGetState"))
    with pytest.raises(
        DeviceError, match=r"cuDevicePrimaryCtxGetState .* with CUDA_ERROR_NO_DEVICE"
    ):
        has_context(0)
