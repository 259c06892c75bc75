"""The contenders in matrix products: where each gets its kernel from."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_gpuenergy.engine import best_of
from pytest_gpuenergy.gemm import (
    GemmParameters,
    able_templates,
    configuration_named,
    cublas_call,
    cutlass_candidates,
    cutlass_program,
    find_headers,
    fits_card,
    profiled_kernel,
    rank_gemm_kernels,
    triton_candidates,
)
from pytest_gpuenergy.support import InputError, KernelFault, UnavailableError, is_file
from pytest_gpuenergy.tuners import records_of
from pytest_gpuenergy.tuning import TEMPLATE, TVM, TunerName, card_of, recorded_kernel
from pytest_gpuenergy.tvm import require_space

if TYPE_CHECKING:
    from pytest_gpuenergy.devices import Device
    from pytest_gpuenergy.kernels import AnyKernel
    from pytest_gpuenergy.tuning import RecordFile
    from pytest_gpuenergy.tvm import KernelStore
    from pytest_gpuenergy.workloads import Gemm, Mode


CUTLASS_PROFILER = "cutlass_profiler"
_TILES_TRIED = 8
"""Of a template without records."""
_ALIKE: Mapping[Mode, Mode] = {"float16": "bfloat16", "bfloat16": "float16"}
"""Modes that templates compute with the same parameters and equally fast instructions."""


@dataclass(frozen=True)
class Bench:
    """What a contender makes its kernel with.

    Attributes:
        gpu: on which the kernel will run.
        records: folder of record files, which need not exist.
        store: makes the kernels of TVM's records.
        claimed: whether the GPU is, so that candidates can be timed there.
        cutlass: a checkout of CUTLASS or its headers; None: an installed package.
        cutlass_profiler: the program of a build of CUTLASS, if there is one.
    """

    gpu: Device
    records: Path
    store: KernelStore
    claimed: bool = True
    cutlass: Path | None = None
    cutlass_profiler: Path | None = None


def check_cutlass(headers: Path | None, profiler: Path | None) -> None:
    """Check what is given for the contenders of CUTLASS, before anything is measured.

    Args:
        headers: of ``--cutlass``; None if that is not given.
        profiler: of ``--cutlass-profiler``.

    Raises:
        InputError: there are no headers, or they are too old; or that is no program.
    """
    if headers is not None:
        find_headers(headers)
    if profiler is not None and not (is_file(profiler) and os.access(profiler, os.X_OK)):
        raise InputError(
            f"--cutlass-profiler {profiler} is no program that can be run: give the path of a "
            "cutlass_profiler that you have built."
        )


def contender_records(folder: Path, gemm: Gemm, gpu: str, tuner: TunerName) -> RecordFile:
    """The records that a contender has for a product.

    Those of a template also serve the mode that computes alike, if it has none.

    Args:
        folder: see `records_of`, as for the exceptions.
        gemm: the product.
        gpu: model of the GPU that will compute it.
        tuner: which wrote the records.
    """
    try:
        return records_of(folder, gemm, gpu, tuner)
    except UnavailableError:
        alike = _ALIKE.get(gemm.mode) if tuner == TEMPLATE else None
        if alike is not None:
            with suppress(UnavailableError):
                file = records_of(folder, replace(gemm, mode=alike), gpu, tuner)
                return replace(file, workload=gemm)
        raise


def best_record(
    folder: Path, gemm: Gemm, gpu: Device, tuner: TunerName
) -> tuple[RecordFile, int | None]:
    """The records that a contender has for a product, and the best rank that the GPU can run.

    That is None if it has not the resources for any, as may be with a template's for another GPU.

    Args:
        folder: see `contender_records`.
        gemm: the product.
        gpu: that will compute it.
        tuner: which wrote the records.

    Raises:
        UnavailableError: there are none, or the templates do not run on the GPU at all.
        InputError: the file cannot be used or is for another shape.
    """
    if tuner != TEMPLATE:
        file = contender_records(folder, gemm, gpu.name, tuner)
        return file, file.ranks[0]
    card = card_of(gpu)
    able_templates(gemm, card)
    file = contender_records(folder, gemm, gpu.name, tuner)
    return file, next((rank for rank in file.ranks if fits_card(file, rank, card)), None)


def template_kernel(gemm: Gemm, bench: Bench) -> AnyKernel:
    """Our templates: the best of their records, or else of the tiles that the estimate puts first.

    An emulated GPU, whose times are estimates too, takes the very first, as does one that nobody
    has claimed.
    """
    card = card_of(bench.gpu)
    with suppress(UnavailableError):
        file, rank = best_record(bench.records, gemm, bench.gpu, TEMPLATE)
        if rank is not None:
            return recorded_kernel(file, rank)
    offered = rank_gemm_kernels(gemm, card)
    if bench.gpu.emulated or not bench.claimed:
        return offered[0].kernel(gemm)
    tiles: dict[tuple[object, ...], GemmParameters] = {}
    for one in offered:
        tiles.setdefault((one.template, one.tile_m, one.tile_n), one)
    tried = itertools.islice(tiles.values(), _TILES_TRIED)
    return best_of([one.kernel(gemm) for one in tried], gemm, bench.gpu)


def tvm_kernel(gemm: Gemm, bench: Bench) -> AnyKernel:
    """The best kernel of a search with TVM."""
    require_space(gemm, "all", bench.gpu.architecture)
    file = records_of(bench.records, gemm, bench.gpu.name, TVM)
    return bench.store.kernel(file, file.ranks[0])


def triton_kernel(gemm: Gemm, bench: Bench) -> AnyKernel:
    """The best of a persistent Triton kernel's configurations."""
    return best_of(triton_candidates(gemm, card_of(bench.gpu)), gemm, bench.gpu)


def cublas_kernel(gemm: Gemm, bench: Bench) -> AnyKernel:
    """The best of all algorithms that cuBLASLt's heuristics offer."""
    call = cublas_call(gemm)
    if reason := bench.gpu.refusal(call):
        raise UnavailableError(reason)
    try:
        candidates = bench.gpu.offered(call, gemm.io)
    except KernelFault as fault:
        if fault.outcome != "constraints":
            raise
        raise UnavailableError(str(fault)) from None
    return best_of(candidates, gemm, bench.gpu)


def cutlass_kernel(gemm: Gemm, bench: Bench) -> AnyKernel:
    """The best of a list of CUTLASS's configurations."""
    headers = find_headers(bench.cutlass)
    return best_of(cutlass_candidates(gemm, card_of(bench.gpu), headers), gemm, bench.gpu)


def profiled_cutlass_kernel(gemm: Gemm, bench: Bench) -> AnyKernel:
    """The configuration that the user's CUTLASS profiler finds best, compiled and measured here."""
    gpu, profiler = bench.gpu, bench.cutlass_profiler
    if profiler is None or gpu.emulated:
        raise UnavailableError("The CUTLASS profiler needs a real GPU, and --cutlass-profiler.")
    name = profiled_kernel(profiler, gemm, gpu.uuid)
    capability, headers = card_of(gpu).capability, find_headers(bench.cutlass)
    kernel = cutlass_program(gemm, configuration_named(name, gemm), capability, headers)
    if reason := gpu.refusal(kernel):
        raise UnavailableError(reason)
    return kernel


CONTENDERS: Mapping[str, Callable[[Gemm, Bench], AnyKernel]] = {
    "template": template_kernel,
    "tvm": tvm_kernel,
    "triton": triton_kernel,
    "cublas": cublas_kernel,
    "cutlass": cutlass_kernel,
    CUTLASS_PROFILER: profiled_cutlass_kernel,
}
"""By their names in items. That of the profiler takes part only if its program is given.

They raise `UnavailableError` if they have no kernel here; any other error is a failure.
"""

WITHOUT_TEXT = frozenset({"triton", "cublas", "cutlass", CUTLASS_PROFILER})
"""Those whose kernels are no CUDA text, which a program without this package could contain."""

TUNED_BY: Mapping[str, TunerName] = {"template": TEMPLATE, "tvm": TVM}
"""Whose records a contender uses, if any."""
