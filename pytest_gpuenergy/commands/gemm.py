"""``gpuenergy gemm``: matrix products by their sizes."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pytest_gpuenergy.commands import Subparsers, add_command, tell
from pytest_gpuenergy.commands.tune import tune
from pytest_gpuenergy.commands.tune_options import (
    Wanted,
    add_device_options,
    add_search_options,
    distinct,
)
from pytest_gpuenergy.support.errors import InputError

if TYPE_CHECKING:
    from pytest_gpuenergy.workloads.gemm_sizes import GemmRequest

_SIZES = "M=1024 N=2048 K=3072"


def add_parser(subparsers: Subparsers) -> None:
    """Add ``gemm`` and its subcommands."""
    parser = add_command(
        subparsers,
        "gemm",
        None,
        summary="Tune matrix products by their sizes",
        example='gpuenergy gemm tune "MNK=1024 t=64; M=512 N=256 K=640" --out tuned',
    )
    chosen = parser.add_subparsers(dest="gemm_command", required=True, metavar="COMMAND")
    tuning = add_command(
        chosen,
        "tune",
        _tune,
        summary="Search for fast or energy-efficient kernels of matrix products",
        description="The same as gpuenergy tune, of products that are named by their sizes; each "
        "in both layouts unless layout= chooses one.",
        example="""
gpuenergy gemm tune "MNK=1024" --trials 64 --out tuned
gpuenergy gemm tune "M=512 N=256 K=640 layout=nt t=64; MN=1024 K=2048 O=1" --out tuned
""",
    )
    tuning.add_argument(
        "sizes",
        nargs="+",
        metavar="SIZES",
        help=f"Such as '{_SIZES}', 'MN=1024 K=2048' or 'MNK=4096', several separated by ';'; "
        "layout=nn|nt, mode=float32|tf32|float16|bfloat16, lda=, ldb= and distribution= as "
        "needed; t= is the same as --trials, O=0 as --tuner template, O=1 as --tuner tvm",
    )
    add_search_options(tuning)
    add_device_options(tuning)
    tuning.set_defaults(quick=False)


def _tune(arguments: Namespace) -> int:
    from pytest_gpuenergy.workloads.gemm_sizes import parse_requests

    requests = parse_requests(" ".join(arguments.sizes))
    if any(request.in_background for request in requests):
        tell("O=65536 is ignored: to tune in the background, let the shell do so (nohup ... &).")
    return tune(arguments, distinct(_wanted(arguments, requests)))


def _wanted(arguments: Namespace, requests: Sequence[GemmRequest]) -> Iterator[Wanted]:
    for request in requests:
        options = (
            ("t", request.trials, "trials", arguments.trials),
            ("O", request.tuner, "tuner", arguments.tuner),
        )
        for letter, here, option, there in options:
            if None not in (here, there) and here != there:
                raise InputError(
                    f"{letter} of {request.workload.name} asks for {here}, but --{option} for "
                    f"{there}: give one of them."
                )
        for workload in request.layouts:
            yield Wanted(workload, request.tuner, request.trials)
