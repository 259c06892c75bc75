"""``gpuenergy doctor``: what works here, what does not, and what to do about it.

The checks only read. Those of GPUs come last.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from pytest_gpuenergy import control, devices, emulator, energy
from pytest_gpuenergy.commands.command_line import Subparsers, add_command, print_json
from pytest_gpuenergy.support import (
    DeviceError,
    GpuEnergyError,
    InputError,
    SetpointError,
    WritesDeniedError,
    cache_dir,
    run_captured,
    state_dir,
)

Status = Literal["ok", "note", "broken"]
_CHILD_TIMEOUT_S = 120.0
_PYTHONS = ((3, 11), (3, 14))
_XGBOOST = ("xgboost-cpu", "xgboost")
_PACKAGES = ("msgspec", "numpy", "nvidia-ml-py", "pytest")
_LIBRARY_MISMATCH = 18  # NVML_ERROR_LIB_RM_VERSION_MISMATCH
_NO_DRIVER = (9, 12)  # NVML_ERROR_DRIVER_NOT_LOADED, NVML_ERROR_LIBRARY_NOT_FOUND
_MIB = 1 << 20

_CUPY_PROBE = """
import json, cupy
from cupy.cuda import nvrtc
print(json.dumps([cupy.__version__, ".".join(map(str, nvrtc.getVersion()))]))
"""
# Version 0.1.15 of apache-tvm-ffi crashes here, so this must not run in our own process.
_TVM_PROBE = """
import json, tvm
tvm.ir.save_json(tvm.tirx.IntImm("int32", 1))
print(json.dumps([tvm.__version__]))
"""


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


def add_parser(subparsers: Subparsers, summary: str) -> None:
    """Add ``doctor``."""
    parser = add_command(
        subparsers,
        "doctor",
        run,
        summary=summary,
        description="Changes nothing. A missing optional component is a note; the exit code is 1 "
        "only if something is broken.",
        example="gpuenergy doctor\ngpuenergy doctor --json",
    )
    parser.add_argument("--json", action="store_true", help="Print JSON")


def run(arguments: Namespace) -> int:
    """Print the checks; 0 if nothing is broken."""
    checks = list(all_checks())
    broken = sum(check.status == "broken" for check in checks)
    if arguments.json:
        print_json({"ok": not broken, "checks": [asdict(check) for check in checks]})
        return 1 if broken else 0
    for check in checks:
        print(f"{check.status:<7} {check.name}: {check.found}")
        if check.advice:
            print(f"{'':<7} -> {check.advice}")
    notes = sum(check.status == "note" for check in checks)
    print(f"{broken} broken, {notes} to note")
    return 1 if broken else 0


def all_checks() -> Iterator[Check]:
    """Run every check; each depends on earlier ones only."""
    python = ".".join(map(str, sys.version_info[:3]))
    if _PYTHONS[0] <= sys.version_info[:2] < _PYTHONS[1]:
        yield Check("Python", "ok", python)
    else:
        yield Check("Python", "broken", python, "use Python 3.11, 3.12 or 3.13")
    for name in _PACKAGES:
        if version := _version(name):
            yield Check(name, "ok", version)
        else:
            yield Check(name, "broken", "not installed", f"pip install {name}")
    yield from (_check_folder(name) for name in ("cache", "state"))
    try:
        yield Check("emulated GPU", "ok", f"runs kernels with {emulator.find_compiler()}")
    except GpuEnergyError as error:
        yield Check("emulated GPU", "broken", str(error), "install g++, or set CXX to a compiler")
    yield from check_gpus()
    yield check_cupy()
    yield check_tvm()
    found = [(name, version) for name in _XGBOOST if (version := _version(name))]
    if found:
        yield Check("xgboost", "ok", " ".join(found[0]))
    else:
        lacks = "not installed: tuning has no learned cost model"
        yield Check("xgboost", "note", lacks, 'pip install "pytest-gpuenergy[tvm]"')
    nvcc = devices.find_nvcc()
    if nvcc is None:
        yield Check("nvcc", "note", "not on the PATH: only exports and CUTLASS need it")
    elif version := devices.nvcc_version(nvcc):
        yield Check("nvcc", "ok", f"{version} ({nvcc})")
    else:
        yield Check("nvcc", "note", f"{nvcc} does not work", "repair the CUDA toolkit")


def check_cupy() -> Check:
    """Check CuPy with NVRTC, which only real GPUs need."""
    if find_spec("cupy") is None:
        advice = 'pip install "pytest-gpuenergy[cuda13]" (or cuda12, as nvidia-smi says)'
        return Check("CuPy", "note", "not installed: real GPUs cannot be used", advice)
    answer, error = _probe(_CUPY_PROBE)
    if answer is None:
        advice = "install one CuPy that fits the driver: cupy-cuda12x[ctk] or cupy-cuda13x[ctk]"
        return Check("CuPy", "broken", f"installed, but it does not work: {error}", advice)
    return Check("CuPy", "ok", f"{answer[0]} with NVRTC {answer[1]}")


def check_tvm() -> Check:
    """Check TVM together with tvm-ffi, which tuning and lowering records need."""
    if find_spec("tvm") is None:
        lacks = "not installed: records cannot be tuned or turned into kernels"
        return Check("TVM", "note", lacks, 'pip install "pytest-gpuenergy[tvm]"')
    ffi = _version("apache-tvm-ffi") or "unknown"
    answer, error = _probe(_TVM_PROBE)
    if answer is None:
        found = f"it does not work with apache-tvm-ffi {ffi}: {error}"
        return Check("TVM", "broken", found, 'pip install "apache-tvm-ffi>=0.1.14.post0,<0.1.15"')
    return Check("TVM", "ok", f"{answer[0]} with apache-tvm-ffi {ffi}")


def _check_folder(kind: str) -> Check:
    make: Callable[[], Path] = {"cache": cache_dir, "state": state_dir}[kind]
    name = f"{kind} folder"
    try:
        folder = make()
        with tempfile.TemporaryFile(dir=folder):
            return Check(name, "ok", str(folder))
    except InputError as error:
        return Check(name, "broken", str(error))
    except OSError as error:
        found = f"{folder} cannot be written: {error.strerror}"
        advice = f"set GPUENERGY_{kind.upper()} to a folder that can be written"
        return Check(name, "broken", found, advice)


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _probe(code: str) -> tuple[list[str] | None, str]:
    """Run ``code`` in a process of its own; return the JSON that it prints, or None and why."""
    try:
        child = run_captured([sys.executable, "-c", code], timeout_s=_CHILD_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return None, f"no answer within {_CHILD_TIMEOUT_S:g} s"
    if child.returncode < 0:
        return None, f"the process was ended by signal {-child.returncode}"
    if child.returncode:
        return None, (child.stderr.strip().splitlines() or ["no message"])[-1]
    answer: list[str] = json.loads(child.stdout.strip().splitlines()[-1])
    return answer, ""


def check_gpus() -> Iterator[Check]:
    """Check the driver, NVML, the CUDA driver library, and every GPU that NVML sees."""
    try:
        nvml = devices.load_nvml()
    except DeviceError as error:
        yield _no_nvml(error)
        return
    try:
        version = devices.printable_text(nvml.nvmlSystemGetDriverVersion())
        count = nvml.nvmlDeviceGetCount()
    except nvml.NVMLError as error:
        yield Check("driver", "broken", f"NVML fails: {error}", "check that nvidia-smi works")
        return
    yield Check("driver", "ok", f"NVIDIA driver {version}, {count} GPU(s)")
    found: dict[str, tuple[int, Any]] = {}
    for index in range(count):
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            found[devices.printable_text(nvml.nvmlDeviceGetUUID(handle))] = index, handle
        except nvml.NVMLError as error:
            yield _silent(f"GPU {index}", error)
    yield _cuda_agrees(list(found))
    for uuid, (index, handle) in found.items():
        yield from check_gpu(nvml, handle, f"GPU {index}", uuid)


def check_gpu(nvml: Any, handle: Any, label: str, uuid: str) -> Iterator[Check]:
    """Check a GPU: energy, limits and permissions, persistence, MIG, processes, leftovers."""
    try:
        name = devices.gpu_name(nvml, handle)
    except nvml.NVMLError as error:
        yield _silent(label, error)
        return
    yield Check(label, "ok", f"{name} {uuid}")
    gpu = devices.NvmlGpu(nvml, handle, name, uuid, devices.HostClock())
    yield _energy(gpu, label)
    yield _power_limits(gpu, label)
    yield _clocks(gpu, label)
    # What a card does not support needs no advice.
    with suppress(nvml.NVMLError):
        if nvml.nvmlDeviceGetPersistenceMode(handle):
            yield Check(f"{label} persistence", "ok", "on")
        else:
            yield Check(
                f"{label} persistence",
                "note",
                "off: the driver may unload between runs, which resets the power limit",
                "sudo nvidia-smi -pm 1",
            )
    with suppress(nvml.NVMLError):
        if nvml.nvmlDeviceGetMigMode(handle)[0]:
            yield Check(
                f"{label} MIG",
                "broken",
                "on: power is not measured per instance",
                "use another GPU, or sudo nvidia-smi -mig 0",
            )
    yield from _other_processes(nvml, handle, label)
    yield from check_leftover(label, uuid)


def check_leftover(label: str, uuid: str) -> Iterator[Check]:
    """Check for settings of the card ``uuid`` that ``gpuenergy powercap restore`` would undo."""
    try:
        left, kept = control.leftover(uuid), control.kept_record(uuid)
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
        found = "the loaded driver and its libraries have different versions"
        advice = "restart the machine, or reload the driver's kernel modules"
        return Check("driver", "broken", found, advice)
    if code in _NO_DRIVER:
        found = "no NVIDIA driver: only the emulated GPU can be used"
        return Check("driver", "note", found, "on a machine with an NVIDIA GPU, install its driver")
    return Check("driver", "broken", str(error))


def _cuda_agrees(uuids: list[str]) -> Check:
    name = "CUDA driver library"
    try:
        cuda = devices.cuda_uuids()
    except DeviceError as error:
        return Check(name, "broken", str(error))
    if unknown := [uuid for uuid in cuda if uuid not in uuids]:
        advice = "check that nvidia-smi -L lists it; name whole GPUs in CUDA_VISIBLE_DEVICES"
        return Check(name, "broken", f"CUDA sees {unknown[0]}, but NVML does not", advice)
    if len(cuda) < len(uuids):
        visible = os.environ.get(devices.VISIBLE)
        # The order of devices does not matter here, so their names may be equal.
        remark = devices.visible_gpus(os.environ, [(uuid, "") for uuid in uuids]).remark
        why = remark or (f"{devices.VISIBLE}={visible}" if visible is not None else "")
        found = f"CUDA sees {len(cuda)} of the {len(uuids)} GPUs of NVML" + (why and f" ({why})")
        return Check(name, "note", found, "unset CUDA_VISIBLE_DEVICES to use the others")
    return Check(name, "ok", "sees the same GPUs as NVML, by UUID")


def _energy(gpu: devices.Gpu, label: str) -> Check:
    name, nvml = f"{label} energy", gpu.nvml
    try:
        nvml.nvmlDeviceGetTotalEnergyConsumption(gpu.handle)
        return Check(name, "ok", "it has an energy counter")
    except devices.unavailable_errors(nvml) as error:
        reason = str(error)
    except nvml.NVMLError as error:
        found = f"its energy counter cannot be read: {error}"
        return Check(name, "broken", found, "see nvidia-smi and dmesg")
    for power, read in (("instant", energy.instant_power_mw), ("average", energy.average_power_mw)):
        if read(gpu) is not None:
            found = (
                f"it has no energy counter ({reason}): energy is the integral of its {power} power"
            )
            advice = "allow longer measurements, whose intervals are narrower"
            return Check(name, "note", found, advice)
    found = (
        f"it has neither an energy counter nor a power reading ({reason}): nothing can be measured"
    )
    advice = "use another GPU, or only verify kernels with --gpuenergy-verify-only"
    return Check(name, "broken", found, advice)


def _power_limits(gpu: devices.Gpu, label: str) -> Check:
    name = f"{label} power limit"
    try:
        limits = control.read_limits(gpu)
    except DeviceError as error:
        return Check(name, "note", f"unknown: {error}", "use --powercap current")
    found = f"{limits.current_w:g} W, allowed are {limits.min_w:g} W to {limits.max_w:g} W"
    if limits.min_w == limits.max_w:
        return Check(name, "note", f"{found}: fixed", "use --powercap current")
    try:
        writer = control.choose_writer(gpu)
    except WritesDeniedError:
        found += "; GPUENERGY_CAP_WRITES forbids setting it"
        return Check(name, "note", found, "unset GPUENERGY_CAP_WRITES, or use --powercap current")
    except SetpointError as error:
        advice = _sudo_advice(lambda: control.limit_rule(gpu.uuid, limits))
        return Check(name, "note", f"{found}. {error}", advice)
    return Check(name, "ok", f"{found}; this user may set it through {writer.name}")


def _clocks(gpu: devices.Gpu, label: str) -> Check:
    name = f"{label} SM clocks"
    try:
        clocks = control.supported_clocks(gpu)
    except DeviceError as error:
        return Check(name, "note", f"unknown: {error}", "use --smclock current")
    found = f"{clocks[0]} MHz to {clocks[-1]} MHz in {len(clocks)} steps"
    try:
        writer = control.choose_writer(gpu)
        writer.check_clock_lock(clocks[-1])
    except WritesDeniedError:
        found += "; GPUENERGY_CAP_WRITES forbids locking them"
        return Check(name, "note", found, "unset GPUENERGY_CAP_WRITES, or use --smclock current")
    except SetpointError:
        advice = _sudo_advice(lambda: control.clock_rule(gpu.uuid, clocks))
        return Check(name, "note", f"{found}; this user may not lock them", advice)
    return Check(name, "ok", f"{found}; this user may lock them through {writer.name}")


def _sudo_advice(rule: Callable[[], str]) -> str:
    try:
        return f"sudo visudo, and add: {rule()}"
    except SetpointError as error:
        return f"there is no safe sudo rule: {error}"


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
