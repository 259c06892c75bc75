"""The contenders in products and convolutions: where each gets its kernel from."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_gpuenergy.engine import best_of
from pytest_gpuenergy.kernels import (
    LIBRARY_ENTRIES,
    TRITON_MODULES,
    Kernel,
    LibraryCall,
    Origin,
    RankedKernel,
)
from pytest_gpuenergy.support import FormError, InputError, KernelFault, UnavailableError, is_file
from pytest_gpuenergy.tuners.gemm.cutlass_configurations import configuration_named
from pytest_gpuenergy.tuners.gemm.cutlass_kernels import (
    cutlass_candidates,
    cutlass_program,
    find_headers,
)
from pytest_gpuenergy.tuners.gemm.cutlass_profiler import profiled_kernel
from pytest_gpuenergy.tuners.gemm.library_kernels import (
    cublas_call,
    deepgemm_call,
    grouped_call,
    triton_candidates,
)
from pytest_gpuenergy.tuners.registry import records_of
from pytest_gpuenergy.tuners.template_spaces import (
    TEMPLATE_FORM,
    able_templates,
    best_parameters,
    rank_kernels,
)
from pytest_gpuenergy.tuners.tvm.kernel_store import KernelStore
from pytest_gpuenergy.tuners.tvm.tvm_space import require_space
from pytest_gpuenergy.tuning import (
    TEMPLATE,
    TVM,
    CardResources,
    TunerName,
    card_resources,
    recorded_kernel,
)
from pytest_gpuenergy.workloads import Conv2d, Gemm, Tensor

if TYPE_CHECKING:
    from pytest_gpuenergy.devices import Device
    from pytest_gpuenergy.kernels import AnyKernel
    from pytest_gpuenergy.tuning import RecordFile, TemplateParameters
    from pytest_gpuenergy.workloads import Layout, Mode


CUTLASS_PROFILER = "cutlass_profiler"
_DEEPGEMM = "deepgemm"
_CUDNN_WORKSPACE_BYTES = 1 << 30
"""The largest workspace that an algorithm of cuDNN may have; those for the bundled networks take up
to 186 MiB on an H100 (cuDNN 9.19). PyTorch sets no limit."""
_TILES_TRIED = 8
"""The number of tiles that are tried of a template for convolutions without records."""
_EQUALLY_FAST: Mapping[Mode, Mode] = {
    "float16": "bfloat16",
    "bfloat16": "float16",
    "e4m3": "e5m2",
    "e5m2": "e4m3",
}
"""For some modes, another one that templates compute with the same parameters, and the GPU with
equally fast instructions."""
_OTHER_B: Mapping[Layout, Layout] = {"nn": "tn", "nt": "tt", "tn": "nn", "tt": "nt"}
"""The layouts in which B is stored the other way."""


@dataclass(frozen=True)
class ContenderSetup:
    """The means with which a contender makes its kernel.

    Attributes:
        gpu: the GPU on which the kernel will run.
        records: the folder of record files, which need not exist.
        store: makes the kernels of TVM's records.
        claimed: whether the GPU is claimed, so that candidates can be timed there.
        cutlass: a checkout of CUTLASS or its headers; None stands for an installed package.
        cutlass_profiler: the profiler of a build of CUTLASS, if there is one.
    """

    gpu: Device
    records: Path
    store: KernelStore
    claimed: bool = True
    cutlass: Path | None = None
    cutlass_profiler: Path | None = None


def check_cutlass(headers: Path | None, profiler: Path | None) -> None:
    """Check the options for the contenders of CUTLASS, before anything is measured.

    Args:
        headers: the value of ``--cutlass``; None if it is not given.
        profiler: the value of ``--cutlass-profiler``; None if it is not given.

    Raises:
        InputError: there are no headers, or they are too old; or the profiler is no program.
    """
    if headers is not None:
        find_headers(headers)
    if profiler is not None and not (is_file(profiler) and os.access(profiler, os.X_OK)):
        raise InputError(
            f"--cutlass-profiler {profiler} is no program that can be run: give the path of a "
            "cutlass_profiler that you have built."
        )


def contender_records(
    folder: Path, workload: Gemm | Conv2d, gpu: str, tuner: TunerName
) -> RecordFile:
    """Return the records that a contender has for a workload.

    A workload without records of its own may be served by a template's records for another one
    that needs the same parameters: in the other half precision, with B stored the other way if
    rows follow one another, or the same product without its end (bias, activation, residual).

    Args:
        folder: see `records_of`, also for the exceptions.
        workload: the product or convolution.
        gpu: the model of the GPU that will compute it.
        tuner: the tuner that wrote the records.
    """
    try:
        return records_of(folder, workload, gpu, tuner)
    except UnavailableError:
        for alike in _computed_alike(workload) if tuner == TEMPLATE else ():
            with suppress(UnavailableError):
                return replace(records_of(folder, alike, gpu, tuner), workload=workload)
        raise


def _computed_alike(workload: Gemm | Conv2d) -> Iterator[Gemm | Conv2d]:
    """Yield the workloads whose records also serve this one, the most similar first."""
    if isinstance(workload, Gemm) and workload.has_end:
        yield workload.without_end
        yield from _computed_alike(workload.without_end)
        return
    modes = [workload.mode]
    if workload.mode in _EQUALLY_FAST:
        modes.append(_EQUALLY_FAST[workload.mode])
    for mode in modes[1:]:
        yield replace(workload, mode=mode)
    if isinstance(workload, Gemm) and {"lda", "ldb", "ldc"}.isdisjoint(workload.parameters):
        for mode in modes:
            yield replace(workload, mode=mode, layout=_OTHER_B[workload.layout], ldb=0)


def best_record(
    folder: Path, workload: Gemm | Conv2d, gpu: Device, tuner: TunerName
) -> tuple[RecordFile, int | None]:
    """Return a contender's records for a workload, and the best rank that the GPU can run.

    The rank is None if the GPU lacks the resources for all of them, for example if the kernels were
    tuned on another model.

    Args:
        folder: see `contender_records`.
        workload: the product or convolution.
        gpu: the GPU that will compute it.
        tuner: the tuner that wrote the records.

    Raises:
        UnavailableError: there are no records, or the templates do not compute the workload or do
            not run on the GPU at all.
        InputError: the file cannot be used or is for another shape.
    """
    if tuner != TEMPLATE:
        file = contender_records(folder, workload, gpu.name, tuner)
        return file, file.ranks[0]
    card = card_resources(gpu)
    _check_able(workload, card)
    file = contender_records(folder, workload, gpu.name, tuner)
    for rank in file.ranks:
        try:
            parameters = TEMPLATE_FORM.parameters(file.record(rank).recipe)
        except FormError as error:
            raise InputError(f"Kernel {rank} of {file.workload.name}: {error}.") from None
        if parameters.runs_on(card) and parameters.resident(workload, card) > 0:
            return file, rank
    return file, None


def _check_able(workload: Gemm | Conv2d, card: CardResources) -> None:
    try:
        able_templates(workload, card)
    except InputError as error:  # no template computes it, such as a mode of convolutions
        raise UnavailableError(str(error)) from None


def template_kernel(workload: Gemm | Conv2d, setup: ContenderSetup) -> AnyKernel:
    """Return our templates' kernel: the best record, or else the most promising parameters.

    The estimate for products was fitted to many trials (``docs/notes/choosing.md``), so that one
    kernel is compiled. Of convolutions, a few tiles are timed if the GPU is claimed and real.
    """
    card = card_resources(setup.gpu)
    _check_able(workload, card)
    with suppress(UnavailableError):
        file, rank = best_record(setup.records, workload, setup.gpu, TEMPLATE)
        if rank is not None:
            return recorded_kernel(TEMPLATE_FORM, file, rank)
    try:
        if isinstance(workload, Gemm):
            return best_parameters(workload, card).kernel(workload)
        offered = rank_kernels(workload, card)
    except InputError as error:  # none fits
        raise UnavailableError(str(error)) from None
    if setup.gpu.emulated or not setup.claimed:
        return offered[0].kernel(workload)
    best: dict[tuple[object, ...], TemplateParameters[Any]] = {}
    for parameters in offered:
        tile = (parameters.template, parameters.choices(workload)["tile"])
        best.setdefault(tile, parameters)
        if len(best) == _TILES_TRIED:
            break
    kernels = [parameters.kernel(workload) for parameters in best.values()]
    return best_of(kernels, workload, setup.gpu)


def tvm_kernel(workload: Gemm | Conv2d, setup: ContenderSetup) -> AnyKernel:
    """Return the best kernel of a search with TVM."""
    require_space(workload, "all", setup.gpu.architecture)
    file = records_of(setup.records, workload, setup.gpu.name, TVM)
    return setup.store.kernel(file, file.ranks[0])


def triton_kernel(gemm: Gemm, setup: ContenderSetup) -> AnyKernel:
    """Return the best of a persistent Triton kernel's configurations."""
    return best_of(triton_candidates(gemm, card_resources(setup.gpu)), gemm, setup.gpu)


def cublas_kernel(gemm: Gemm, setup: ContenderSetup) -> AnyKernel:
    """Return the best of what cuBLASLt's heuristics offer, and of cuBLAS's call for groups."""
    candidates, grouped = _offered(cublas_call(gemm), gemm, setup), grouped_call(gemm)
    return best_of([*candidates, *([grouped] if grouped else [])], gemm, setup.gpu)


def deepgemm_kernel(gemm: Gemm, setup: ContenderSetup) -> AnyKernel:
    """Return the call of the installed DeepGEMM, which chooses its kernel itself."""
    (call,) = _offered(deepgemm_call(gemm, setup.gpu.architecture), gemm, setup)
    return call


def cudnn_call(conv: Conv2d) -> LibraryCall:
    """Return the call of cuDNN for a convolution, with any algorithm and workspace up to 1 GiB.

    Raises:
        UnavailableError: cuDNN does not have the convolution's mode.
    """
    if conv.mode == "3xtf32":
        raise UnavailableError(
            f"cuDNN does not compute {conv.name} in mode 3xtf32, since its convolutions on tensor "
            "cores round float32 numbers to TF32: its rival, which is as exact, is cuDNN in mode "
            f"float32 ({conv.varied(mode='float32').name})."
        )
    tensors = {tensor.name: tensor.name for tensor in conv.tensors} | {"workspace": "workspace"}
    return LibraryCall(
        "cudnn.convolution",
        tensors,
        {
            "layout": conv.layout,
            "stride": conv.shape.strides,
            "padding": conv.shape.padding,
            "dilation": conv.shape.dilation,
            "relu": conv.relu,
            "tf32": conv.mode == "tf32",
        },
        workspaces=(Tensor("workspace", (_CUDNN_WORKSPACE_BYTES,), "uint8", "workspace"),),
        origin=Origin("cudnn"),
    )


def cudnn_kernel(conv: Conv2d, setup: ContenderSetup) -> AnyKernel:
    """Return the best of all algorithms that cuDNN's heuristics offer."""
    return best_of(_offered(cudnn_call(conv), conv, setup), conv, setup.gpu)


def _offered(
    call: LibraryCall, workload: Gemm | Conv2d, setup: ContenderSetup
) -> tuple[LibraryCall, ...]:
    if reason := setup.gpu.refusal(call):
        raise UnavailableError(reason)
    try:
        return setup.gpu.offered(call, workload.io)
    except KernelFault as fault:
        if fault.outcome != "constraints":
            raise
        raise UnavailableError(str(fault)) from None


def cutlass_kernel(gemm: Gemm, setup: ContenderSetup) -> AnyKernel:
    """Return the best of a list of CUTLASS's configurations."""
    _check_plain(gemm)
    headers = find_headers(setup.cutlass)
    return best_of(cutlass_candidates(gemm, card_resources(setup.gpu), headers), gemm, setup.gpu)


def _check_plain(gemm: Gemm) -> None:
    """Raise `UnavailableError` for a product that none of CUTLASS's configurations computes."""
    if gemm.is_float8:
        raise UnavailableError(
            f"CUTLASS does not compute {gemm.name}, since the configurations tried of it have no "
            "elements of 8 bits."
        )
    if gemm.is_batch or gemm.groups:
        raise UnavailableError(
            f"CUTLASS does not compute {gemm.name}, since the configurations tried of it have "
            "neither batches nor groups."
        )
    if gemm.has_end:
        raise UnavailableError(
            f"CUTLASS does not compute {gemm.name}, since the configurations tried of it have no "
            "bias, activation or residual."
        )


def profiled_cutlass_kernel(gemm: Gemm, setup: ContenderSetup) -> AnyKernel:
    """Return the kernel that the user's CUTLASS profiler finds best, compiled here."""
    gpu, profiler = setup.gpu, setup.cutlass_profiler
    if profiler is None or gpu.emulated:
        raise UnavailableError("The CUTLASS profiler needs a real GPU, and --cutlass-profiler.")
    _check_plain(gemm)
    name = profiled_kernel(profiler, gemm, gpu.uuid)
    capability, headers = card_resources(gpu).capability, find_headers(setup.cutlass)
    kernel = cutlass_program(gemm, configuration_named(name, gemm), capability, headers)
    if reason := gpu.refusal(kernel):
        raise UnavailableError(reason)
    return kernel


CONTENDERS: Mapping[str, Callable[[Any, ContenderSetup], AnyKernel]] = {
    "template": template_kernel,
    "tvm": tvm_kernel,
    "triton": triton_kernel,
    "cublas": cublas_kernel,
    "cutlass": cutlass_kernel,
    CUTLASS_PROFILER: profiled_cutlass_kernel,
    _DEEPGEMM: deepgemm_kernel,
    "cudnn": cudnn_kernel,
}
"""The contenders by their names in items. The profiler's takes part only if its program is given;
see also `takes_part`.

Each takes a workload of a kind for which `CONTENDERS_IN` lists it. It raises `UnavailableError` if
it has no kernel here; any other error is a failure.
"""

CONTENDER_MODULES: Mapping[str, tuple[str, ...]] = {
    "triton": TRITON_MODULES,
    "cublas": LIBRARY_ENTRIES["cublasLt.matmul"].modules,
    _DEEPGEMM: LIBRARY_ENTRIES["deep_gemm.fp8_gemm_nt"].modules,
    "cudnn": LIBRARY_ENTRIES["cudnn.convolution"].modules,
}
"""The Python modules that a contender's kernels need on a real GPU; the others' need none."""

CONTENDERS_IN: Mapping[str, tuple[str, ...]] = {
    Gemm.kind: ("template", "tvm", "triton", "cublas", "cutlass", CUTLASS_PROFILER, _DEEPGEMM),
    Conv2d.kind: ("template", "tvm", "cudnn"),
}
"""The names of the contenders in each kind of workload."""


def takes_part(name: str, workload: Gemm | Conv2d) -> bool:
    """Return whether a contender takes part in a workload without being named.

    DeepGEMM does in the one kind of products that it has, since others would each have an item more
    that is skipped.
    """
    if name != _DEEPGEMM:
        return True
    return isinstance(workload, Gemm) and (workload.mode, workload.scaling) == ("e4m3", "block")


def check_contenders(names: Sequence[str], kind: str) -> None:
    """Check that all names are of contenders in a kind of workload.

    Raises:
        InputError: one is not.
    """
    known = CONTENDERS_IN[kind]
    if unknown := [name for name in names if name not in known]:
        raise InputError(
            f"There is no contender {unknown[0]!r:.40}: choose from {', '.join(known)}."
        )


_TEXT_CONTENDERS = ("template", "tvm")
"""The contenders whose kernels are CUDA text, which a program without this package can contain."""

TUNED_BY: Mapping[str, TunerName] = {"template": TEMPLATE, "tvm": TVM}
"""The tuner whose records a contender uses."""


def check_text_contender(name: str) -> None:
    """Check that there is a contender ``name`` and that its kernels are CUDA text.

    Raises:
        InputError: there is none, or its kernels are not.
    """
    if name in _TEXT_CONTENDERS:
        return
    choices = f"choose from {', '.join(_TEXT_CONTENDERS)}."
    if name in CONTENDERS_IN[Gemm.kind]:
        raise InputError(
            f"The kernels of the contender {name} are no CUDA text that a program could contain: "
            f"{choices}"
        )
    raise InputError(f"There is no contender {name!r:.40}: {choices}")


def contender_kernels(
    products: Sequence[Gemm], contender: str, device: Device, records: Path
) -> list[RankedKernel]:
    """Return a contender's kernel for each product, as CUDA text, without timing candidates.

    Args:
        products: the matrix products.
        contender: the name of the contender.
        device: the device that the kernels are for.
        records: the folder of record files, which need not exist.

    Raises:
        InputError: see `check_text_contender`.
        UnavailableError: the contender has no kernel for a product.
    """
    check_text_contender(contender)
    kernels = []
    with KernelStore() as store:
        setup = ContenderSetup(device, records, store, claimed=False)
        for product in products:
            kernel = CONTENDERS[contender](product, setup)
            assert isinstance(kernel, Kernel)
            kernels.append(RankedKernel(product, 1, kernel))
    return kernels
