"""``gpuenergy gemm profile``: the kernels of matrix products under Nsight Compute."""

from __future__ import annotations

import os
import shutil
from argparse import Namespace
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_gpuenergy.commands.command_line import Subparsers, add_command, tell
from pytest_gpuenergy.commands.product_kernels import (
    add_product_options,
    check_contender,
    product_kernels,
)
from pytest_gpuenergy.support import (
    AS_MEASURED,
    FORBIDDEN,
    INSTALL,
    DeviceError,
    InputError,
    KernelFault,
    forbidden,
    is_file,
    is_there,
)

if TYPE_CHECKING:
    from pytest_gpuenergy.kernels import RankedKernel

_TOOLS = {
    "nvcc": "install the CUDA toolkit, and put its folder bin on the PATH",
    "cmake": "install CMake 3.24 or later, such as with pip install cmake",
    "ncu": INSTALL,
}
_LAUNCHES = 100
"""Of each kernel; the last is profiled, when clocks and caches are as in a measurement."""
_PROGRAMS = "programs"


def _add_profile(subparsers: Subparsers, grammar: str) -> None:
    """Add ``profile``, whose sizes have the form that ``grammar`` describes."""
    parser = add_command(
        subparsers,
        "profile",
        _profile,
        summary="Profile the kernels of matrix products with Nsight Compute",
        description="Writes the programs of gpuenergy kernels export --gemm, builds them with "
        "CMake and nvcc, and runs each under ncu with all of its sections. Clocks are not locked "
        "and caches not cleared.",
        example="""
gpuenergy gemm profile "MNK=4096 mode=3xtf32 layout=nn" --out profiles
ncu --import profiles/gemm_4096x4096x4096_nn_3xtf32.ncu-rep --page details
""",
    )
    parser.add_argument("sizes", nargs="+", metavar="SIZES", help=grammar)
    add_product_options(parser)
    parser.add_argument(
        "--records",
        type=Path,
        metavar="DIR",
        help="Folder of record files (default: bench/records here or in a parent folder)",
    )
    parser.add_argument(
        "--out", metavar="DIR", type=Path, required=True, help="New or empty folder to write to"
    )


def _profile(arguments: Namespace) -> int:
    """Write, build and profile a program for each product."""
    from pytest_gpuenergy.engine import Station
    from pytest_gpuenergy.kernels import export_kernels
    from pytest_gpuenergy.opening import open_device
    from pytest_gpuenergy.support import interrupt_once
    from pytest_gpuenergy.workloads import measured_products

    sizes, out = " ".join(arguments.sizes), arguments.out.absolute()
    measured_products(sizes)
    if arguments.contender is not None:
        check_contender(arguments.contender)
    _require_empty(out)
    with ExitStack() as stack:
        stack.enter_context(interrupt_once())
        device = stack.enter_context(open_device(arguments.gpu_device or "auto"))
        if device.emulated:
            raise InputError(
                f"Profiling takes a real GPU, and {device.name} is emulated here: run this where "
                "there is an NVIDIA GPU, or choose one with --gpu-device."
            )
        tools = _tools()
        station = stack.enter_context(Station(device))
        for sentence in station.restored:
            tell(sentence)
        kernels = product_kernels(sizes, arguments.contender, device, arguments.records)
        export_kernels(kernels, out / _PROGRAMS, device.architecture)
        _build(tools, out)
        for item in kernels:
            print(_profile_program(tools["ncu"], item, out, device.uuid, device.name))
    return 0


def _require_empty(folder: Path) -> None:
    try:
        if is_there(folder) and any(folder.iterdir()):
            raise InputError(
                f"The folder {folder} is not empty: name a new one, so that profiles of different "
                "kernels never mix."
            )
    except OSError as error:
        raise InputError(f"{folder} cannot be written: {error.strerror}.") from None


def _tools() -> dict[str, str]:
    """The paths of the tools that profiling takes.

    Raises:
        InputError: one is missing.
    """
    found = {name: shutil.which(name) for name in _TOOLS}
    for name, path in found.items():
        if path is None:
            raise InputError(f"Profiling needs {name}, which is not on the PATH: {_TOOLS[name]}.")
    return {name: path for name, path in found.items() if path is not None}


def _build(tools: Mapping[str, str], out: Path) -> None:
    """Build all programs.

    Raises:
        KernelFault: they do not compile.
    """
    from pytest_gpuenergy.support import run_child

    source, build, log = out / _PROGRAMS, out / _PROGRAMS / "build", out / "build.log"
    configure = ["-S", str(source), "-B", str(build), f"-DCMAKE_CUDA_COMPILER={tools['nvcc']}"]
    said = ""
    for step in (configure, ["--build", str(build), "--parallel"]):
        done = run_child([tools["cmake"], *step], out)
        said += done.stdout
        log.write_text(said, encoding="utf-8")
        if done.returncode:
            raise KernelFault("compile", f"The programs could not be built: {log} says why.")


def _profile_program(ncu: str, item: RankedKernel, out: Path, uuid: str, gpu: str) -> Path:
    """Profile the last launch of a program; returns the path of the profile.

    Raises:
        KernelFault: the kernel computes something wrong.
        DeviceError: the profiler may not read the performance counters, or fails.
    """
    from pytest_gpuenergy.support import run_child

    name, each = item.workload.name, len(item.kernel.launches)
    program = out / _PROGRAMS / "build" / f"{name}_{item.stem}"
    options = {
        **AS_MEASURED,
        "--set": "full",
        "-o": out / name,
        "--launch-skip": (_LAUNCHES - 1) * each,
        "--launch-count": each,
    }
    words = [str(word) for option in options.items() for word in option]
    command = [ncu, *words, str(program), "--launches", str(_LAUNCHES)]
    # The program runs on CUDA's first GPU.
    done = run_child(command, out, environment={**os.environ, "CUDA_VISIBLE_DEVICES": uuid})
    log, profile = out / f"{name}.log", out / f"{name}.ncu-rep"
    log.write_text(done.stdout, encoding="utf-8")
    if FORBIDDEN in done.stdout:
        raise DeviceError(forbidden(gpu))
    if ": WRONG" in done.stdout:
        raise KernelFault("correctness", f"The kernel of {name} is wrong: {log} says by how much.")
    if done.returncode or not is_file(profile):
        raise DeviceError(f"ncu made no profile of {name}: {log} says why.")
    return profile
