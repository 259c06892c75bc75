"""Finding GPUs, with a driver library and an NVML that the test makes up."""

from __future__ import annotations

import ctypes
import uuid
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import create_autospec

import pytest
from hypothesis import given, strategies as st

from pytest_gpuenergy import devices
from pytest_gpuenergy.control import Lease, Setpoint, writers
from pytest_gpuenergy.devices import (
    GuardedNvml,
    NvmlGpu,
    cuda_uuids,
    discovery,
    find_gpus,
    has_context,
    visible_gpus,
)
from pytest_gpuenergy.emulator import DEFAULT_PROFILE, EmulatedDevice, HostRunner
from pytest_gpuenergy.opening import open_gpu
from pytest_gpuenergy.support import DeviceError, InputError

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
    """A newer driver, which has a second version of a function."""

    def cuDeviceGetUuid_v2(self, raw: Any, device: Any) -> int:  # noqa: N802
        return Cuda.cuDeviceGetUuid(self, raw, device)

    def cuDeviceGetUuid(self, *_: Any) -> int:  # noqa: N802
        raise AssertionError("the newer function must be taken")


class Nvml:
    """An NVML that knows GPUs of these UUIDs."""

    class NVMLError(Exception):
        """The error of `pynvml`."""

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
    """Return a function that installs a driver library and an NVML."""

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
def test_uuids_are_in_cudas_order_and_nvmls_form(machine, kind):
    machine(kind(SECOND, FIRST))
    assert cuda_uuids() == [SECOND, FIRST]


def test_gpus_are_mapped_by_uuid_not_by_index(machine):
    machine(Cuda(SECOND), Nvml(FIRST, SECOND))
    _, (gpu,) = find_gpus()
    assert (gpu.ordinal, gpu.uuid, gpu.name) == (0, SECOND, "NVIDIA H200")
    assert gpu.handle == f"handle of {SECOND}"


def test_a_machine_whose_gpus_are_hidden_has_none(machine):
    machine(Cuda(), Nvml(FIRST))
    assert find_gpus()[1] == []


def test_a_machine_without_the_library_says_what_to_install(machine):
    machine(OSError("libcuda.so.1: cannot open shared object file"))
    with pytest.raises(DeviceError, match=r"libcuda.so.1 is missing: install the NVIDIA driver"):
        cuda_uuids()


@pytest.mark.parametrize(
    "function", ["cuInit", "cuDeviceGetCount", "cuDeviceGet", "cuDeviceGetUuid"]
)
def test_a_driver_that_fails_is_named(machine, function):
    machine(Cuda(FIRST, fails=function))
    with pytest.raises(
        DeviceError, match=rf"{function} of the CUDA driver fails with CUDA_ERROR_NO_DEVICE: check"
    ):
        cuda_uuids()


def test_an_error_without_a_name_has_its_number(machine):
    machine(Cuda(FIRST, fails="cuInit", named=False))
    with pytest.raises(DeviceError, match="cuInit of the CUDA driver fails with error 100"):
        cuda_uuids()


def test_a_gpu_that_nvml_does_not_know_is_named(machine):
    machine(Cuda(FIRST), Nvml(SECOND))
    with pytest.raises(DeviceError, match=rf"CUDA sees {FIRST} but NVML does not \(Not Found\)"):
        find_gpus()


def test_a_mig_instance_is_refused(machine):
    """CUDA reports a MIG instance's UUID like a GPU's; NVML calls it MIG-."""
    machine(Cuda(FIRST), Nvml(FIRST.replace("GPU-", "MIG-")))
    with pytest.raises(DeviceError, match=r"CUDA device 0 is a MIG instance, .* CUDA_VISIBLE"):
        find_gpus()


@pytest.mark.parametrize("in_use", [None, 0, 1])
def test_it_is_known_whose_context_this_process_has(machine, in_use):
    cuda = Cuda(FIRST, SECOND)
    cuda.in_use = in_use
    machine(cuda)
    assert [has_context(ordinal) for ordinal in range(2)] == [in_use == 0, in_use == 1]


def test_a_driver_that_does_not_tell_of_contexts_is_named(machine):
    machine(Cuda(FIRST, fails="cuDevicePrimaryCtxGetState"))
    with pytest.raises(
        DeviceError, match=r"cuDevicePrimaryCtxGetState .* with CUDA_ERROR_NO_DEVICE"
    ):
        has_context(0)


A, B, C, D = UUIDS = ("GPU-aa11-1", "GPU-aa22-2", "GPU-bb33-3", "GPU-cc44-4")
ALIKE = [(uuid, "NVIDIA H200") for uuid in UUIDS]
MIXED = [(A, "NVIDIA A30"), (B, "NVIDIA H200")]


def seen(value: str | None, order: str | None = None) -> tuple[str, ...]:
    given = {"CUDA_VISIBLE_DEVICES": value, "CUDA_DEVICE_ORDER": order}
    return visible_gpus({k: v for k, v in given.items() if v is not None}, ALIKE).uuids


@pytest.mark.parametrize(
    ("value", "uuids"),
    [
        (None, UUIDS),
        ("", ()),
        ("  ", ()),
        ("-1", ()),
        ("2", (C,)),
        ("2,0", (C, A)),
        (" 2 , 0 ", (C, A)),
        # the programming guide's own example, with one GPU more
        ("0,2,-1,1", (A, C)),
        ("0,4,1", (A,)),
        ("0,,1", (A,)),
        ("0,none,1", (A,)),
        ("NoDevFiles", ()),
        ("1gpu,2", (B, C)),
        ("1,1", ()),
        ("0,1,0", ()),
        (B, (B,)),
        (f"{D},{A}", (D, A)),
        ("GPU-bb,GPU-aa1", (C, A)),
        ("GPU-aa", ()),  # of two GPUs
        ("GPU-bb,GPU-aa", (C,)),
        ("GPU-bb,0", (C,)),
        ("0,GPU-bb", (A,)),
        ("GPU-bb,GPU-bb33", ()),
        ("GPU-ee", ()),
        ("MIG-GPU-aa11-1/1/0", ()),
        ("MIG-5e8c2a31-0000-0000-0000-000000000000", ()),
        ("0,MIG-GPU-aa11-1/1/0", (A,)),
    ],
)
def test_which_gpus_are_seen(value, uuids):
    assert seen(value) == uuids


@pytest.mark.parametrize(
    ("value", "remark"),
    [
        (None, None),
        ("1,0", None),
        ("", "CUDA_VISIBLE_DEVICES is empty, which hides every GPU"),
        ("0,0", "CUDA_VISIBLE_DEVICES names a GPU twice, which hides every GPU"),
        ("0,7", "CUDA_VISIBLE_DEVICES has '7', which is not a GPU here: CUDA stops reading there"),
        (
            "GPU-aa",
            "CUDA_VISIBLE_DEVICES has 'GPU-aa', which is not a GPU here: CUDA stops reading",
        ),
        ("MIG-1", "CUDA_VISIBLE_DEVICES names the MIG instance MIG-1, which has no power sensor"),
    ],
)
def test_what_is_asked_in_vain_is_said(value, remark):
    environment = {} if value is None else {"CUDA_VISIBLE_DEVICES": value}
    found = visible_gpus(environment, ALIKE).remark
    assert found == remark if remark is None else str(found).startswith(remark)


def test_unlike_gpus_are_in_the_order_of_their_addresses_when_that_is_asked():
    environment = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": "1"}
    assert visible_gpus(environment, MIXED).uuids == (B,)


@pytest.mark.parametrize("order", [None, "FASTEST_FIRST", "pci_bus_id"])
@pytest.mark.parametrize("value", [None, "0", "1,0"])
def test_which_of_unlike_gpus_is_the_fastest_only_cuda_knows(order, value):
    given = {"CUDA_VISIBLE_DEVICES": value, "CUDA_DEVICE_ORDER": order}
    with pytest.raises(InputError, match=r"set CUDA_DEVICE_ORDER=PCI_BUS_ID, or name GPUs by UUID"):
        visible_gpus({k: v for k, v in given.items() if v is not None}, MIXED)


def test_a_uuid_needs_no_order():
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": "GPU-aa2"}, MIXED).uuids == (B,)


WORDS = st.one_of(
    st.integers(-2, 6).map(str),
    st.sampled_from([*UUIDS, "GPU-", "GPU-a", "MIG-x"]),
    st.text(max_size=4),
)


@given(st.lists(WORDS, max_size=6).map(",".join))
def test_whatever_is_said_no_gpu_is_seen_twice(value):
    uuids = seen(value)
    assert len(set(uuids)) == len(uuids)
    assert set(uuids) <= set(UUIDS)


@given(st.permutations(range(4)), st.integers(0, 4))
def test_gpus_are_seen_in_the_order_of_the_list(order, count):
    value = ",".join(map(str, order[:count]))
    assert seen(value) == tuple(UUIDS[k] for k in order[:count])
    assert seen(",".join(UUIDS[k] for k in order[:count])) == seen(value)


# -- power limits on a machine with several GPUs -------------------------------------------


@pytest.fixture
def four(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[NvmlGpu]]:
    """A machine with four cards, each with its own limit, and no CUDA library."""
    monkeypatch.setenv("GPUENERGY_CAP_WRITES", "allow")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.delenv("CUDA_DEVICE_ORDER", raising=False)
    monkeypatch.setattr(writers, "may_change_settings", lambda: True)

    def no_cuda() -> list[str]:
        raise DeviceError("libcuda.so.1 is missing.")

    runner: Any = create_autospec(HostRunner, instance=True)
    with EmulatedDevice(DEFAULT_PROFILE, 3, runner=runner) as last:
        assert isinstance(last, EmulatedDevice)
        nvml: Any = last.nvml
        cards = []
        for index in range(4):
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            nvml.nvmlDeviceSetPowerManagementLimit(handle, 400_000 + 1000 * index)
            uuid = DEFAULT_PROFILE.uuid(index)
            cards.append(NvmlGpu(GuardedNvml(nvml), handle, last.name, uuid, last.clock))
        monkeypatch.setattr(devices, "load_nvml", lambda: GuardedNvml(nvml))
        monkeypatch.setattr(devices, "cuda_uuids", no_cuda)
        yield cards


def limits_w(cards: list[NvmlGpu]) -> list[float]:
    return [card.nvml.nvmlDeviceGetPowerManagementLimit(card.handle) / 1e3 for card in cards]


def with_cuda(order: list[int]) -> Callable[[list[NvmlGpu], pytest.MonkeyPatch], None]:
    """Install CUDA's library, which sees the cards in this order."""

    def install(cards: list[NvmlGpu], monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(devices, "cuda_uuids", lambda: [cards[k].uuid for k in order])

    return install


def with_environment(*names: int | str) -> Callable[[list[NvmlGpu], pytest.MonkeyPatch], None]:
    """Set ``CUDA_VISIBLE_DEVICES`` to indices, or to ``uuid3`` for the UUID of card 3."""

    def install(cards: list[NvmlGpu], monkeypatch: pytest.MonkeyPatch) -> None:
        words = [
            cards[int(name.removeprefix("uuid"))].uuid if isinstance(name, str) else str(name)
            for name in names
        ]
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", ",".join(words))

    return install


@pytest.mark.parametrize(
    ("install", "spec", "touched"),
    [
        (with_cuda([0, 1, 2, 3]), "auto", 0),
        (with_cuda([3, 1, 0, 2]), "auto", 3),
        (with_cuda([3, 1, 0, 2]), "2", 0),
        (with_cuda([2]), "0", 2),
        (with_environment(2, 0), "0", 2),
        (with_environment(2, 0), "1", 0),
        (with_environment("uuid3", "uuid1"), "1", 1),
        (with_environment("uuid3"), "auto", 3),
    ],
)
def test_only_the_selected_gpu_is_touched(four, monkeypatch, install, spec, touched):
    install(four, monkeypatch)
    before = limits_w(four)
    with open_gpu(spec) as gpu:
        assert gpu.uuid == four[touched].uuid
        lease = Lease(gpu)
        lease.set(Setpoint(300.0))
        assert limits_w(four) == [300.0 if k == touched else w for k, w in enumerate(before)]
        lease.restore()
    assert limits_w(four) == before


@pytest.mark.parametrize(
    ("value", "spec", "message"),
    [
        ("2,0", "2", r"CUDA sees 2 GPU\(s\) here, numbered from 0"),
        ("", "0", "CUDA sees no GPU here; use emulated"),
        ("2,0", DEFAULT_PROFILE.uuid(1), "there is no such GPU here"),
        ("2,0", "GPU-", "several GPUs match"),
    ],
)
@pytest.mark.usefixtures("four")
def test_a_gpu_that_is_hidden_is_not_taken(monkeypatch, value, spec, message):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", value)
    monkeypatch.setattr(devices, "find_gpus", lambda: ("nvml", []))
    with pytest.raises(InputError, match=message), open_gpu(spec):
        pass


@pytest.mark.usefixtures("four")
def test_where_all_are_hidden_the_emulated_one_is_taken(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    monkeypatch.setattr(devices, "find_gpus", lambda: ("nvml", []))
    with open_gpu("auto") as gpu:
        assert gpu.emulated
