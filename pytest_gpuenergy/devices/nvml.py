"""NVML through module `pynvml`, with power-limit writes under the caller's control."""

from __future__ import annotations

import os
from typing import Any

from pytest_gpuenergy.support.errors import CapWritesDeniedError, DeviceError

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


class GuardedNvml:
    """`pynvml` itself, except that writing a power limit obeys ``GPUENERGY_CAP_WRITES``."""

    def __init__(self, module: Any) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)

    def nvmlDeviceSetPowerManagementLimit(self, handle: Any, limit: int) -> None:  # noqa: N802
        """As in NVML: set the limit in mW.

        Raises:
            CapWritesDeniedError: the environment forbids it; NVML is not called.
        """
        deny_cap_writes()
        self._module.nvmlDeviceSetPowerManagementLimit(handle, limit)

    def nvmlDeviceSetPowerManagementLimit_v2(self, *arguments: Any) -> Any:  # noqa: N802
        """As in NVML: set the limit of one scope.

        Raises:
            CapWritesDeniedError: the environment forbids it; NVML is not called.
        """
        deny_cap_writes()
        return self._module.nvmlDeviceSetPowerManagementLimit_v2(*arguments)


def deny_cap_writes() -> None:
    """Raise CapWritesDeniedError when the environment forbids writing a real GPU's power limit."""
    if os.environ.get(WRITES_VARIABLE, "allow").lower() not in ("", "allow"):
        raise CapWritesDeniedError(
            f"{WRITES_VARIABLE}=deny forbids changing the power limit of a real GPU: "
            "unset it, or use --powercap current."
        )


def load_nvml() -> GuardedNvml:
    """The NVML library, initialized.

    Raises:
        DeviceError: the module is missing or too old, or there is no working NVIDIA driver.
    """
    try:
        import pynvml
    except ImportError:
        raise DeviceError("Module pynvml is not installed: pip install nvidia-ml-py.") from None
    missing = [name for name in NEEDED if not hasattr(pynvml, name)]
    if missing:
        where = getattr(pynvml, "__file__", "an unknown place")
        raise DeviceError(
            f"The module pynvml at {where} lacks {missing[0]}: "
            "pip install --upgrade nvidia-ml-py, and uninstall other packages that bring pynvml."
        )
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise DeviceError(
            f"NVML does not start ({error}): check that nvidia-smi works on this machine."
        ) from None
    return GuardedNvml(pynvml)


def text(value: str | bytes) -> str:
    """NVML's strings, which older modules return as bytes."""
    return value.decode() if isinstance(value, bytes) else value
