"""The GPUs of ``gpuenergy optimize``: opened, claimed, and held at a setpoint."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_gpuenergy.commands import tell
from pytest_gpuenergy.commands.setpoint_options import one_setpoint
from pytest_gpuenergy.support.errors import InputError

if TYPE_CHECKING:
    from pytest_gpuenergy.devices.device import Device
    from pytest_gpuenergy.record.metrics import Metric
    from pytest_gpuenergy.search.evaluator import Evaluator
    from pytest_gpuenergy.search.spec import KernelSpec
    from pytest_gpuenergy.search.team import Team

_LOCK_WAIT_S = 2.0


@dataclass(frozen=True)
class ClaimedGpus:
    """The GPUs of a search.

    Attributes:
        devices: as this process has opened them, in the order of ``--gpus``.
        team: their own processes, if there are several.
    """

    devices: tuple[Device, ...]
    team: Team | None

    def evaluator(self, spec: KernelSpec, objective: Metric, seed: int) -> Evaluator:
        """What evaluates the states of a spec on these GPUs."""
        from pytest_gpuenergy.search.evaluation import Bench
        from pytest_gpuenergy.search.evaluator import OwnProcess
        from pytest_gpuenergy.search.team import TeamEvaluator

        benches = tuple(Bench(spec, device, objective, seed) for device in self.devices)
        if self.team is None:
            return OwnProcess(benches[0])
        for device in self.devices:
            device.renew()  # so that no process of this one keeps a context on the GPU
        return TeamEvaluator(self.team, benches)


@dataclass(frozen=True)
class Settings:
    """What GPUs are set to while they are claimed.

    Attributes:
        powercap: one power limit, as ``--powercap`` takes it.
        smclock: one clock, as ``--smclock`` takes it.
        allow_clocks: see `Station`.
    """

    powercap: str
    smclock: str
    allow_clocks: bool


def claim_gpus(stack: ExitStack, gpus: str, settings: Settings) -> ClaimedGpus:
    """Claim GPUs of one model, all with the same settings, until the stack is closed.

    Args:
        stack: closed by the caller.
        gpus: a list of what ``--gpu-device`` takes.
        settings: of all of them.

    Raises:
        InputError: there is no such GPU, one is named twice, or they are of different models.
        DeviceError: one cannot be used or claimed.
    """
    from pytest_gpuenergy.devices.select import open_device
    from pytest_gpuenergy.search.team import Member, Team

    names = _names(gpus)
    devices = [stack.enter_context(open_device(gpu, index=index)) for gpu, index in names]
    _check_alike(gpus, devices)
    for device in devices:
        _claim(stack, device, settings)
    if len(devices) == 1:
        return ClaimedGpus((devices[0],), None)
    members = [
        Member(device, *((gpu, index) if device.emulated else (device.uuid, 0)))
        for device, (gpu, index) in zip(devices, names, strict=True)
    ]
    return ClaimedGpus(tuple(devices), stack.enter_context(Team(members, tell)))


def claim_one(stack: ExitStack, gpus: str, place: int, settings: Settings) -> Device:
    """As `claim_gpus`, but only the GPU at a place of the list."""
    from pytest_gpuenergy.devices.select import open_device

    names = _names(gpus)
    gpu, index = names[min(place, len(names) - 1)]
    device = stack.enter_context(open_device(gpu, index=index))
    _claim(stack, device, settings)
    return device


def _names(gpus: str) -> list[tuple[str, int]]:
    """The GPUs of a list as `open_device` takes them; ``emulated:h200x2`` stands for two."""
    from pytest_gpuenergy.devices.select import check_spec

    found = []
    for name in gpus.split(","):
        emulated = check_spec(name.strip())
        count = 1 if emulated is None else emulated.count
        found += [(name.strip(), index) for index in range(count)]
    return found


def _check_alike(gpus: str, devices: Sequence[Device]) -> None:
    uuids = [device.uuid for device in devices]
    if twice := next((uuid for uuid in uuids if uuids.count(uuid) > 1), None):
        raise InputError(
            f"--gpus {gpus} names {twice} twice: name each GPU once; two emulated ones are "
            "emulated:h200x2."
        )
    first = devices[0]
    for device in devices:
        if (device.name, device.emulated) != (first.name, first.emulated):
            raise InputError(
                f"--gpus {gpus} names {_called(first)} and {_called(device)}, whose figures cannot "
                "be compared: name GPUs of one model, and search on others with an --outdir of "
                "their own."
            )


def _called(device: Device) -> str:
    return f"the emulated {device.name}" if device.emulated else device.name


def _claim(stack: ExitStack, device: Device, settings: Settings) -> None:
    from pytest_gpuenergy.engine.station import Station

    station = stack.enter_context(
        Station(device, lock_wait_s=_LOCK_WAIT_S, allow_clocks=settings.allow_clocks)
    )
    for sentence in station.restored:
        tell(sentence)
    setpoint = one_setpoint(device, settings.powercap, settings.smclock)
    stack.enter_context(station.under(setpoint))
