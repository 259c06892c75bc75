"""``gpuenergy doctor``: what works here, what does not, and what to do about it."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from argparse import Namespace
from collections.abc import Callable, Iterator
from dataclasses import asdict
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from pytest_gpuenergy.commands.command_line import Subparsers, add_command, print_json
from pytest_gpuenergy.commands.doctor_gpu import Check, check_gpus

_CHILD_TIMEOUT_S = 120.0
_PYTHONS = ((3, 11), (3, 14))
_PACKAGES = ("msgspec", "numpy", "nvidia-ml-py", "pytest")

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


def add_parser(subparsers: Subparsers) -> None:
    """Add ``doctor``."""
    parser = add_command(
        subparsers,
        "doctor",
        run,
        summary="Check drivers, permissions, compilers and packages",
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
    """Every check, in an order in which each depends on earlier ones only."""
    yield _check_python()
    yield from (_check_package(name) for name in _PACKAGES)
    yield from (_check_folder(name) for name in ("cache", "state"))
    yield _check_emulated()
    yield from check_gpus()
    yield check_cupy()
    yield check_tvm()
    yield _check_xgboost()
    yield _check_nvcc()


def check_cupy() -> Check:
    """CuPy with NVRTC: needed on a real GPU only."""
    if find_spec("cupy") is None:
        return Check(
            "CuPy",
            "note",
            "not installed: real GPUs cannot be used",
            'pip install "pytest-gpuenergy[cuda13]" (or cuda12, as nvidia-smi says)',
        )
    answer, error = _probe(_CUPY_PROBE)
    if answer is None:
        return Check(
            "CuPy",
            "broken",
            f"installed, but it does not work: {error}",
            "install one CuPy that fits the driver: cupy-cuda12x[ctk] or cupy-cuda13x[ctk]",
        )
    return Check("CuPy", "ok", f"{answer[0]} with NVRTC {answer[1]}")


def check_tvm() -> Check:
    """TVM together with tvm-ffi: needed to tune and to lower records."""
    if find_spec("tvm") is None:
        return Check(
            "TVM",
            "note",
            "not installed: records cannot be tuned or turned into kernels",
            'pip install "pytest-gpuenergy[tvm]"',
        )
    ffi = _version("apache-tvm-ffi") or "unknown"
    answer, error = _probe(_TVM_PROBE)
    if answer is None:
        return Check(
            "TVM",
            "broken",
            f"it does not work with apache-tvm-ffi {ffi}: {error}",
            'pip install "apache-tvm-ffi>=0.1.14.post0,<0.1.15"',
        )
    return Check("TVM", "ok", f"{answer[0]} with apache-tvm-ffi {ffi}")


def _check_python() -> Check:
    version = ".".join(map(str, sys.version_info[:3]))
    if _PYTHONS[0] <= sys.version_info[:2] < _PYTHONS[1]:
        return Check("Python", "ok", version)
    return Check("Python", "broken", version, "use Python 3.11, 3.12 or 3.13")


def _check_package(name: str) -> Check:
    version = _version(name)
    if version is None:
        return Check(name, "broken", "not installed", f"pip install {name}")
    return Check(name, "ok", version)


def _check_folder(kind: str) -> Check:
    from pytest_gpuenergy.support import InputError, paths

    make: Callable[[], Path] = {"cache": paths.cache_dir, "state": paths.state_dir}[kind]
    name = f"{kind} folder"
    try:
        folder = make()
        with tempfile.TemporaryFile(dir=folder):
            pass
    except InputError as error:
        return Check(name, "broken", str(error))
    except OSError as error:
        return Check(
            name,
            "broken",
            f"{folder} cannot be written: {error.strerror}",
            f"set GPUENERGY_{kind.upper()} to a folder that can be written",
        )
    return Check(name, "ok", str(folder))


def _check_emulated() -> Check:
    from pytest_gpuenergy.emulator import find_compiler
    from pytest_gpuenergy.support import GpuEnergyError

    try:
        compiler = find_compiler()
    except GpuEnergyError as error:
        return Check("emulated GPU", "broken", str(error), "install g++, or set CXX to a compiler")
    return Check("emulated GPU", "ok", f"runs kernels with {compiler}")


def _check_xgboost() -> Check:
    for name in ("xgboost-cpu", "xgboost"):
        if version := _version(name):
            return Check("xgboost", "ok", f"{name} {version}")
    return Check(
        "xgboost",
        "note",
        "not installed: tuning has no learned cost model",
        'pip install "pytest-gpuenergy[tvm]"',
    )


def _check_nvcc() -> Check:
    from pytest_gpuenergy.devices import find_nvcc, nvcc_version

    nvcc = find_nvcc()
    if nvcc is None:
        return Check("nvcc", "note", "not on the PATH: only exports and CUTLASS need it")
    version = nvcc_version(nvcc)
    if not version:
        return Check("nvcc", "note", f"{nvcc} does not work", "repair the CUDA toolkit")
    return Check("nvcc", "ok", f"{version} ({nvcc})")


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _probe(code: str) -> tuple[list[str] | None, str]:
    """Run ``code`` in a process of its own: the JSON that it prints, or None and the reason."""
    try:
        child = subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=_CHILD_TIMEOUT_S,
        )
    except subprocess.TimeoutExpired:
        return None, f"no answer within {_CHILD_TIMEOUT_S:g} s"
    if child.returncode < 0:
        return None, f"the process was ended by signal {-child.returncode}"
    if child.returncode:
        return None, (child.stderr.strip().splitlines() or ["no message"])[-1]
    answer: list[str] = json.loads(child.stdout.strip().splitlines()[-1])
    return answer, ""
