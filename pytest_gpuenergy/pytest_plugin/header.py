"""The terminal's header lines, shown before the first item."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_gpuenergy.control import CURRENT, Setpoint, SettingsWriter, check_setpoint
from pytest_gpuenergy.devices import Device
from pytest_gpuenergy.energy import choose_source
from pytest_gpuenergy.pytest_plugin.card import Card
from pytest_gpuenergy.pytest_plugin.options import Options
from pytest_gpuenergy.support import GpuEnergyError, SetpointError


def header_lines(card: Card, options: Options) -> list[str]:
    """The device, its driver, the energy source and the power caps."""
    try:
        return list(_lines(card, options))
    except (GpuEnergyError, card.device.nvml.NVMLError) as error:
        return [f"gpuenergy: {card.device.name} does not work: {error}"]


def emulated_line(name: str) -> str:
    """The warning that a run uses the emulated GPU ``name``."""
    return f"EMULATED {name}: results are verified, time and energy are recorded or modelled"


def _lines(card: Card, options: Options) -> Iterator[str]:
    device = card.device
    if device.emulated:
        reason = " (no usable NVIDIA GPU found)" if options.device == "auto" else ""
        yield f"gpuenergy: {emulated_line(f'{device.name}{reason}')}"
        kind = "modelled"
    else:
        driver = device.nvml.nvmlSystemGetDriverVersion()
        driver = driver.decode(errors="replace") if isinstance(driver, bytes) else driver
        yield f"gpuenergy: {device.name}, driver {driver}, {device.uuid}"
        kind = "NVML"
    if options.verify_only:
        yield "gpuenergy: verify only: nothing is measured, and no power limit is set"
        return
    name = choose_source(device).name
    source = "energy counter" if name == "counter" else f"{name} over time (no energy counter)"
    what = "setpoints" if _locks(card) else "power caps"
    yield f"gpuenergy: energy from the {kind} {source}; {what}: {_listed(card.named.setpoints)}"
    if any(setpoint != CURRENT for setpoint in card.named.setpoints):
        yield from _setpoint_lines(card)


def _setpoint_lines(card: Card) -> Iterator[str]:
    """What cannot be set or restored; on a real GPU also how it is set and whether it persists."""
    device, writer = card.device, _writer(card)
    if not (device.emulated or isinstance(writer, str)):
        yield f"gpuenergy: {_settings(card)} are set through {writer.name}"
    if _locks(card):
        yield (
            "gpuenergy: SM clocks are unlocked afterwards, which is the default: what they were "
            "locked to before cannot be read"
        )
    refused: dict[str, list[Setpoint]] = {}
    for setpoint in card.named.setpoints:
        if reason := _refusal(setpoint, writer):
            refused.setdefault(reason, []).append(setpoint)
    for reason, setpoints in refused.items():
        what = "setpoint" if _locks(card) else "power cap"
        what += "s" if len(setpoints) > 1 else ""
        yield f"gpuenergy: {what} {_listed(setpoints)} cannot be set: {reason}"
    if not device.emulated and not _persistent(device):
        yield (
            f"gpuenergy: persistence mode is off, so {_settings(card)} are lost whenever the "
            "driver unloads: sudo nvidia-smi -pm 1"
        )


def _locks(card: Card) -> bool:
    """Whether clocks are to be locked."""
    return any(setpoint.sm_clock_mhz is not None for setpoint in card.named.setpoints)


def _settings(card: Card) -> str:
    return "power limits and clocks" if _locks(card) else "power limits"


def _writer(card: Card) -> SettingsWriter | str:
    """The writer of power limits, or why there is none."""
    try:
        return card.settings_writer()
    except SetpointError as error:
        return str(error)


def _refusal(setpoint: Setpoint, writer: SettingsWriter | str) -> str:
    """Why ``setpoint`` cannot be set, as far as known without writing; empty if it can."""
    if setpoint == CURRENT:
        return ""
    if setpoint.unavailable:
        return f"{setpoint.unavailable}."
    if isinstance(writer, str):
        return writer
    try:
        check_setpoint(writer, setpoint)
    except SetpointError as error:
        return str(error)
    return ""


def _persistent(device: Device) -> bool:
    """Whether persistence mode is on, or not supported, in which case there is no remedy."""
    try:
        return bool(device.nvml.nvmlDeviceGetPersistenceMode(device.handle))
    except device.nvml.NVMLError:
        return True


def _listed(setpoints: list[Setpoint]) -> str:
    return ", ".join(setpoint.label for setpoint in setpoints) or "current"
