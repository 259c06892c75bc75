"""NVML through the module `pynvml`; calls that change a card obey the environment."""

from __future__ import annotations

import ctypes
import functools
import os
import re
from typing import Any

from pytest_gpuenergy.support.errors import DeviceError, WritesDeniedError

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
"""More samples than a card has been seen to keep."""

_READ = re.compile(rf"(?:{'|'.join(READS)})(?![a-z])")  # whole words: not nvmlDeviceIsolate...


class GuardedNvml:
    """`pynvml`, except that calls which change a card obey ``GPUENERGY_CAP_WRITES``.

    If the environment forbids writes, such a call raises WritesDeniedError before it reaches NVML.
    Only the module's functions, types and constants are accessible, not the underlying library.
    """

    def __init__(self, module: Any) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._module, name)
        if isinstance(value, type | int | float | str) or _READ.match(name):
            return value
        if not callable(value):
            raise AttributeError(f"{name} of pynvml is neither a function nor a constant")

        @functools.wraps(value)
        def guarded(*arguments: Any, **named: Any) -> Any:
            deny_writes()
            return value(*arguments, **named)

        return guarded

    def nvmlDeviceGetSamples(  # noqa: N802 -- NVML's name
        self, handle: Any, sampling_type: int, last_seen_us: int
    ) -> tuple[int, list[Any]]:
        """As in pynvml, with room for more samples than NVML has named.

        pynvml's array has just as many. On an H200, processes that had read samples with it for
        four minutes were aborted twice, with a damaged heap.
        """
        module = self._module
        find = getattr(module, "_nvmlGetFunctionPointer", None)
        if find is None:
            found: tuple[int, list[Any]] = module.nvmlDeviceGetSamples(
                handle, sampling_type, last_seen_us
            )
            return found
        ask = find("nvmlDeviceGetSamples")
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


def deny_writes() -> None:
    """Raise WritesDeniedError if the environment forbids changing a real GPU's settings."""
    if os.environ.get(WRITES_VARIABLE, "allow").lower() not in ("", "allow"):
        raise WritesDeniedError(
            f"{WRITES_VARIABLE}=deny forbids changing the power limit or any other setting of a "
            "real GPU: unset it, or use --powercap current and --smclock current."
        )


def load_nvml() -> GuardedNvml:
    """The NVML library, initialized.

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
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise DeviceError(
            f"NVML does not start ({error}): check that nvidia-smi works on this machine."
        ) from None
    return GuardedNvml(pynvml)


def text(value: str | bytes) -> str:
    """A string from NVML, which older versions of pynvml return as bytes."""
    return value.decode(errors="replace") if isinstance(value, bytes) else value
