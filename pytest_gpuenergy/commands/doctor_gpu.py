"""The checks of ``gpuenergy doctor`` that concern NVIDIA GPUs. They only read."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from pytest_gpuenergy.support import DeviceError, SetpointError, WritesDeniedError

if TYPE_CHECKING:
    from pytest_gpuenergy.control import PowerLimits
    from pytest_gpuenergy.devices import Gpu

Status = Literal["ok", "note", "broken"]

_LIBRARY_MISMATCH = 18  # NVML_ERROR_LIB_RM_VERSION_MISMATCH
_NO_DRIVER = (9, 12)  # NVML_ERROR_DRIVER_NOT_LOADED, NVML_ERROR_LIBRARY_NOT_FOUND
_MIB = 1 << 20


@dataclass(frozen=True)
class Check:
    """The result of one check.

    Attributes:
        name: what was checked.
        status: ``note`` means that something optional is missing, ``broken`` that measuring fails.
        found: what was found.
        advice: what to do; empty if nothing is to be done.
    """

    name: str
    status: Status
    found: str
    advice: str = ""


def check_gpus() -> Iterator[Check]:
    """The driver, NVML, the CUDA driver library, and every GPU that NVML sees."""
    from pytest_gpuenergy.devices import load_nvml, printable_text

    try:
        nvml = load_nvml()
    except DeviceError as error:
        yield _no_nvml(error)
        return
    try:
        version = printable_text(nvml.nvmlSystemGetDriverVersion())
        count = nvml.nvmlDeviceGetCount()
    except nvml.NVMLError as error:
        yield Check("driver", "broken", f"NVML fails: {error}", "check that nvidia-smi works")
        return
    yield Check("driver", "ok", f"NVIDIA driver {version}, {count} GPU(s)")
    found: dict[str, tuple[int, Any]] = {}
    for index in range(count):
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            found[printable_text(nvml.nvmlDeviceGetUUID(handle))] = index, handle
        except nvml.NVMLError as error:
            yield _silent(f"GPU {index}", error)
    yield _cuda_agrees(list(found))
    for uuid, (index, handle) in found.items():
        yield from check_gpu(nvml, handle, f"GPU {index}", uuid)


def check_gpu(nvml: Any, handle: Any, label: str, uuid: str) -> Iterator[Check]:
    """One GPU: its energy, limits and who may set them, persistence, MIG, processes, leftovers."""
    from pytest_gpuenergy.devices import gpu_name

    try:
        name = gpu_name(nvml, handle)
    except nvml.NVMLError as error:
        yield _silent(label, error)
        return
    yield Check(label, "ok", f"{name} {uuid}")
    gpu = _as_gpu(nvml, handle, name, uuid)
    yield _energy(gpu, label)
    yield _power_limits(gpu, label)
    yield _clocks(gpu, label)
    try:
        persistent = bool(nvml.nvmlDeviceGetPersistenceMode(handle))
        yield (
            Check(f"{label} persistence", "ok", "on")
            if persistent
            else Check(
                f"{label} persistence",
                "note",
                "off: the driver may unload between runs, which resets the power limit",
                "sudo nvidia-smi -pm 1",
            )
        )
    except nvml.NVMLError:
        pass  # not supported here, so there is no advice to give
    yield from _mig(nvml, handle, label)
    yield from _other_processes(nvml, handle, label)
    yield from check_leftover(label, uuid)


def check_leftover(label: str, uuid: str) -> Iterator[Check]:
    """Settings of the card ``uuid`` that ``gpuenergy powercap restore`` would undo."""
    from pytest_gpuenergy.control import kept_record, leftover

    try:
        left, kept = leftover(uuid), kept_record(uuid)
    except SetpointError as error:
        yield Check(f"{label} saved power limit", "broken", str(error))
        return
    for record, what in (
        (left, "by a run that was killed before it restored"),
        (kept, "by gpuenergy powercap set; before that it was"),
    ):
        if record is None:
            continue
        if (limit_mw := record.power_limit_mw) is not None:
            yield Check(
                f"{label} saved power limit",
                "note",
                f"{limit_mw.written / 1e3:g} W was set {what} {limit_mw.prior / 1e3:g} W",
                "gpuenergy powercap restore",
            )
        if record.sm_clock_mhz is not None:
            yield Check(
                f"{label} locked clocks",
                "note",
                f"the SM clocks were locked to {record.sm_clock_mhz} MHz {what.partition(';')[0]}",
                "gpuenergy powercap restore, which unlocks them",
            )


def _silent(label: str, error: Exception) -> Check:
    return Check(label, "broken", f"it does not answer: {error}", "see nvidia-smi and dmesg")


def _no_nvml(error: DeviceError) -> Check:
    # load_nvml explains NVML's own error, which stays available as the context.
    code = getattr(error.__context__, "value", None)
    if code == _LIBRARY_MISMATCH:
        return Check(
            "driver",
            "broken",
            "the loaded driver and its libraries have different versions",
            "restart the machine, or reload the driver's kernel modules",
        )
    if code in _NO_DRIVER:
        return Check(
            "driver",
            "note",
            "no NVIDIA driver: only the emulated GPU can be used",
            "on a machine with an NVIDIA GPU, install its driver",
        )
    return Check("driver", "broken", str(error))


def _cuda_agrees(uuids: list[str]) -> Check:
    from pytest_gpuenergy.devices import VISIBLE, cuda_uuids, visible_gpus

    try:
        cuda = cuda_uuids()
    except DeviceError as error:
        return Check("CUDA driver library", "broken", str(error))
    if unknown := [uuid for uuid in cuda if uuid not in uuids]:
        return Check(
            "CUDA driver library",
            "broken",
            f"CUDA sees {unknown[0]}, but NVML does not",
            "check that nvidia-smi -L lists it; name whole GPUs in CUDA_VISIBLE_DEVICES",
        )
    if len(cuda) < len(uuids):
        visible = os.environ.get(VISIBLE)
        # It does not matter here which of them is device 0, so their names may be equal.
        remark = visible_gpus(os.environ, [(uuid, "") for uuid in uuids]).remark
        why = remark or (f"{VISIBLE}={visible}" if visible is not None else "")
        return Check(
            "CUDA driver library",
            "note",
            f"CUDA sees {len(cuda)} of the {len(uuids)} GPUs of NVML" + (why and f" ({why})"),
            "unset CUDA_VISIBLE_DEVICES to use the others",
        )
    return Check("CUDA driver library", "ok", "sees the same GPUs as NVML, by UUID")


def _as_gpu(nvml: Any, handle: Any, model: str, uuid: str) -> Gpu:
    from pytest_gpuenergy.devices import HostClock, NvmlGpu

    return NvmlGpu(nvml, handle, model, uuid, HostClock())


def _energy(gpu: Gpu, label: str) -> Check:
    from pytest_gpuenergy.devices import unavailable_errors
    from pytest_gpuenergy.energy import average_power_mw, instant_power_mw

    name, nvml = f"{label} energy", gpu.nvml
    try:
        nvml.nvmlDeviceGetTotalEnergyConsumption(gpu.handle)
        return Check(name, "ok", "it has an energy counter")
    except unavailable_errors(nvml) as error:
        reason = str(error)
    except nvml.NVMLError as error:
        found = f"its energy counter cannot be read: {error}"
        return Check(name, "broken", found, "see nvidia-smi and dmesg")
    for power, read in (("instant", instant_power_mw), ("average", average_power_mw)):
        if read(gpu) is not None:
            return Check(
                name,
                "note",
                f"it has no energy counter ({reason}): energy is the integral of its {power} power",
                "allow longer measurements, whose intervals are narrower",
            )
    return Check(
        name,
        "broken",
        f"it has neither an energy counter nor a power reading ({reason}): nothing can be measured",
        "use another GPU, or only verify kernels with --gpuenergy-verify-only",
    )


def _power_limits(gpu: Gpu, label: str) -> Check:
    from pytest_gpuenergy.control import choose_writer, read_limits

    name = f"{label} power limit"
    try:
        limits = read_limits(gpu)
    except DeviceError as error:
        return Check(name, "note", f"unknown: {error}", "use --powercap current")
    found = f"{limits.current_w:g} W, allowed are {limits.min_w:g} W to {limits.max_w:g} W"
    if limits.min_w == limits.max_w:
        return Check(name, "note", f"{found}: fixed", "use --powercap current")
    try:
        writer = choose_writer(gpu)
    except WritesDeniedError:
        return Check(
            name,
            "note",
            f"{found}; GPUENERGY_CAP_WRITES forbids setting it",
            "unset GPUENERGY_CAP_WRITES, or use --powercap current",
        )
    except SetpointError as error:
        return Check(name, "note", f"{found}. {error}", _sudo_advice(gpu.uuid, limits))
    return Check(name, "ok", f"{found}; this user may set it through {writer.name}")


def _clocks(gpu: Gpu, label: str) -> Check:
    from pytest_gpuenergy.control import choose_writer, supported_clocks

    name = f"{label} SM clocks"
    try:
        clocks = supported_clocks(gpu)
    except DeviceError as error:
        return Check(name, "note", f"unknown: {error}", "use --smclock current")
    found = f"{clocks[0]} MHz to {clocks[-1]} MHz in {len(clocks)} steps"
    try:
        writer = choose_writer(gpu)
        writer.check_clock_lock(clocks[-1])
    except WritesDeniedError:
        return Check(
            name,
            "note",
            f"{found}; GPUENERGY_CAP_WRITES forbids locking them",
            "unset GPUENERGY_CAP_WRITES, or use --smclock current",
        )
    except SetpointError:
        return Check(
            name,
            "note",
            f"{found}; this user may not lock them",
            _clock_advice(gpu.uuid, clocks),
        )
    return Check(name, "ok", f"{found}; this user may lock them through {writer.name}")


def _clock_advice(uuid: str, clocks: Sequence[int]) -> str:
    from pytest_gpuenergy.control import clocks_line

    try:
        return f"sudo visudo, and add: {clocks_line(uuid, clocks)}"
    except SetpointError as error:
        return f"there is no safe sudo rule: {error}"


def _sudo_advice(uuid: str, limits: PowerLimits) -> str:
    from pytest_gpuenergy.control import sudoers_line

    try:
        return f"sudo visudo, and add: {sudoers_line(uuid, limits)}"
    except SetpointError as error:
        return f"there is no safe sudo rule: {error}"


def _mig(nvml: Any, handle: Any, label: str) -> Iterator[Check]:
    try:
        current, _ = nvml.nvmlDeviceGetMigMode(handle)
    except nvml.NVMLError:
        return  # a card without MIG
    if current:
        yield Check(
            f"{label} MIG",
            "broken",
            "on: power is not measured per instance",
            "use another GPU, or sudo nvidia-smi -mig 0",
        )


def _other_processes(nvml: Any, handle: Any, label: str) -> Iterator[Check]:
    try:
        processes = nvml.nvmlDeviceGetComputeRunningProcesses(handle)
    except nvml.NVMLError as error:
        yield Check(f"{label} other processes", "note", f"unknown: {error}")
        return
    others = [process for process in processes if process.pid != os.getpid()]
    if others:
        listed = ", ".join(
            f"{process.pid}"
            + ("" if (used := process.usedGpuMemory) is None else f" ({used // _MIB} MiB)")
            for process in others
        )
        yield Check(
            f"{label} other processes",
            "note",
            f"in use by process {listed}",
            "end them before measuring: every power reading includes their work",
        )
