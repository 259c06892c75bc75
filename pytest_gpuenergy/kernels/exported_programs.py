"""Builds the programs of exported kernels, and profiles each with Nsight Compute."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from pytest_gpuenergy.kernels.kernel_export import RankedKernel, export_kernels
from pytest_gpuenergy.support import (
    AS_MEASURED,
    FORBIDDEN,
    INSTALL,
    DeviceError,
    InputError,
    KernelFault,
    forbidden,
    is_file,
    run_child,
)

_TOOLS = {
    "nvcc": "install the CUDA toolkit, and put its folder bin on the PATH",
    "cmake": "install CMake 3.24 or later, such as with pip install cmake",
    "ncu": INSTALL,
}
_LAUNCHES = 100
"""The launches of each kernel; the last is profiled, with clocks and caches as in a measurement."""


def profiling_tools() -> dict[str, str]:
    """Return the paths of the tools that `profile_kernels` needs, by their names.

    Raises:
        InputError: a tool is missing.
    """
    paths = {}
    for name, advice in _TOOLS.items():
        path = shutil.which(name)
        if path is None:
            raise InputError(f"Profiling needs {name}, which is not on the PATH: {advice}.")
        paths[name] = path
    return paths


def profile_kernels(
    kernels: Sequence[RankedKernel],
    tools: Mapping[str, str],
    out: Path,
    architecture: str,
    gpu: tuple[str, str],
) -> Iterator[Path]:
    """Export kernels, build their programs, and yield the path of the profile of each.

    Args:
        kernels: kernels of different workloads.
        tools: the paths of the tools, from `profiling_tools`.
        out: the absolute path of the folder for programs, logs and profiles.
        architecture: the architecture of the GPU, such as ``sm_90``.
        gpu: the UUID and the name of the GPU.

    Raises:
        InputError: a kernel cannot be exported.
        KernelFault: the programs do not compile, or a kernel's result is wrong.
        DeviceError: the profiler may not read the performance counters, or fails.
    """
    source, build = out / "programs", out / "programs" / "build"
    export_kernels(kernels, source, architecture)
    configure = ["-S", str(source), "-B", str(build), f"-DCMAKE_CUDA_COMPILER={tools['nvcc']}"]
    output, log = "", out / "build.log"
    for step in (configure, ["--build", str(build), "--parallel"]):
        done = run_child([tools["cmake"], *step], out)
        output += done.stdout
        log.write_text(output, encoding="utf-8")
        if done.returncode:
            raise KernelFault("compile", f"The programs could not be built: {log} says why.")
    uuid, gpu_name = gpu
    for item in kernels:
        name, launches = item.workload.name, len(item.kernel.launches)
        options = {
            **AS_MEASURED,
            "--set": "full",
            "-o": out / name,
            "--launch-skip": (_LAUNCHES - 1) * launches,
            "--launch-count": launches,
        }
        words = [str(word) for option in options.items() for word in option]
        program = [str(build / f"{name}_{item.stem}"), "--launches", str(_LAUNCHES)]
        environment = {**os.environ, "CUDA_VISIBLE_DEVICES": uuid}  # it runs on CUDA's first GPU
        done = run_child([tools["ncu"], *words, *program], out, environment=environment)
        log, profile = out / f"{name}.log", out / f"{name}.ncu-rep"
        log.write_text(done.stdout, encoding="utf-8")
        if FORBIDDEN in done.stdout:
            raise DeviceError(forbidden(gpu_name))
        if ": WRONG" in done.stdout:
            raise KernelFault(
                "correctness", f"The kernel of {name} is wrong: {log} says by how much."
            )
        if done.returncode or not is_file(profile):
            raise DeviceError(f"ncu made no profile of {name}: {log} says why.")
        yield profile
