"""A GPU of another host, as it describes itself, for whoever only needs to know what it is."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import NoReturn

from pytest_gpuenergy.control import Setpoint, enforced_setpoint
from pytest_gpuenergy.devices import Arena, Device, HostClock, KernelRepeater, Loaded
from pytest_gpuenergy.kernels import AnyKernel, Job
from pytest_gpuenergy.support import DeviceError


class FarDevice(Device):
    """Search spaces, logs and record files are made for it; nothing runs here.

    Args:
        name: as a `Device` has it, and so ``uuid``, ``architecture`` and ``emulated``.
        versions: what `describe` returns.
        cores: their number; None if it is not known.
        enforced: what the card was set to when it was claimed.
        energy_mj: reads its energy counter; None where it does not answer.
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
        self.nvml = _ToldNvml(name, cores, energy_mj)
        self.clock = HostClock()
        self.enforced = enforced
        self._versions = dict(versions)

    def prepare(self, kernels: Sequence[AnyKernel]) -> None:
        """Nothing: kernels are compiled where they run, see `engine.team.Member`."""

    def compile(self, kernel: AnyKernel) -> None:
        """Nothing, see `prepare`."""

    def load(self, job: Job, arenas: Mapping[str, Arena]) -> AbstractContextManager[Loaded]:
        self._refuse(job, arenas)

    def repeat(
        self, job: Job, arenas: Mapping[str, Arena]
    ) -> AbstractContextManager[KernelRepeater]:
        self._refuse(job, arenas)

    def describe(self) -> dict[str, str]:
        return dict(self._versions)

    def close(self) -> None:
        """Nothing: it belongs to a process of its host."""

    def _refuse(self, job: Job, _: object) -> NoReturn:
        raise DeviceError(f"{self.name} is on another host, where {job.io.name} has to be run.")


class _ToldNvml:
    """The few functions of NVML that a search asks about its card."""

    class NVMLError(Exception):
        """There is no answer."""

    def __init__(self, name: str, cores: int | None, energy_mj: Callable[[], float | None]) -> None:
        self._name = name
        self._cores = cores
        self._energy_mj = energy_mj

    def nvmlDeviceGetNumGpuCores(self, _: object) -> int:  # noqa: N802 -- NVML's name
        if self._cores is None:
            raise DeviceError(f"{self._name} does not tell how many cores it has.")
        return self._cores

    def nvmlDeviceGetTotalEnergyConsumption(self, _: object) -> float:  # noqa: N802 -- NVML's name
        if (energy_mj := self._energy_mj()) is None:
            raise self.NVMLError
        return energy_mj


def setpoint_of(device: Device) -> Setpoint:
    """What a card enforces; one on another host as it said when it was claimed."""
    return device.enforced if isinstance(device, FarDevice) else enforced_setpoint(device)
