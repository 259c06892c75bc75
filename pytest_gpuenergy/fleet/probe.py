"""Probes what a host offers to a fleet: its GPUs, and whether each can measure and be capped.

It only reads. ``python -m pytest_gpuenergy.fleet.probe DEVICE`` prints the result for the machine
on which it runs.
"""

from __future__ import annotations

import hashlib
import os
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from msgspec import Struct

import pytest_gpuenergy
from pytest_gpuenergy import emulator
from pytest_gpuenergy.control import choose_writer, read_limits
from pytest_gpuenergy.devices import Gpu, find_gpus, printable_text, unavailable_errors
from pytest_gpuenergy.energy import average_power_mw, instant_power_mw
from pytest_gpuenergy.opening import EmulatedSpec, check_spec, nvml_gpu, open_device
from pytest_gpuenergy.support import (
    FLEET_GPU,
    DeviceError,
    GpuEnergyError,
    InputError,
    encode,
    error_message,
    host_name,
    name_emulated_host,
)

MARK = "gpuenergy-probe: "
"""The start of the line with the answer, among whatever else a host prints."""

_PATIENCE_S = 10.0
"""The time that the processes of a worker that died may remain on its GPU."""

_POLL_S = 0.5
"""The interval between two probes of such a GPU."""

_IN_USE = "is using it"


class ProbedGpu(Struct, frozen=True):
    """A GPU of a host.

    Attributes:
        index: The GPU's number among those of the host that CUDA sees, or among the emulated ones.
        uuid: The UUID that NVML reports.
        name: The model.
        emulated: Whether the GPU is emulated.
        driver: The version of the driver.
        power_limits_w: The least, the largest and the present limit; empty if unknown.
        no_measuring: Why it cannot measure; None if it can.
        no_capping: Why its power limit cannot be set; None if it can.
    """

    index: int
    uuid: str
    name: str
    emulated: bool
    driver: str
    power_limits_w: tuple[float, ...] = ()
    no_measuring: str | None = None
    no_capping: str | None = None

    def reason_against(self, *, capping: bool) -> str | None:
        """Return why a run cannot use the GPU, given whether it sets limits; None if it can."""
        return self.no_measuring or (self.no_capping if capping else None)


class ProbedHost(Struct, frozen=True):
    """A host, and its GPUs.

    Attributes:
        name: The name that the host has for itself.
        python: The path of its interpreter.
        version: The version of this package, see `own_version`.
        gpus: Its GPUs.
        problem: Why none of them can be used; None if some can.
        label: The name that the user gave; empty if there is none.
        node: Ray's id of the node; empty without Ray.
    """

    name: str
    python: str = ""
    version: str = ""
    gpus: tuple[ProbedGpu, ...] = ()
    problem: str | None = None
    label: str = ""
    node: str = ""

    @property
    def title(self) -> str:
        """The name of the host for the user."""
        return self.label or self.name


def check_fleet_device(spec: str) -> EmulatedSpec | None:
    """Return the emulated GPUs that ``--gpu-device`` of a fleet names; None for the real ones.

    Raises:
        InputError: It names GPUs, or is not understood.
    """
    parts = [check_spec(part.strip()) for part in spec.split(",")]
    emulated = parts[0]
    if len(parts) > 1 or (emulated is None and spec != "auto"):
        names = "GPUs" if len(parts) > 1 else "a GPU"
        raise InputError(
            f"--gpu-device {spec} names {names} of one host, but a fleet takes all that can "
            "measure: give auto or emulated[:PROFILE][xN], and CUDA_VISIBLE_DEVICES on a host to "
            "use fewer."
        )
    return emulated


def probe_host(spec: str = "auto") -> ProbedHost:
    """Probe this host and its GPUs.

    Args:
        spec: ``auto`` for the NVIDIA GPUs that CUDA sees, or the emulated ones.

    Raises:
        InputError: ``spec`` is neither.
    """
    emulated = check_fleet_device(spec)
    name = host_name(emulated=emulated is not None)
    gpus: tuple[ProbedGpu, ...] = ()
    problem = None
    try:
        gpus = tuple(_real_gpus() if emulated is None else _emulated_gpus(spec, emulated.count))
        problem = None if gpus else "CUDA sees no GPU: check CUDA_VISIBLE_DEVICES."
    except (GpuEnergyError, OSError) as error:
        problem = error_message(error)
    return ProbedHost(name, sys.executable, own_version(), gpus, problem)


def own_gpu(device: str, *, capping: bool) -> ProbedGpu:
    """Return the GPU that the environment names.

    Processes of a worker that died may remain for a moment, so the GPU is probed several times.

    Raises:
        GpuEnergyError, OSError: It cannot be used.
    """
    deadline_s = time.monotonic() + _PATIENCE_S
    while True:
        host = probe_host(device)
        number = os.environ.get(FLEET_GPU, "0")
        gpu = next((gpu for gpu in host.gpus if str(gpu.index) == number), None)
        if gpu is None:
            raise DeviceError(host.problem or f"it has no GPU {number}.")
        problem = gpu.reason_against(capping=capping)
        if problem is None:
            return gpu
        if time.monotonic() > deadline_s or _IN_USE not in problem:
            raise DeviceError(problem)
        time.sleep(_POLL_S)


def _real_gpus() -> Iterator[ProbedGpu]:
    nvml, gpus = find_gpus()
    for gpu in gpus:
        readable = nvml_gpu(nvml, gpu.uuid)
        missing = None
        if find_spec("cupy") is None:
            missing = "CuPy is not installed: pip install 'pytest-gpuenergy[cuda13]' (or cuda12)."
        yield _probe_gpu(readable, gpu.ordinal, missing)


def _emulated_gpus(spec: str, count: int) -> Iterator[ProbedGpu]:
    emulator.find_compiler()
    for index in range(count):
        try:
            with open_device(spec, index=index) as device:
                yield _probe_gpu(device, index)
        except DeviceError as error:
            yield ProbedGpu(index, "", spec, True, "", no_measuring=str(error))


def _probe_gpu(gpu: Gpu, index: int, missing: str | None = None) -> ProbedGpu:
    nvml = gpu.nvml
    try:
        driver = printable_text(nvml.nvmlSystemGetDriverVersion())
    except nvml.NVMLError as error:
        driver, missing = "", missing or f"its driver does not respond ({error})."
    limits: tuple[float, ...] = ()
    no_capping = None
    try:
        read = read_limits(gpu)
        limits = (read.min_w, read.max_w, read.current_w)
        choose_writer(gpu)
    except DeviceError as error:
        no_capping = str(error)
    no_measuring = missing or _why_not(gpu)
    return ProbedGpu(
        index, gpu.uuid, gpu.name, gpu.emulated, driver, limits, no_measuring, no_capping
    )


def _why_not(gpu: Gpu) -> str | None:
    """Return why the GPU cannot measure, as far as NVML reports it; None if it can."""
    nvml = gpu.nvml
    try:
        mode, _ = nvml.nvmlDeviceGetMigMode(gpu.handle)
    except nvml.NVMLError:
        mode = 0  # a card without MIG
    if mode:
        return "it is in MIG mode, where power is not measured per instance."
    try:
        others: set[int] = set()
        with suppress(*unavailable_errors(nvml)):  # other users are then noticed in the power
            others = {
                int(process.pid)
                for process in nvml.nvmlDeviceGetComputeRunningProcesses(gpu.handle)
            }
        if others:
            numbers = ", ".join(map(str, sorted(others)[:3]))
            return f"process {numbers} {_IN_USE}, whose energy would be counted too."
        with suppress(*unavailable_errors(nvml)):
            nvml.nvmlDeviceGetTemperature(gpu.handle, nvml.NVML_TEMPERATURE_GPU)
    except nvml.NVMLError as error:
        return f"it does not respond ({error}): see nvidia-smi and dmesg."
    try:
        nvml.nvmlDeviceGetTotalEnergyConsumption(gpu.handle)
    except nvml.NVMLError:
        if all(read(gpu) is None for read in (instant_power_mw, average_power_mw)):
            return "it offers neither an energy counter nor a power reading."
    return None


@cache
def own_version() -> str:
    """Return the version of this package with a digest of its code: ``0.1.0 (code 1a2b3c4d)``.

    Hosts exchange pickled objects and records, whose form may differ between commits.
    """
    root = Path(pytest_gpuenergy.__file__).parent
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        digest.update(f"{path.relative_to(root)}\0".encode() + path.read_bytes() + b"\0")
    return f"{pytest_gpuenergy.__version__} (code {digest.hexdigest()[:8]})"


def other_version(there: str, here: str) -> str:
    """Return why a host that has another version of this package cannot be used."""
    return (
        f"it has pytest-gpuenergy {there or 'of an unknown version'}, and the controller {here}: "
        "install the same commit on all."
    )


def main(arguments: list[str]) -> int:
    """Print what this host offers as one line of JSON."""
    name_emulated_host()
    host = probe_host(*arguments[:1])
    print(MARK + encode(host).decode(), flush=True)  # noqa: T201 -- read by `hosts`
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
