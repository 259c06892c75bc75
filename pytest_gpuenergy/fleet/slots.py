"""Asks the hosts of a fleet what they offer, and gives each GPU that is usable a slot."""

from __future__ import annotations

import shutil
import subprocess
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

from msgspec.structs import replace

from pytest_gpuenergy.fleet.commands import (
    failure_reason,
    local_worker,
    package_environment,
    ray_probe,
    ray_worker,
    remote_project,
    srun_probe,
    srun_worker,
    ssh_probe,
    ssh_worker,
)
from pytest_gpuenergy.fleet.probe import (
    MARK,
    ProbedGpu,
    ProbedHost,
    check_fleet_device,
    other_version,
    own_version,
    probe_host,
)
from pytest_gpuenergy.fleet.spec import FLEET_OPTION, Fleet, SlurmFleet, SshFleet, SshHost
from pytest_gpuenergy.support import DeviceError, FormError, InputError, decode, run_captured

SLURM_PLACE = "slurm"
"""The name of a host that Slurm chooses."""

_SRUN = "srun"
_MIN_WAIT_S = 120.0
"""The minimum time for a host to answer, whatever ``wait=`` says, because it may start slowly."""

_TOGETHER = 32
"""The largest number of hosts that are asked at the same time."""


@dataclass(frozen=True)
class Slot:
    """A place for a worker: a GPU, and the command that starts an interpreter beside it.

    Attributes:
        command: The command, which execnet completes, see `commands`.
        host: The name of the host for the user.
        uuid: The UUID of the GPU; None where Ray or Slurm chooses it.
        directory: The project's path on the host; None where Ray sends the project.
    """

    command: tuple[str, ...]
    host: str
    uuid: str | None = None
    directory: str | None = None


@dataclass(frozen=True)
class FoundSlots:
    """The slots of a fleet, and sentences about the hosts and GPUs that have none."""

    slots: tuple[Slot, ...]
    left_out: tuple[str, ...] = ()


def find_slots(
    fleet: Fleet, device: str, project: str, *, capping: bool, one_model: bool = False
) -> FoundSlots:
    """Ask all hosts, and give each usable GPU a slot. Takes as long as the slowest host.

    Slurm's tasks are not asked, because later tasks may run on other hosts. Each checks its own GPU
    when it starts.

    Args:
        fleet: The fleet whose hosts are asked.
        device: The value of ``--gpu-device``: ``auto`` or emulated GPUs.
        project: The path of the project here.
        capping: Whether the run sets power limits.
        one_model: Whether GPUs of another model than most are left out.

    Raises:
        InputError: ``device`` names a single GPU.
        DeviceError: The fleet's program is missing, or its cluster cannot be reached.
    """
    check_fleet_device(device)
    if isinstance(fleet, SlurmFleet):
        if shutil.which(_SRUN) is None:
            raise _missing(_SRUN, "Slurm")
        return FoundSlots((_slurm_slot(fleet, project),) * fleet.count)
    hosts = ask_hosts(fleet, device, project)
    if one_model:
        hosts = _leave_out_other_models(hosts, capping=capping)
    return assign_slots(fleet, hosts, device, project, capping=capping)


def _leave_out_other_models(hosts: Sequence[ProbedHost], *, capping: bool) -> list[ProbedHost]:
    """Return the hosts with a reason against each GPU of another model than most usable ones."""
    model = most_common(
        (gpu.name, gpu.emulated)
        for host in hosts
        for gpu in host.gpus
        if host.problem is None and gpu.reason_against(capping=capping) is None
    )

    def judged(gpu: ProbedGpu) -> ProbedGpu:
        if model is None or (gpu.name, gpu.emulated) == model:
            return gpu
        return replace(gpu, no_measuring=gpu.no_measuring or of_other_model(model[0]))

    return [replace(host, gpus=tuple(map(judged, host.gpus))) for host in hosts]


_H = TypeVar("_H", bound=Hashable)


def most_common(values: Iterable[_H]) -> _H | None:
    """Return the most frequent value, the first of several; None if there are no values."""
    counted = Counter(values).most_common(1)
    return counted[0][0] if counted else None


def of_other_model(model: str) -> str:
    """Return the reason against a GPU of another model than that of a search."""
    return f"the search is on {model}, with which its figures cannot be compared."


def assign_slots(
    fleet: Fleet | None, hosts: Sequence[ProbedHost], device: str, project: str, *, capping: bool
) -> FoundSlots:
    """Give each usable GPU of these hosts a slot; see `find_slots`."""
    usable, left_out, avoid = [], [], []
    for host in hosts:
        if host.problem is not None or host.version != own_version():
            reason = host.problem or other_version(host.version, own_version())
            left_out.append(f"{host.title}: {reason}")
            avoid += [f"{host.node}:{gpu.index}" for gpu in host.gpus]
            continue
        for gpu in host.gpus:
            if (why := gpu.reason_against(capping=capping)) is None:
                usable.append((host, gpu))
            else:
                left_out.append(f"{host.title}, GPU {gpu.index} ({gpu.name}): {why}")
                avoid.append(f"{host.node}:{gpu.index}")
    slots = tuple(_slot(fleet, host, gpu, device, project, avoid) for host, gpu in usable)
    return FoundSlots(slots, tuple(left_out))


def ask_hosts(fleet: Fleet | None, device: str, project: str) -> list[ProbedHost]:
    """Return what each host offers, in the fleet's order; silent hosts have a ``problem``.

    Raises:
        InputError: ``device`` names a single GPU.
        DeviceError: The fleet's program is missing, or its cluster cannot be reached.
    """
    check_fleet_device(device)
    if fleet is None:
        return [probe_host(device)]
    if isinstance(fleet, SshFleet):
        with ThreadPoolExecutor(_TOGETHER) as threads:
            return list(
                threads.map(lambda host: _ask_one(fleet, host, device, project), fleet.hosts)
            )
    wait_s = max(fleet.wait_s, _MIN_WAIT_S)
    if isinstance(fleet, SlurmFleet):
        return _ask_together(srun_probe(fleet, device, project), wait_s, _SRUN, "Slurm")
    return _ask_together(ray_probe(fleet, device, project), wait_s, "", "Ray")


def _slot(
    fleet: Fleet | None,
    host: ProbedHost,
    gpu: ProbedGpu,
    device: str,
    project: str,
    avoid: Sequence[str],
) -> Slot:
    if fleet is None:
        return Slot(tuple(local_worker(gpu.index)), host.title, gpu.uuid, project)
    if isinstance(fleet, SshFleet):
        (named,) = [named_host for named_host in fleet.hosts if named_host.name == host.label]
        command = ssh_worker(fleet, named, gpu.index, project)
        return Slot(tuple(command), host.title, gpu.uuid, remote_project(fleet, named, project))
    if isinstance(fleet, SlurmFleet):
        return _slurm_slot(fleet, project)
    command = ray_worker(fleet, device, project, host.node, avoid)
    return Slot(tuple(command), host.title, None, fleet.settings.directory)


def _slurm_slot(fleet: SlurmFleet, project: str) -> Slot:
    there = remote_project(fleet, None, project)
    return Slot(tuple(srun_worker(fleet, project)), SLURM_PLACE, None, there)


def _ask_one(fleet: SshFleet, host: SshHost, device: str, project: str) -> ProbedHost:
    wait_s = max(fleet.wait_s, _MIN_WAIT_S)
    try:
        answers, problem = _probe(ssh_probe(fleet, host, device, project), wait_s)
    except subprocess.TimeoutExpired:
        answers, problem = [], f"it did not answer within {wait_s:g} s."
    except OSError:
        raise DeviceError(
            "ssh is missing: install an OpenSSH client, or use Ray or Slurm."
        ) from None
    answer = answers[-1] if answers else ProbedHost(host.name, problem=problem)
    return replace(answer, label=host.name)


def _ask_together(
    command: Sequence[str], wait_s: float, program: str, engine: str
) -> list[ProbedHost]:
    """Run one command that has all hosts print their answers."""
    try:
        answers, problem = _probe(command, wait_s)
    except subprocess.TimeoutExpired:
        raise DeviceError(
            f"{engine} did not answer within {wait_s:g} s: see whether it has free places, or give "
            "wait=SECONDS."
        ) from None
    except OSError:
        raise _missing(program, engine) from None
    if not answers:
        raise DeviceError(f"{engine} lists no host: {problem}")
    return answers


def _missing(program: str, engine: str) -> DeviceError:
    return DeviceError(f"{program} is missing: run this where {engine} is installed.")


def _probe(command: Sequence[str], wait_s: float) -> tuple[list[ProbedHost], str]:
    """Run a command that prints the answers of hosts; return them, and why it failed if it did."""
    done = run_captured(command, timeout_s=wait_s, environment=package_environment())
    answers = []
    for line in done.stdout.splitlines():
        _, mark, answer = line.partition(MARK)
        if mark:
            try:
                answers.append(decode(answer, ProbedHost, "the answer"))
            except FormError as error:
                problem = f"its answer cannot be read: {error}."
                answers.append(ProbedHost("unknown", problem=problem))
    silent = f"the command ended with exit code {done.returncode} and no message."
    return answers, failure_reason(done.stderr) or failure_reason(done.stdout) or silent


def none_left(
    fleet: Fleet | None, left_out: Sequence[str], option: str = FLEET_OPTION
) -> InputError:
    """Return the error for a fleet without a usable GPU."""
    reasons = " ".join(left_out) or "no host has a GPU."
    return InputError(f"{option} {fleet}: no GPU of this fleet can be used. {reasons}")
