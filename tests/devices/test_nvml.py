"""Loading NVML, and changing a card only when that is allowed."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest
from hypothesis import given, strategies as st

from pytest_gpuenergy.devices import NEEDED, GuardedNvml, load_nvml, printable_text
from pytest_gpuenergy.support import DeviceError, WritesDeniedError


class NvmlError(Exception):
    """The error of `pynvml`."""


def fake(**changes: Any) -> SimpleNamespace:
    """A module like `pynvml`, complete and working."""
    functions: dict[str, Any] = dict.fromkeys(NEEDED, lambda *_: None)
    return SimpleNamespace(**{**functions, "NVMLError": NvmlError, **changes})


def install(monkeypatch: pytest.MonkeyPatch, module: object) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", module)  # type: ignore[arg-type]


def test_a_working_library_is_initialized_once(monkeypatch):
    starts: list[bool] = []
    install(monkeypatch, fake(nvmlInit=lambda: starts.append(True)))
    assert isinstance(load_nvml(), GuardedNvml)
    assert starts == [True]


def test_without_the_module_the_error_says_what_to_install(monkeypatch):
    install(monkeypatch, None)
    with pytest.raises(DeviceError, match="pip install nvidia-ml-py"):
        load_nvml()


@pytest.mark.parametrize("name", NEEDED)
def test_an_old_module_is_named_with_its_place(monkeypatch, name):
    module = fake(__file__="/old/pynvml.py")
    delattr(module, name)
    install(monkeypatch, module)
    with pytest.raises(DeviceError, match=rf"pynvml at /old/pynvml\.py lacks {name}: pip install"):
        load_nvml()


def test_the_declared_module_has_all_we_need():
    assert [name for name in NEEDED if not hasattr(pynvml, name)] == []


def test_a_driver_that_does_not_start_is_one_sentence(monkeypatch):
    def fail() -> None:
        raise NvmlError("Driver/library version mismatch")

    install(monkeypatch, fake(nvmlInit=fail))
    with pytest.raises(DeviceError, match=r"does not start \(Driver/library version mismatch\): "):
        load_nvml()


WRITES = (
    *("nvmlDeviceSet", "nvmlDeviceReset", "nvmlDeviceClear", "nvmlDeviceCreate"),
    *("nvmlDeviceRemove", "nvmlDeviceModify", "nvmlDeviceFreeze", "nvmlDeviceDiscover"),
    *("nvmlDevicePowerSmoothing", "nvmlDeviceReadWrite", "nvmlDeviceVgpuForce"),
    *(f"nvmlDeviceWorkloadPowerProfile{verb}" for verb in ("Set", "Clear", "Update")),
    *(f"nvmlGpuInstance{verb}" for verb in ("Create", "Destroy", "Set")),
    *("nvmlComputeInstanceDestroy", "nvmlVgpuInstanceSet", "nvmlVgpuInstanceClear"),
    *("nvmlSet", "nvmlSystemSet", "nvmlUnitSet", "nvmlGpmSet"),
)
FUNCTIONS = [
    name
    for name in dir(pynvml)
    if name.startswith("nvml")
    and callable(getattr(pynvml, name))
    and not isinstance(getattr(pynvml, name), type)
]
SETTERS = [name for name in FUNCTIONS if name.startswith(WRITES)]
later_words = st.from_regex(r"[A-Z][A-Za-z]{0,12}(_v[1-9])?", fullmatch=True)


def recorded(name: str) -> tuple[GuardedNvml, list[tuple[object, ...]]]:
    """Return a module with the function ``name``, and the list of its calls."""
    calls: list[tuple[object, ...]] = []
    return GuardedNvml(fake(**{name: lambda *given: calls.append(given)})), calls


def assert_denied(name: str) -> None:
    nvml, calls = recorded(name)
    with pytest.raises(WritesDeniedError, match="unset it, or use --powercap current"):
        getattr(nvml, name)(0, 300_000)
    assert calls == []


def test_every_getter_of_the_installed_module_is_called(monkeypatch):
    monkeypatch.setenv("GPUENERGY_CAP_WRITES", "deny")
    ours = ("nvmlDeviceGetSamples", "nvmlDeviceGetComputeRunningProcesses")
    for name in (name for name in FUNCTIONS if "Get" in name and name not in ours):
        nvml, calls = recorded(name)
        getattr(nvml, name)(0, 1, 2)
        assert calls == [(0, 1, 2)]


@pytest.mark.parametrize(
    ("raised", "expected", "said"),
    [
        (AttributeError("x"), "NVMLError_FunctionNotFound", "lacks nvmlDeviceGetName"),
        (pynvml.NVMLLibraryMismatchError("x"), "NVMLError_FunctionNotFound", "lacks nvmlDevice"),
        (pynvml.NVMLError(13), "NVMLError_FunctionNotFound", "lacks nvmlDeviceGetName"),
        (pynvml.NVMLError(15), "NVMLError_GpuIsLost", "GPU is lost"),
        (TypeError("no"), "NVMLError_Unknown", "nvmlDeviceGetName .* fails with TypeError: no"),
        (OSError(5, "I/O"), "NVMLError_Unknown", "fails with OSError"),
    ],
)
def test_whatever_the_binding_raises_is_an_error_of_nvml(monkeypatch, raised, expected, said):
    def fail(_: object) -> None:
        raise raised

    monkeypatch.setattr(pynvml, "nvmlDeviceGetName", fail)
    with pytest.raises(pynvml.NVMLError, match=said) as found:
        GuardedNvml(pynvml).nvmlDeviceGetName(0)
    assert isinstance(found.value, getattr(pynvml, expected))


def test_a_function_that_an_older_module_lacks_is_not_found():
    with pytest.raises(pynvml.NVMLError_FunctionNotFound, match="lacks nvmlDeviceGetMagic"):
        GuardedNvml(pynvml).nvmlDeviceGetMagic(0)


def test_constants_and_errors_are_the_modules_own():
    assert GuardedNvml(pynvml).NVMLError is pynvml.NVMLError
    assert GuardedNvml(pynvml).NVML_FI_DEV_POWER_INSTANT == pynvml.NVML_FI_DEV_POWER_INSTANT


@pytest.mark.parametrize("word", ["deny", "Deny", "1", "false"])
def test_a_denied_write_does_not_reach_nvml(monkeypatch, word):
    monkeypatch.setenv("GPUENERGY_CAP_WRITES", word)
    assert_denied("nvmlDeviceSetPowerManagementLimit")


def test_no_setter_of_the_installed_module_gets_through():
    assert len(SETTERS) > 40
    for name in SETTERS:
        assert_denied(name)


@given(st.sampled_from(WRITES), later_words)
def test_no_setter_of_a_later_module_gets_through(prefix, rest):
    assert_denied(prefix + rest)


@given(st.sampled_from(["nvmlDevice", "nvmlSystem", "nvmlGpm", "nvml"]), later_words)
def test_a_call_with_an_unknown_verb_is_denied(subject, rest):
    assert_denied(f"{subject}Retune{rest}")


@pytest.mark.parametrize("name", ["nvmlDeviceIsolate", "nvmlDeviceGetterRemove", "nvmlInitialize"])
def test_a_longer_word_is_another_word(name):
    assert_denied(name)


def test_the_library_beneath_is_not_offered():
    with pytest.raises(AttributeError, match="no function or constant nvmlLib"):
        _ = GuardedNvml(pynvml).nvmlLib
    with pytest.raises(WritesDeniedError):
        GuardedNvml(pynvml)._nvmlGetFunctionPointer("nvmlDeviceSetPowerManagementLimit")


@pytest.mark.parametrize("word", [None, "", "allow"])
@pytest.mark.parametrize(
    "name", ["nvmlDeviceSetPowerManagementLimit", "nvmlDeviceResetGpuLockedClocks"]
)
def test_an_allowed_write_reaches_nvml_unchanged(monkeypatch, name, word):
    monkeypatch.delenv("GPUENERGY_CAP_WRITES")
    if word is not None:
        monkeypatch.setenv("GPUENERGY_CAP_WRITES", word)
    nvml, calls = recorded(name)
    getattr(nvml, name)(0, 300_000)
    assert calls == [(0, 300_000)]


@pytest.mark.parametrize("value", ["NVIDIA H200", b"NVIDIA H200"])
def test_strings_of_old_and_new_modules(value):
    assert printable_text(value) == "NVIDIA H200"


def test_samples_that_come_late_have_room():
    def ask(*arguments: Any) -> int:
        count, samples = arguments[-2]._obj, arguments[-1]
        if samples is None:
            count.value = 2
            return 0
        for place in range(3):
            samples[place].timeStamp = 10 + place
        assert count.value > 3
        count.value = 3
        return 0

    module = fake(_nvmlGetFunctionPointer=lambda _: ask, c_nvmlSample_t=pynvml.c_nvmlSample_t)
    _, samples = GuardedNvml(module).nvmlDeviceGetSamples(None, 0, 0)
    assert [one.timeStamp for one in samples] == [10, 11, 12]


@pytest.mark.parametrize("refused", [1, 2])
def test_refused_samples_raise_the_error_of_nvml(refused):
    calls: list[int] = []

    def ask(*_: Any) -> int:
        calls.append(1)
        return 3 if len(calls) == refused else 0

    module = fake(_nvmlGetFunctionPointer=lambda _: ask, c_nvmlSample_t=pynvml.c_nvmlSample_t)
    with pytest.raises(NvmlError, match="3"):
        GuardedNvml(module).nvmlDeviceGetSamples(None, 0, 0)
