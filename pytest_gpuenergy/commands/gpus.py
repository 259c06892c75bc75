"""The GPUs of a search: opened, claimed, and held at a setpoint."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_gpuenergy.commands.command_line import tell
from pytest_gpuenergy.support import InputError

if TYPE_CHECKING:
    from pytest_gpuenergy.devices import Device
    from pytest_gpuenergy.engine import Settings, Station, Team


@dataclass(frozen=True)
class ClaimedGpus:
    """The GPUs of a search.

    Attributes:
        stations: the claimed GPUs, in the order in which they were named.
        team: the GPUs' own processes, which start when they are first needed.
    """

    stations: tuple[Station, ...]
    team: Team

    @property
    def devices(self) -> tuple[Device, ...]:
        """The devices that this process has opened."""
        return tuple(station.device for station in self.stations)


def claim_gpus(
    stack: ExitStack, gpus: str, settings: Settings, *, option: str, factory: str
) -> ClaimedGpus:
    """Claim GPUs of one model, all with the same settings, until the stack is closed.

    Args:
        stack: releases the GPUs when the caller closes it.
        gpus: values of ``--gpu-device``, separated by commas.
        settings: the settings of all GPUs.
        option: the option that gave the list, for messages.
        factory: the class of the object in each GPU's process, see `Worker`; its arguments are
            those of `open_device`.

    Raises:
        InputError: there is no such GPU, one is named twice, or they are of different models.
        DeviceError: one cannot be used or claimed.
    """
    from pytest_gpuenergy.engine import Member, Team, claim
    from pytest_gpuenergy.opening import open_device
    from pytest_gpuenergy.support import Worker

    names = gpu_names(gpus, option)
    devices = [stack.enter_context(open_device(gpu, index=index)) for gpu, index in names]
    _check_alike(f"{option} {gpus}", devices)
    stations = tuple(claim(stack, device, settings, tell) for device in devices)
    _check_limits(f"{option} {gpus}", devices)
    places = [
        (gpu, index) if device.emulated else (device.uuid, 0)
        for device, (gpu, index) in zip(devices, names, strict=True)
    ]
    members = [
        Member(device.uuid, Worker(factory, *place))
        for device, place in zip(devices, places, strict=True)
    ]
    return ClaimedGpus(stations, stack.enter_context(Team(members, tell)))


def gpu_names(gpus: str, option: str) -> list[tuple[str, int]]:
    """Return the arguments of `open_device` for each GPU of a list; ``emulated:h200x2`` is two.

    Raises:
        InputError: a name is not understood.
    """
    from pytest_gpuenergy.opening import check_spec

    found = []
    for name in map(str.strip, gpus.split(",")):
        if not name:
            raise InputError(f"{option} {gpus!r} has an empty name: separate GPUs by one comma.")
        emulated = check_spec(name)
        count = 1 if emulated is None else emulated.count
        found += [(name, index) for index in range(count)]
    return found


def _check_alike(named: str, devices: Sequence[Device]) -> None:
    uuids = [device.uuid for device in devices]
    if twice := next((uuid for uuid in uuids if uuids.count(uuid) > 1), None):
        raise InputError(
            f"{named} names {twice} twice: name each GPU once; two emulated ones are "
            "emulated:h200x2."
        )
    first = devices[0]
    for device in devices:
        if (device.name, device.emulated) != (first.name, first.emulated):
            raise InputError(
                f"{named} names {_title(first)} and {_title(device)}, whose figures cannot "
                "be compared: name GPUs of one model, and search on others into a folder of their "
                "own."
            )


def _check_limits(named: str, devices: Sequence[Device]) -> None:
    """Refuse GPUs with different power limits, which ``--powercap current`` leaves in force."""
    from pytest_gpuenergy.control import enforced_setpoint

    limits_w = [enforced_setpoint(device).power_limit_w for device in devices]
    if len(set(limits_w)) > 1:
        listed = " and ".join(f"{limit_w:g} W" for limit_w in limits_w if limit_w is not None)
        raise InputError(
            f"{named} names GPUs under different power limits, {listed}, whose figures cannot be "
            "compared: give one limit with --powercap."
        )


def _title(device: Device) -> str:
    return f"the emulated {device.name}" if device.emulated else device.name
