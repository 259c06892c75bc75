"""``gpuenergy kernels export``: kernels as CUDA sources with a program that measures them."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_gpuenergy.commands.command_line import Subparsers, add_command, print_json
from pytest_gpuenergy.commands.kernel_records import add_case, files_of, only_set
from pytest_gpuenergy.commands.product_kernels import add_product_options, product_kernels
from pytest_gpuenergy.support import InputError

if TYPE_CHECKING:
    from pytest_gpuenergy.kernels import RankedKernel

_ONLY_RECORDS = ("case", "network", "kernels", "tuner")
_OUT = Path("exported")
_ONLY_PRODUCTS = ("contender", "gpu_device")


def _add_export(actions: Subparsers) -> ArgumentParser:
    """Add ``export``."""
    parser = add_command(
        actions,
        "export",
        _export,
        summary="Write kernels as CUDA sources that build without this package",
        description="Each source comes with its launch plan, which load_kernel reads. A driver and "
        "a CMakeLists.txt build one program per kernel, which verifies it and then measures its "
        "time and energy. Kernels are those of record files or, with --gemm, those that a "
        "contender makes for matrix products.",
        example="""
gpuenergy kernels export --case case1 --kernels top1 --out exported
gpuenergy kernels export --gemm "MNK=1024; M=512 N=256 K=640 layout=nt" --out exported
cmake -S exported -B exported/build && cmake --build exported/build
ctest --test-dir exported/build --verbose
""",
    )
    add_case(parser)
    parser.add_argument(
        "--kernels",
        metavar="LIST",
        help="all, top1, top2, ..., or ranks such as 1,5,25 or k01 (default: all)",
    )
    parser.add_argument(
        "--gemm",
        metavar="SIZES",
        help="Matrix products, such as 'MNK=4096; M=512 N=256 K=640 layout=nt mode=3xtf32', "
        "instead of --case and --kernels",
    )
    add_product_options(parser)
    parser.add_argument(
        "--out",
        metavar="DIR",
        type=Path,
        default=_OUT,
        help="Folder to write to: a new one, or that of an earlier export, which is replaced "
        f"(default: {_OUT})",
    )
    return parser


def _export(arguments: Namespace) -> int:
    """Write the chosen kernels."""
    from pytest_gpuenergy.kernels import check_exportable, export_kernels

    for name in _ONLY_PRODUCTS if arguments.gemm is None else _ONLY_RECORDS:
        if getattr(arguments, name):
            option = f"--{name.replace('_', '-')}"
            raise InputError(
                f"{option} is only for matrix products: name them with --gemm."
                if arguments.gemm is None
                else f"{option} chooses among record files, and --gemm names matrix products "
                "instead: leave out one of them."
            )
    check_exportable(arguments.out)  # before minutes of lowering, not after
    architecture, made_for = None, ""
    if arguments.gemm is None:
        kernels = _recorded(arguments)
    else:
        from pytest_gpuenergy.opening import open_device

        with open_device(arguments.gpu_device or "auto") as device:
            kernels = product_kernels(
                arguments.gemm, arguments.contender, device, arguments.records
            )
            architecture = device.architecture
            made_for = f", made for {device.name} ({architecture})"
    written = export_kernels(kernels, arguments.out, architecture)
    if arguments.json:
        print_json([str(path) for path in written])
    else:
        print(f"wrote {len(kernels)} kernels to {arguments.out}{made_for}: {written[0]} lists them")
    return 0


def _recorded(arguments: Namespace) -> list[RankedKernel]:
    """The kernels of record files that the options choose."""
    from pytest_gpuenergy.kernels import RankedKernel
    from pytest_gpuenergy.tuners import kernels_of
    from pytest_gpuenergy.tuning import choose_ranks

    files = files_of(arguments)
    for file in files:
        name = file.workload.name  # exported folders are named after it
        same = [other for other in files if other.workload.name == name]
        if any(other.workload != file.workload for other in same):
            raise InputError(
                f"There are records for several workloads called {name}: remove the outdated file, "
                "or name another folder with --records."
            )
        only_set(same, name)
    chosen = [(file, choose_ranks(arguments.kernels or "all", file.ranks)) for file in files]
    return [
        RankedKernel(file.workload, rank, kernel)
        for file, ranks in chosen
        for rank, kernel in zip(ranks, kernels_of(file, ranks), strict=True)
    ]
