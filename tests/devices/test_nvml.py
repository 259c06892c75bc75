"""Loading NVML, and writing power limits only when that is allowed."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from pytest_gpuenergy.devices.nvml import NEEDED, GuardedNvml, load_nvml, text
from pytest_gpuenergy.support.errors import CapWritesDeniedError, DeviceError


class NvmlError(Exception):
    """As `pynvml.NVMLError`."""


def fake(**changes: Any) -> SimpleNamespace:
    """A module like `pynvml`, complete and working."""
    functions: dict[str, Any] = dict.fromkeys(NEEDED, lambda *_: None)
    return SimpleNamespace(**{**functions, "NVMLError": NvmlError, **changes})


def install(monkeypatch: pytest.MonkeyPatch, module: object) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", module)  # type: ignore[arg-type]


def test_a_working_library_is_initialized_once(monkeypatch: pytest.MonkeyPatch) -> None:
    starts: list[bool] = []
    install(monkeypatch, fake(nvmlInit=lambda: starts.append(True)))
    assert isinstance(load_nvml(), GuardedNvml)
    assert starts == [True]


def test_without_the_module_the_error_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    install(monkeypatch, None)
    with pytest.raises(DeviceError, match="pip install nvidia-ml-py"):
        load_nvml()


@pytest.mark.parametrize("name", NEEDED)
def test_an_old_module_is_named_with_its_place(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    module = fake(__file__="/old/pynvml.py")
    delattr(module, name)
    install(monkeypatch, module)
    with pytest.raises(DeviceError, match=rf"pynvml at /old/pynvml\.py lacks {name}: pip install"):
        load_nvml()


def test_the_declared_module_has_all_we_need() -> None:
    assert [name for name in NEEDED if not hasattr(pynvml, name)] == []


def test_a_driver_that_does_not_start_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise NvmlError("Driver/library version mismatch")

    install(monkeypatch, fake(nvmlInit=fail))
    with pytest.raises(DeviceError, match=r"does not start \(Driver/library version mismatch\): "):
        load_nvml()


def test_all_else_is_the_module_itself() -> None:
    assert GuardedNvml(pynvml).nvmlDeviceGetName is pynvml.nvmlDeviceGetName
    assert GuardedNvml(pynvml).NVMLError is pynvml.NVMLError


WRITES = {
    "nvmlDeviceSetPowerManagementLimit": (0, 300_000),
    "nvmlDeviceSetPowerManagementLimit_v2": (0, 0, 300_000),
}


def test_every_function_that_writes_a_limit_is_known() -> None:
    written = {name for name in dir(pynvml) if name.startswith("nvmlDeviceSetPowerManagement")}
    assert written <= set(WRITES)


@pytest.mark.parametrize("word", ["deny", "Deny", "1", "false"])
@pytest.mark.parametrize(("name", "arguments"), WRITES.items(), ids=list(WRITES))
def test_a_denied_write_does_not_reach_nvml(
    monkeypatch: pytest.MonkeyPatch, name: str, arguments: tuple[int, ...], word: str
) -> None:
    monkeypatch.setenv("GPUENERGY_CAP_WRITES", word)
    writes: list[tuple[int, ...]] = []
    nvml = GuardedNvml(fake(**{name: lambda *given: writes.append(given)}))
    with pytest.raises(CapWritesDeniedError, match="unset it, or use --powercap current"):
        getattr(nvml, name)(*arguments)
    assert writes == []


@pytest.mark.parametrize("word", [None, "", "allow"])
@pytest.mark.parametrize(("name", "arguments"), WRITES.items(), ids=list(WRITES))
def test_an_allowed_write_reaches_nvml_unchanged(
    monkeypatch: pytest.MonkeyPatch, name: str, arguments: tuple[int, ...], word: str | None
) -> None:
    monkeypatch.delenv("GPUENERGY_CAP_WRITES")
    if word is not None:
        monkeypatch.setenv("GPUENERGY_CAP_WRITES", word)
    writes: list[tuple[int, ...]] = []
    nvml = GuardedNvml(fake(**{name: lambda *given: writes.append(given)}))
    getattr(nvml, name)(*arguments)
    assert writes == [arguments]


@pytest.mark.parametrize("value", ["NVIDIA H200", b"NVIDIA H200"])
def test_strings_of_old_and_new_modules(value: str | bytes) -> None:
    assert text(value) == "NVIDIA H200"
