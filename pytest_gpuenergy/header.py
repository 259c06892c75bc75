"""What the terminal says before the first item."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_gpuenergy.energy.powercap import CURRENT, PowerCap
from pytest_gpuenergy.energy.samples import choose_source
from pytest_gpuenergy.errors import GpuEnergyError, PowerCapError
from pytest_gpuenergy.session import Session


def header_lines(session: Session) -> list[str]:
    """The device, its driver and limits, the energy source; loudly when it is emulated."""
    try:
        return list(_lines(session))
    except (GpuEnergyError, session.device.nvml.NVMLError) as error:
        return [f"gpuenergy: {session.device.name} does not work: {error}"]


def emulated_line(name: str) -> str:
    """What a run on the emulated GPU ``name`` says loudly."""
    return (
        f"EMULATED {name}: results are checked for real, time and energy are recorded or modelled"
    )


def _lines(session: Session) -> Iterator[str]:
    device = session.device
    if device.emulated:
        reason = " (no usable NVIDIA GPU found)" if session.options.device == "auto" else ""
        yield f"gpuenergy: {emulated_line(f'{device.name}{reason}')}"
        kind = "modelled"
    else:
        driver = device.nvml.nvmlSystemGetDriverVersion()
        driver = driver.decode() if isinstance(driver, bytes) else driver
        yield f"gpuenergy: {device.name}, driver {driver}, {device.uuid}"
        kind = "NVML"
    name = choose_source(device).name
    source = "energy counter" if name == "counter" else f"{name} over time (no energy counter)"
    yield f"gpuenergy: energy from the {kind} {source}; power caps: {_listed(session.caps)}"
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
