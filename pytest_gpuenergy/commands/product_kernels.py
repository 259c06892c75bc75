"""The kernels of a contender for matrix products, to be exported or profiled."""

from __future__ import annotations

from argparse import ArgumentParser
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_gpuenergy.commands.command_line import tell
from pytest_gpuenergy.commands.kernel_records import RECORDS
from pytest_gpuenergy.support import InputError, nearest

if TYPE_CHECKING:
    from pytest_gpuenergy.devices import Device
    from pytest_gpuenergy.kernels import RankedKernel

USUAL_CONTENDER = "template"


def add_product_options(parser: ArgumentParser) -> None:
    """Add ``--contender`` and ``--gpu-device``, without defaults."""
    parser.add_argument(
        "--contender",
        metavar="NAME",
        help=f"Whose kernels of matrix products (default: {USUAL_CONTENDER})",
    )
    parser.add_argument(
        "--gpu-device",
        metavar="DEVICE",
        help="GPU to make kernels of matrix products for: auto, an index, a UUID, or "
        "emulated[:PROFILE] (default: auto)",
    )


def check_contender(name: str) -> None:
    """Check the name of a contender whose kernels are to be part of a program.

    Raises:
        InputError: there is none of that name, or its kernels are no CUDA text.
    """
    from pytest_gpuenergy.tuners import CONTENDERS, WITHOUT_TEXT

    able = [one for one in CONTENDERS if one not in WITHOUT_TEXT]
    if name in WITHOUT_TEXT:
        raise InputError(
            f"The kernels of the contender {name} are no CUDA text that a program could contain: "
            f"choose from {', '.join(able)}."
        )
    if name not in CONTENDERS:
        raise InputError(f"There is no contender {name!r:.40}: choose from {', '.join(able)}.")


def product_kernels(
    sizes: str, contender: str | None, device: Device, records: Path | None
) -> list[RankedKernel]:
    """One kernel for each matrix product.

    Args:
        sizes: of the products, see `workloads.gemm_sizes`.
        contender: which makes the kernels; None stands for `USUAL_CONTENDER`.
        device: which the kernels are for.
        records: folder of record files; None stands for that of the project.

    Raises:
        InputError: the sizes are not understood, or `check_contender` refuses the contender.
        UnavailableError: the contender has no kernel for a product.
    """
    from pytest_gpuenergy.kernels import Kernel, RankedKernel
    from pytest_gpuenergy.tuners import CONTENDERS, Bench, KernelStore
    from pytest_gpuenergy.tuning import given_folder
    from pytest_gpuenergy.workloads import measured_products, search_options_notice

    products = measured_products(sizes)
    if said := search_options_notice(sizes):
        tell(said)
    name = contender or USUAL_CONTENDER
    check_contender(name)
    folder = given_folder(records) if records else nearest(Path.cwd(), RECORDS) or RECORDS
    found = []
    with KernelStore() as store:
        for product in products:
            kernel = CONTENDERS[name](product, Bench(device, folder, store, claimed=False))
            assert isinstance(kernel, Kernel)
            found.append(RankedKernel(product, 1, kernel))
    return found
