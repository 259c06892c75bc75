"""NVML through the module `pynvml`, with one policy for calls that change a card."""

from __future__ import annotations

import ctypes
import os
import re
from dataclasses import dataclass
from typing import Any, ClassVar

from pytest_gpuenergy.support import DeviceError, WritesDeniedError

NEEDED = (
    "NVMLError",
    "NVML_FI_DEV_POWER_INSTANT",
    "NVML_TOTAL_POWER_SAMPLES",
    "nvmlDeviceGetComputeRunningProcesses",
    "nvmlDeviceGetEnforcedPowerLimit",
    "nvmlDeviceGetFieldValues",
    "nvmlDeviceGetPowerManagementLimit",
    "nvmlDeviceGetPowerManagementLimitConstraints",
    "nvmlDeviceGetSamples",
    "nvmlDeviceGetTotalEnergyConsumption",
    "nvmlDeviceSetPowerManagementLimit",
    "nvmlInit",
)
WRITES_VARIABLE = "GPUENERGY_CAP_WRITES"

READS = (
    *("nvmlInit", "nvmlShutdown", "nvmlErrorString", "nvmlExceptionClass"),
    *("nvmlFriendlyObject", "nvmlStructToFriendlyObject"),
    *("nvmlDeviceGet", "nvmlSystemGet", "nvmlUnitGet", "nvmlGetExcluded", "nvmlGetVgpu"),
    *("nvmlGpuInstanceGet", "nvmlComputeInstanceGet", "nvmlVgpuTypeGet", "nvmlVgpuInstanceGet"),
    *("nvmlDevicePerfMetricsGet", "nvmlDeviceWorkloadPowerProfileGet"),
    *("nvmlDeviceIs", "nvmlDeviceOnSameBoard", "nvmlDeviceQuery", "nvmlDeviceReadPRMCounters"),
    *("nvmlGpmMetricsGet", "nvmlGpmMigSampleGet", "nvmlGpmSample", "nvmlGpmQuery"),
    *("nvmlEventSet", "nvmlDeviceRegisterEvents"),
    *("nvmlSystemEventSet", "nvmlSystemRegisterEvents"),
)
"""Prefixes of the names of calls that change no card.

All other calls count as writes, so a call added by a later NVML is denied until it is known to be a
read.
"""

_ROOM = 512
"""More samples than any card was seen to keep."""

_TRIES = 4
"""The number of times that the list of processes is requested again if it outgrows its buffer."""

_UNKNOWN = 999  # NVML_ERROR_UNKNOWN

_NO_VALUE = (1 << 64) - 1
"""The memory of a process in NVML's list if the system does not report it."""

_READ = re.compile(rf"(?:{'|'.join(READS)})(?![a-z])")  # whole words: not nvmlDeviceIsolate...


class _Process(ctypes.Structure):
    """The first version of ``nvmlProcessInfo_t``, that of the function without a suffix."""

    _fields_: ClassVar[Any] = (("pid", ctypes.c_uint), ("used", ctypes.c_ulonglong))


class _Process2(_Process):
    """The second version, also that of the third version of the function."""

    _fields_ = (("gpu_instance", ctypes.c_uint), ("compute_instance", ctypes.c_uint))


@dataclass(frozen=True)
class RunningProcess:
    """A process with a CUDA context, and its memory on the GPU in bytes, if known."""

    pid: int
    usedGpuMemory: int | None  # noqa: N815 -- NVML's name


class GuardedNvml:
    """The module `pynvml`, whose functions raise only ``NVMLError`` and WritesDeniedError.

    Calls that change a card obey ``GPUENERGY_CAP_WRITES``: if the environment forbids writes, such
    a call raises WritesDeniedError before it reaches NVML.

    The module itself raises other errors if its version differs from that of the driver's library,
    or if text is not UTF-8. Here, a function that either of them lacks raises
    ``NVMLError_FunctionNotFound``, any other exception becomes ``NVMLError_Unknown``, and text gets
    replacement characters.

    Only the module's functions, types and constants are accessible, not the underlying library.
    """

    def __init__(self, module: Any) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        module = self._module
        value = getattr(module, name, None)
        if isinstance(value, type | int | float | str):
            return value
        lacking = name.startswith("nvml") and not hasattr(module, name)
        if not (lacking or callable(value)):
            raise AttributeError(f"pynvml has no function or constant {name}")

        def call(*arguments: Any, **named: Any) -> Any:
            if not _READ.match(name):
                deny_writes()
            try:
                return getattr(module, name)(*arguments, **named)
            except UnicodeDecodeError as error:
                return error.object.decode(errors="replace")
            except Exception as error:
                raise _as_nvmls(module, name, error) from None

        return call

    def nvmlDeviceGetComputeRunningProcesses(  # noqa: N802 -- NVML's name
        self, handle: Any
    ) -> list[RunningProcess]:
        """Return the processes with a CUDA context, by any version of the function.

        pynvml calls the third version only, which some drivers lack (reported with 535.98).
        """
        name, module = "nvmlDeviceGetComputeRunningProcesses", self._module
        if not hasattr(module, "_nvmlGetFunctionPointer"):
            return list(module.nvmlDeviceGetComputeRunningProcesses(handle))
        for version in ("_v3", "_v2", ""):
            try:
                ask = self._find(f"{name}{version}")
                break
            except module.NVMLError_FunctionNotFound:
                if not version:
                    raise
        kind = _Process2 if version else _Process
        count = ctypes.c_uint()
        status = ask(handle, ctypes.byref(count), None)
        running: Any = ()
        for _ in range(_TRIES):
            if status != module.NVML_ERROR_INSUFFICIENT_SIZE:
                break
            count.value = 2 * count.value + 5  # more may start before the next call
            running = (kind * count.value)()
            status = ask(handle, ctypes.byref(count), running)
        if status:
            raise module.NVMLError(status)
        return [
            RunningProcess(process.pid, None if process.used == _NO_VALUE else process.used)
            for process in running[: count.value]
        ]

    def nvmlDeviceGetSamples(  # noqa: N802 -- NVML's name
        self, handle: Any, sampling_type: int, last_seen_us: int
    ) -> tuple[int, list[Any]]:
        """Return the samples since a time stamp, with room for more than NVML has announced.

        pynvml's array has room for the announced number only. On an H200, two processes that had
        read samples through it for four minutes were aborted because of a damaged heap.
        """
        module = self._module
        if not hasattr(module, "_nvmlGetFunctionPointer"):
            found: tuple[int, list[Any]] = module.nvmlDeviceGetSamples(
                handle, sampling_type, last_seen_us
            )
            return found
        ask = self._find("nvmlDeviceGetSamples")
        kind, count = ctypes.c_uint(), ctypes.c_uint()
        since = ctypes.c_ulonglong(last_seen_us)
        asked = (handle, ctypes.c_uint(sampling_type), since, ctypes.byref(kind))
        if status := ask(*asked, ctypes.byref(count), None):
            raise module.NVMLError(status)
        count.value += _ROOM
        samples = (module.c_nvmlSample_t * count.value)()
        if status := ask(*asked, ctypes.byref(count), samples):
            raise module.NVMLError(status)
        return kind.value, samples[: count.value]

    def _find(self, function: str) -> Any:
        """Return the driver library's own function, which returns a status."""
        try:
            return self._module._nvmlGetFunctionPointer(function)
        except Exception as error:
            raise _as_nvmls(self._module, function, error) from None


def _as_nvmls(module: Any, function: str, error: Exception) -> Exception:
    """Return the ``NVMLError`` that stands for an exception of the module `pynvml`."""
    plain: type[Exception] = module.NVMLError
    missing = getattr(module, "NVMLError_FunctionNotFound", plain)
    lacks = (
        isinstance(error, AttributeError)
        or (missing is not plain and isinstance(error, missing))
        or type(error).__name__ == "NVMLLibraryMismatchError"
    )
    kind = missing if lacks else getattr(module, "NVMLError_Unknown", plain)
    if lacks:
        message = f"this driver's NVML, or the module pynvml, lacks {function}"
    elif isinstance(error, plain):
        try:
            str(error)
        except UnicodeDecodeError as wrong:
            kind, message = type(error), wrong.object.decode(errors="replace")
        else:
            return error
    else:
        message = f"{function} of the module pynvml fails with {type(error).__name__}: {error}"
    code = getattr(error, "value", _UNKNOWN)
    found: Exception = type(kind.__name__, (kind,), {"__str__": lambda _: message})(code)
    return found


def unavailable_errors(nvml: Any) -> tuple[type[Exception], ...]:
    """Return the errors which mean that a reading or setting is missing or not permitted.

    Args:
        nvml: the NVML of a `Device`, real or emulated.
    """
    return (
        nvml.NVMLError_NotSupported,
        nvml.NVMLError_NoPermission,
        nvml.NVMLError_FunctionNotFound,
    )


def deny_writes() -> None:
    """Raise WritesDeniedError if the environment forbids changing a real GPU's settings."""
    if os.environ.get(WRITES_VARIABLE, "allow").lower() not in ("", "allow"):
        raise WritesDeniedError(
            f"{WRITES_VARIABLE}=deny forbids changing the power limit or any other setting of a "
            "real GPU: unset it, or use --powercap current and --smclock current."
        )


def load_nvml() -> GuardedNvml:
    """Return the NVML library, initialized.

    Raises:
        DeviceError: the module is missing or too old, or there is no working NVIDIA driver.
    """
    try:
        import pynvml
    except ImportError:
        raise DeviceError("The module pynvml is missing: pip install nvidia-ml-py.") from None
    missing = [name for name in NEEDED if not hasattr(pynvml, name)]
    if missing:
        where = getattr(pynvml, "__file__", "an unknown place")
        raise DeviceError(
            f"The module pynvml at {where} lacks {missing[0]}: "
            "pip install --upgrade nvidia-ml-py, and uninstall other packages that provide pynvml."
        )
    nvml = GuardedNvml(pynvml)
    try:
        nvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise DeviceError(
            f"NVML does not start ({error}): check that nvidia-smi works on this machine."
        ) from None
    return nvml


def printable_text(value: str | bytes) -> str:
    """Return NVML's text as a printable string; older versions of pynvml return bytes."""
    decoded = value.decode(errors="replace") if isinstance(value, bytes) else value
    return "".join(letter if letter.isprintable() else "\ufffd" for letter in decoded).strip()


def gpu_name(nvml: Any, handle: Any) -> str:
    """Return the name of a card, which is not empty.

    Raises:
        NVMLError: the card does not respond.
    """
    return printable_text(nvml.nvmlDeviceGetName(handle)) or "unnamed GPU"
