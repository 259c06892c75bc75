"""The GPUs of ``gpuenergy tune``: of this host, or of a fleet."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

from pytest_gpuenergy.commands.command_line import tell
from pytest_gpuenergy.commands.gpus import ClaimedGpus, claim_gpus
from pytest_gpuenergy.devices import Device
from pytest_gpuenergy.engine import Settings, Team
from pytest_gpuenergy.kernels import Kernel
from pytest_gpuenergy.tuning import Confirm, Measured, confirm_with
from pytest_gpuenergy.workloads import Workload

_FACTORY = "pytest_gpuenergy.tuning.gpu_process:TuningGpu"


@dataclass(frozen=True)
class TuningGpus:
    """The GPUs of a search.

    Attributes:
        devices: at least one.
        team: of their processes.
        confirm: returns what confirms kernels on one of them; takes ``energy``.
        far: whether they are on other hosts.
    """

    devices: tuple[Device, ...]
    team: Team
    confirm: Callable[..., Confirm]
    far: bool = False


def claim_all(stack: ExitStack, arguments: Namespace) -> TuningGpus:
    """Claim the GPUs that the options name until the stack is closed.

    Raises:
        InputError: there are none, or not of one model.
        DeviceError: one cannot be claimed, or no host be asked.
    """
    settings = Settings(arguments.powercap, arguments.smclock, arguments.allow == "clocks")
    if arguments.fleet is None:
        gpus = claim_gpus(
            stack, arguments.gpu_device, settings, option="--gpu-device", factory=_FACTORY
        )
        return TuningGpus(gpus.devices, gpus.team, partial(_confirm, gpus))
    from pytest_gpuenergy.fleet import claim_fleet, parse_fleet

    fleet = parse_fleet(arguments.fleet, "--fleet")
    found = claim_fleet(stack, fleet, arguments.gpu_device, settings, tell, "--fleet")
    return TuningGpus(found.devices, found.team, found.confirm, far=True)


def _confirm(gpus: ClaimedGpus, *, energy: bool) -> Confirm:
    """Confirms all kernels on one GPU: the first one that is used."""
    team = gpus.team
    made: dict[str, Confirm] = {}

    def confirmed(kernel: Kernel, workload: Workload) -> Measured | None:
        member = team.first
        [station] = [one for one in gpus.stations if one.device.uuid == member.uuid]
        if member.uuid not in made:
            made[member.uuid] = confirm_with(station, energy=energy, tell=tell)
        with member.resting():
            try:
                return made[member.uuid](kernel, workload)
            finally:
                station.device.renew()  # so that the GPU's own process can have it again

    return confirmed
