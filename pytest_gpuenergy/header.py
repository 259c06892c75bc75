"""What the terminal says before the first item."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_gpuenergy.energy.powercap import CURRENT, PowerCap
from pytest_gpuenergy.errors import PowerCapError
from pytest_gpuenergy.session import Session


def header_lines(session: Session) -> list[str]:
    """The device, its driver and limits, the energy source; loudly when it is emulated."""
    return list(_lines(session))


def _lines(session: Session) -> Iterator[str]:
    device = session.device
    if device.emulated:
        reason = " (no usable NVIDIA GPU found)" if session.options.device == "auto" else ""
        yield (
            f"gpuenergy: EMULATED {device.name}{reason}: results are checked for real, "
            "time and energy are recorded or modelled"
        )
        source = "modelled energy counter"
    else:
        driver = device.nvml.nvmlSystemGetDriverVersion()
        driver = driver.decode() if isinstance(driver, bytes) else driver
        yield f"gpuenergy: {device.name}, driver {driver}, {device.uuid}"
        source = "NVML energy counter"
    yield f"gpuenergy: energy from the {source}; power caps: {_listed(session.caps)}"
    if not device.emulated and any(cap != CURRENT for cap in session.caps):
        yield from _cap_lines(session)


def _cap_lines(session: Session) -> Iterator[str]:
    """Who sets the limits of a real GPU, and whether they would last."""
    try:
        yield f"gpuenergy: power limits are set through {session.limit_writer().name}"
    except PowerCapError as error:
        yield f"gpuenergy: power caps are skipped. {error}"
    nvml = session.device.nvml
    try:
        persistent = nvml.nvmlDeviceGetPersistenceMode(session.device.handle)
    except nvml.NVMLError:
        return  # not supported here, and then nothing can be done about it
    if not persistent:
        yield (
            "gpuenergy: persistence mode is off, so that a power limit is lost whenever the driver "
            "unloads: sudo nvidia-smi -pm 1"
        )


def _listed(caps: list[PowerCap]) -> str:
    return ", ".join(cap.label for cap in caps) or "current"
