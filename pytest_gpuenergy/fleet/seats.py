"""Asks the hosts of a fleet what they offer, and gives each GPU that is usable a seat."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from pytest_gpuenergy.fleet.commands import (
    local_worker,
    package_environment,
    project_on,
    ray_probe,
    ray_worker,
    reason_in,
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
from pytest_gpuenergy.support import DeviceError, FormError, InputError, decode

SLURM_PLACE = "slurm"
"""The name of a host that Slurm chooses."""

_LEAST_WAIT_S = 120.0
"""The least time for a host to answer, whatever ``wait=`` says, because it may start slowly."""

_TOGETHER = 32
"""The largest number of hosts that are asked at the same time."""


@dataclass(frozen=True)
class Seat:
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
class Muster:
    """The seats of a fleet, and sentences about the hosts and GPUs that have none."""

    seats: tuple[Seat, ...]
    left_out: tuple[str, ...] = ()
    hosts: tuple[ProbedHost, ...] = ()


def muster(fleet: Fleet | None, device: str, project: str, *, capping: bool) -> Muster:
    """Ask all hosts, and give each usable GPU a seat. Takes as long as the slowest host.

    Slurm's tasks are not asked, because later tasks may run on other hosts. Each checks its own GPU
    when it starts.

    Args:
        fleet: The fleet whose hosts are asked; None for this host.
        device: The value of ``--gpu-device``: ``auto`` or emulated GPUs.
        project: The path of the project here.
        capping: Whether the run sets power limits.

    Raises:
        InputError: ``device`` names a single GPU.
        DeviceError: The fleet's program is missing, or its cluster cannot be reached.
    """
    check_fleet_device(device)
    if isinstance(fleet, SlurmFleet):
        return Muster((_slurm_seat(fleet, project),) * fleet.count)
    hosts = ask_hosts(fleet, device, project)
    return seated(fleet, hosts, device, project, capping=capping)


def seated(
    fleet: Fleet | None, hosts: Sequence[ProbedHost], device: str, project: str, *, capping: bool
) -> Muster:
    """Give each usable GPU of these hosts a seat; see `muster`."""
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
    seats = tuple(_seat(fleet, host, gpu, device, project, avoid) for host, gpu in usable)
    return Muster(seats, tuple(left_out), tuple(hosts))


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
    wait_s = max(fleet.wait_s, _LEAST_WAIT_S)
    if isinstance(fleet, SlurmFleet):
        return _ask_together(srun_probe(fleet, device, project), wait_s, "srun", "Slurm")
    return _ask_together(ray_probe(fleet, device, project), wait_s, "", "Ray")


def _seat(
    fleet: Fleet | None,
    host: ProbedHost,
    gpu: ProbedGpu,
    device: str,
    project: str,
    avoid: Sequence[str],
) -> Seat:
    if fleet is None:
        return Seat(tuple(local_worker(gpu.index)), host.title, gpu.uuid, project)
    if isinstance(fleet, SshFleet):
        (named,) = [named_host for named_host in fleet.hosts if named_host.name == host.label]
        command = ssh_worker(fleet, named, gpu.index, project)
        return Seat(tuple(command), host.title, gpu.uuid, project_on(fleet, named, project))
    if isinstance(fleet, SlurmFleet):
        return _slurm_seat(fleet, project)
    command = ray_worker(fleet, device, project, host.node, avoid)
    return Seat(tuple(command), host.title, None, fleet.settings.directory)


def _slurm_seat(fleet: SlurmFleet, project: str) -> Seat:
    there = project_on(fleet, None, project)
    return Seat(tuple(srun_worker(fleet, project)), SLURM_PLACE, None, there)


def _ask_one(fleet: SshFleet, host: SshHost, device: str, project: str) -> ProbedHost:
    command = ssh_probe(fleet, host, device, project)
    wait_s = max(fleet.wait_s, _LEAST_WAIT_S)
    try:
        done = _run(command, wait_s)
    except subprocess.TimeoutExpired:
        return _silent(host.name, f"it did not answer within {wait_s:g} s.")
    except OSError:
        raise DeviceError(
            "ssh is missing: install an OpenSSH client, or use Ray or Slurm."
        ) from None
    answers = list(_answers(done.stdout))
    if not answers:
        return _silent(host.name, _last_words(done))
    found = answers[-1]
    return ProbedHost(
        found.name, found.python, found.version, found.gpus, found.problem, label=host.name
    )


def _silent(name: str, problem: str) -> ProbedHost:
    return ProbedHost(name, problem=problem, label=name)


def _ask_together(
    command: Sequence[str], wait_s: float, program: str, engine: str
) -> list[ProbedHost]:
    """Run one command that has all hosts print their answers."""
    try:
        done = _run(command, wait_s)
    except subprocess.TimeoutExpired:
        raise DeviceError(
            f"{engine} did not answer within {wait_s:g} s: see whether it has free places, or give "
            "wait=SECONDS."
        ) from None
    except OSError:
        raise DeviceError(f"{program} is missing: run this where {engine} is installed.") from None
    found = list(_answers(done.stdout))
    if not found:
        raise DeviceError(f"{engine} lists no host: {_last_words(done)}")
    return found


def _run(command: Sequence[str], wait_s: float) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=wait_s,
        check=False,
        env=package_environment(),
    )


def _answers(output: str) -> Iterator[ProbedHost]:
    for line in output.splitlines():
        _, mark, answer = line.partition(MARK)
        if mark:
            try:
                yield decode(answer, ProbedHost, "the answer")
            except FormError as error:
                yield ProbedHost("unknown", problem=f"its answer cannot be read: {error}.")


def _last_words(done: subprocess.CompletedProcess[str]) -> str:
    """Return why a command failed, from what it printed."""
    without = f"the command ended with exit code {done.returncode} and no message."
    return reason_in(done.stderr) or reason_in(done.stdout) or without


def none_left(
    fleet: Fleet | None, left_out: Sequence[str], option: str = FLEET_OPTION
) -> InputError:
    """Return the error for a fleet without a usable GPU."""
    reasons = " ".join(left_out) or "no host has a GPU."
    return InputError(f"{option} {fleet}: no GPU of this fleet can be used. {reasons}")
