"""Claims the GPUs of a fleet for a search: all of the same model, with the same settings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import TypeVar

from pytest_gpuenergy.engine import Member, Settings, Team
from pytest_gpuenergy.fleet.probe import own_version
from pytest_gpuenergy.fleet.remote_gpu import RemoteGpu
from pytest_gpuenergy.fleet.slots import find_slots, most_common, none_left, of_other_model
from pytest_gpuenergy.fleet.spec import Fleet
from pytest_gpuenergy.support import DeviceError, counted
from pytest_gpuenergy.tuning import TuningGpus

_T = TypeVar("_T")
_TOGETHER = 64
"""The largest number of GPUs that are reached or left at the same time."""


def claim_fleet(
    stack: ExitStack,
    fleet: Fleet,
    device: str,
    settings: Settings,
    tell: Callable[[str], None],
    option: str,
) -> TuningGpus:
    """Claim the GPUs of a fleet, all with the same settings, until the stack is closed.

    Hosts and GPUs that cannot be used are left out, as are GPUs of another model than most, or with
    another power limit or clock. A sentence says so for each.

    Args:
        stack: Releases the GPUs; closed by the caller.
        fleet: The fleet.
        device: The value of ``--gpu-device``: ``auto`` or emulated GPUs.
        settings: The settings of all GPUs.
        tell: Called with sentences for the user, from any thread.
        option: The option that gave the fleet, for messages.

    Raises:
        InputError: ``device`` names a single GPU, or no GPU is left.
        DeviceError: The fleet's program is missing, or its cluster cannot be reached.
    """
    offered = find_slots(fleet, device, str(Path.cwd()), capping=settings.writes, one_model=True)
    left_out = list(offered.left_out)
    request = {
        "version": own_version(),
        "device": device,
        "powercap": settings.powercap,
        "smclock": settings.smclock,
        "allow_clocks": settings.allow_clocks,
    }
    silence_s = fleet.settings.silence_s
    all_gpus = [RemoteGpu(slot, request, fleet.wait_s, tell, silence_s) for slot in offered.slots]
    stack.callback(_retire, all_gpus)
    started = []
    for gpu, failure in zip(all_gpus, _together(all_gpus, _start), strict=True):
        if failure is None:
            started.append(gpu)
        else:
            left_out.append(str(failure))
    gpus, others = _split_by_model(started)
    left_out += [f"{gpu.title}: {reason}" for gpu, reason in others]
    _retire([gpu for gpu, _ in others])
    for sentence in left_out:
        tell(f"fleet: left out: {sentence}")
    if not gpus:
        raise none_left(fleet, left_out, option)
    hosts = Counter(gpu.host for gpu in gpus)
    counts = ", ".join(f"{host} ({count})" for host, count in hosts.items())
    tell(f"fleet: {fleet}: {counted(len(gpus), 'GPU')}: {counts}")
    members = [Member(gpu.claimed.uuid, gpu, gpu.title, gpu.prepare) for gpu in gpus]
    for gpu, member in zip(gpus, members, strict=True):
        gpu.moved = member.move
    team = Team(members, tell)
    stack.callback(_report, gpus, team, settings, tell)
    stack.enter_context(team)
    stack.callback(_retire, gpus)  # together, before the team does so one by one
    devices = tuple(gpu.device() for gpu in gpus)
    return TuningGpus(devices, tuple(gpu.confirm for gpu in gpus), team, remote=True)


def _start(gpu: RemoteGpu) -> DeviceError | None:
    try:
        gpu.start()
    except DeviceError as error:
        return error
    return None


def _split_by_model(
    gpus: Sequence[RemoteGpu],
) -> tuple[list[RemoteGpu], list[tuple[RemoteGpu, str]]]:
    """Return the GPUs of the most common model and setpoint, and the others with a reason."""
    others = []
    model = most_common((gpu.claimed.name, gpu.claimed.emulated) for gpu in gpus)
    of_model = [gpu for gpu in gpus if (gpu.claimed.name, gpu.claimed.emulated) == model]
    setpoint = most_common(gpu.claimed.setpoint for gpu in of_model)
    for gpu in gpus:
        if gpu not in of_model:
            assert model is not None
            others.append((gpu, of_other_model(model[0])))
        elif (own := gpu.claimed.setpoint) != setpoint:
            assert setpoint is not None
            reason = (
                f"it is at {own.label} and the search at {setpoint.label}, whose figures cannot be "
                "compared: give one limit with --powercap."
            )
            others.append((gpu, reason))
    return [gpu for gpu in of_model if gpu.claimed.setpoint == setpoint], others


def _report(
    gpus: Sequence[RemoteGpu], team: Team, settings: Settings, tell: Callable[[str], None]
) -> None:
    """Repeat at the end which GPUs were lost, and which settings are left on them."""
    for gpu, member in zip(gpus, team.members, strict=True):
        for reason in dict.fromkeys([*gpu.losses, *([member.lost] if member.lost else [])]):
            tell(f"fleet: {reason}")
        if gpu.losses and member.lost and settings.writes:
            setpoint = gpu.claimed.setpoint.label
            tell(
                f"fleet: {gpu.title} was lost while it was set to {setpoint}: the next run there "
                "restores it, and so does gpuenergy powercap restore"
            )


def _retire(gpus: Sequence[RemoteGpu]) -> None:
    _together(gpus, RemoteGpu.retire)


def _together(gpus: Sequence[RemoteGpu], do: Callable[[RemoteGpu], _T]) -> list[_T]:
    """Run an action on all GPUs at the same time; an interrupt does not wait for its end."""
    if not gpus:
        return []
    threads = ThreadPoolExecutor(min(len(gpus), _TOGETHER))
    try:
        return [*threads.map(do, gpus)]
    finally:
        threads.shutdown(wait=False, cancel_futures=True)
