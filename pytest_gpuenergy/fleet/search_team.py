"""Claims the GPUs of a fleet for a search: all of the same model, with the same settings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import TypeVar

from msgspec.structs import replace

from pytest_gpuenergy.engine import Member, Settings, Team
from pytest_gpuenergy.fleet.gpu_messages import Started
from pytest_gpuenergy.fleet.probe import ProbedGpu, ProbedHost, check_fleet_device, own_version
from pytest_gpuenergy.fleet.remote_gpu import RemoteGpu
from pytest_gpuenergy.fleet.seats import Muster, ask_hosts, muster, none_left, seated
from pytest_gpuenergy.fleet.spec import Fleet, SlurmFleet
from pytest_gpuenergy.support import DeviceError
from pytest_gpuenergy.tuning import RemoteDevice, TuningGpus

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
    found = _mustered(fleet, device, str(Path.cwd()), settings)
    left_out = list(found.left_out)
    asked = {
        "version": own_version(),
        "device": device,
        "powercap": settings.powercap,
        "smclock": settings.smclock,
        "allow_clocks": settings.allow_clocks,
    }
    silence_s = fleet.settings.silence_s
    all_gpus = [RemoteGpu(seat, asked, fleet.wait_s, tell, silence_s) for seat in found.seats]
    stack.callback(_retire, all_gpus)
    started = []
    for gpu, reason in zip(all_gpus, _together(all_gpus, _why_not), strict=True):
        if reason is None:
            started.append(gpu)
        else:
            left_out.append(reason)
    gpus, others = _alike(started)
    left_out += [f"{gpu.title}: {reason}" for gpu, reason in others]
    _retire([gpu for gpu, _ in others])
    for sentence in left_out:
        tell(f"fleet: left out: {sentence}")
    if not gpus:
        raise none_left(fleet, left_out, option)
    tell(f"fleet: {fleet}: {_counted(gpus)}")
    members = [Member(_known(gpu).uuid, gpu, gpu.title, gpu.prepare) for gpu in gpus]
    for gpu, member in zip(gpus, members, strict=True):
        gpu.moved = member.move
    team = Team(members, tell)
    stack.callback(_report, gpus, team, settings, tell)
    stack.enter_context(team)
    stack.callback(_retire, gpus)  # together, before the team does so one by one
    return TuningGpus(tuple(map(_device, gpus)), team, tuple(gpus), remote=True)


def _mustered(fleet: Fleet, device: str, project: str, settings: Settings) -> Muster:
    """Return the seats of the GPUs of the most common model."""
    if isinstance(fleet, SlurmFleet):  # the model is known only once a task has started
        return muster(fleet, device, project, capping=settings.writes)
    check_fleet_device(device)
    hosts = ask_hosts(fleet, device, project)
    model = _most_common(
        (gpu.name, gpu.emulated)
        for host in hosts
        for gpu in host.gpus
        if host.problem is None and gpu.reason_against(capping=settings.writes) is None
    )

    def judged(gpu: ProbedGpu) -> ProbedGpu:
        if model is None or (gpu.name, gpu.emulated) == model:
            return gpu
        return replace(gpu, no_measuring=gpu.no_measuring or _other_model(model[0]))

    def of_model(host: ProbedHost) -> ProbedHost:
        return replace(host, gpus=tuple(map(judged, host.gpus)))

    return seated(fleet, [*map(of_model, hosts)], device, project, capping=settings.writes)


def _other_model(model: str) -> str:
    return f"the search is on {model}, with which its figures cannot be compared."


def _why_not(gpu: RemoteGpu) -> str | None:
    """Claim a GPU; return why that failed, or None."""
    try:
        gpu.start()
    except DeviceError as error:
        return str(error)
    return None


def _known(gpu: RemoteGpu) -> Started:
    assert gpu.station is not None
    return gpu.station


def _alike(
    gpus: Sequence[RemoteGpu],
) -> tuple[list[RemoteGpu], list[tuple[RemoteGpu, str]]]:
    """Return the GPUs of the most common model and setpoint, and the others with a reason."""

    def model(gpu: RemoteGpu) -> tuple[str, bool]:
        return _known(gpu).name, _known(gpu).emulated

    others = []
    common = _most_common(map(model, gpus))
    for gpu in gpus:
        if model(gpu) != common:
            assert common is not None
            others.append((gpu, _other_model(common[0])))
    left = [gpu for gpu in gpus if model(gpu) == common]
    setting = _most_common(_known(gpu).setpoint for gpu in left)
    for gpu in left:
        if (own := _known(gpu).setpoint) != setting:
            assert setting is not None
            reason = (
                f"it is at {own.label} and the search at {setting.label}, whose figures cannot be "
                "compared: give one limit with --powercap."
            )
            others.append((gpu, reason))
    return [gpu for gpu in left if _known(gpu).setpoint == setting], others


def _device(gpu: RemoteGpu) -> RemoteDevice:
    station = _known(gpu)
    return RemoteDevice(
        station.name,
        station.uuid,
        station.architecture,
        emulated=station.emulated,
        versions=station.versions,
        cores=station.cores,
        enforced=station.setpoint,
        energy_mj=gpu.energy_mj,
    )


def _report(
    gpus: Sequence[RemoteGpu], team: Team, settings: Settings, tell: Callable[[str], None]
) -> None:
    """Repeat at the end which GPUs were lost, and which settings are left on them."""
    for gpu, member in zip(gpus, team.members, strict=True):
        for reason in dict.fromkeys([*gpu.losses, *([member.lost] if member.lost else [])]):
            tell(f"fleet: {reason}")
        if gpu.losses and member.lost and settings.writes:
            setpoint = _known(gpu).setpoint.label
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


_H = TypeVar("_H", bound=Hashable)


def _most_common(values: Iterable[_H]) -> _H | None:
    """Return the most frequent value, the first of several; None if there are no values."""
    counted = Counter(values).most_common(1)
    return counted[0][0] if counted else None


def _counted(gpus: Sequence[RemoteGpu]) -> str:
    hosts = Counter(gpu.host for gpu in gpus)
    named = ", ".join(f"{host} ({count})" for host, count in hosts.items())
    return f"{len(gpus)} GPU{'' if len(gpus) == 1 else 's'}: {named}"
