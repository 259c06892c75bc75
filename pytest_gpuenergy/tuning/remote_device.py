"""A GPU on another host, described but not usable here."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import NoReturn

from pytest_gpuenergy.control import Setpoint, enforced_setpoint
from pytest_gpuenergy.devices import Arena, Device, HostClock, KernelRepeater, Loaded
from pytest_gpuenergy.kernels import AnyKernel, Job
from pytest_gpuenergy.support import DeviceError


class RemoteDevice(Device):
    """A GPU on another host, described but not usable here.

    Search spaces, logs and record files are made for it; its kernels run on its host.

    Args:
        name: the GPU's name.
        uuid: the GPU's UUID.
        architecture: the GPU's architecture, such as ``sm_90``.
        emulated: whether the GPU is emulated.
        versions: the result of `describe`.
        cores: the number of cores; None if it is not known.
        enforced: the setpoint that the card enforced when it was claimed.
        energy_mj: reads the energy counter; returns None where that does not answer.
    """

    handle = None

    def __init__(
        self,
        name: str,
        uuid: str,
        architecture: str,
        *,
        emulated: bool,
        versions: Mapping[str, str],
        cores: int | None,
        enforced: Setpoint,
        energy_mj: Callable[[], float | None],
    ) -> None:
        self.name = name
        self.uuid = uuid
        self.architecture = architecture
        self.emulated = emulated
        self.nvml = _RemoteNvml(cores, energy_mj)
        self.clock = HostClock()
        self.enforced = enforced
        self._versions = dict(versions)

    def prepare(self, kernels: Sequence[AnyKernel]) -> None:
        """Do nothing: kernels are compiled where they run, see `engine.team.Member`."""

    def compile(self, kernel: AnyKernel) -> None:
        """Do nothing, see `prepare`."""

    def load(self, job: Job, arenas: Mapping[str, Arena]) -> AbstractContextManager[Loaded]:
        self._refuse(job, arenas)

    def repeat(
        self, job: Job, arenas: Mapping[str, Arena]
    ) -> AbstractContextManager[KernelRepeater]:
        self._refuse(job, arenas)

    def describe(self) -> dict[str, str]:
        return dict(self._versions)

    def close(self) -> None:
        """Do nothing: the GPU belongs to a process of its host."""

    def _refuse(self, job: Job, _arenas: object) -> NoReturn:
        raise DeviceError(f"{self.name} is on another host, where {job.io.name} has to be run.")


class _RemoteNvml:
    """The few functions of NVML that a search calls, answered with what the card's host reported.

    Args:
        cores: the number of cores; None if the host did not report it.
        energy_mj: reads the energy counter; returns None where that does not answer.
    """

    class NVMLError(Exception):
        """The host reported no value. Like all errors of NVML, callers may expect it."""

    def __init__(self, cores: int | None, energy_mj: Callable[[], float | None]) -> None:
        self._cores = cores
        self._energy_mj = energy_mj

    def nvmlDeviceGetNumGpuCores(self, _: object) -> int:  # noqa: N802 -- NVML's name
        if self._cores is None:
            raise self.NVMLError("its host reports none")
        return self._cores

    def nvmlDeviceGetTotalEnergyConsumption(self, _: object) -> float:  # noqa: N802 -- NVML's name
        if (energy_mj := self._energy_mj()) is None:
            raise self.NVMLError("its host reports none")
        return energy_mj


def setpoint_of(device: Device) -> Setpoint:
    """Return the enforced setpoint; for a remote card, as reported when it was claimed."""
    return device.enforced if isinstance(device, RemoteDevice) else enforced_setpoint(device)
