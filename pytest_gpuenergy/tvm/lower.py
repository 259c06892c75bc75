"""Lowers a scheduling record of a workload to CUDA text and its launches, with TVM.

TVM is imported inside the functions. A record may crash TVM, so this runs in a child process,
through `Lowerer`, except for records from this process's own search.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from pytest_gpuenergy.kernels import Kernel
from pytest_gpuenergy.support import InputError, KernelFault, parse
from pytest_gpuenergy.tvm.build import first_line, parameters_of, refusing, to_kernel
from pytest_gpuenergy.tvm.operators import operator_of
from pytest_gpuenergy.tvm.record_form import check_record
from pytest_gpuenergy.tvm.requirements import import_tvm
from pytest_gpuenergy.tvm.tvm_graph import check_stored_workload
from pytest_gpuenergy.workloads import Tensor, Workload

SHARED_BYTES = 49152
"""Static shared memory that a block has on every CUDA GPU (CUDA C++ Programming Guide)."""

_CUDA_RUNTIME = "ffi.Module.create.cuda"


def cuda_target(architecture: str) -> Any:
    """TVM's target for ``architecture``, such as ``sm_90``, without asking a GPU.

    Raises:
        InputError: TVM is missing or does not know the architecture.
    """
    tvm = import_tvm()
    limits = {
        "max_threads_per_block": 1024,
        "max_shared_memory_per_block": SHARED_BYTES,
        "thread_warp_size": 32,
        "registers_per_block": 65536,
        "max_num_threads": 1024,
    }
    try:
        return _with_host(tvm.target.Target({"kind": "cuda", "arch": architecture, **limits}))
    except Exception as error:
        raise InputError(f"TVM has no target {architecture!r}: {first_line(error)}") from None


def apply_trace(module: Any, trace: Sequence[Any]) -> Any:
    """The module, scheduled according to the JSON ``trace``.

    Raises:
        KernelFault: the trace does not apply to this module.
    """
    tvm = import_tvm()
    schedule = tvm.s_tir.Schedule(module)
    try:
        tvm.s_tir.schedule.Trace.apply_json_to_schedule(trace, schedule)
    except Exception as error:
        raise KernelFault(
            "compile", f"The record does not apply to this workload: {first_line(error)}"
        ) from None
    return schedule.mod


def lower_record(module: Any, record: str, workload: Workload) -> Kernel:
    """The kernel of a MetaSchedule record (JSON text) of ``workload``, whose module is ``module``.

    Raises:
        KernelFault: the record is for other tensors, does not apply, or cannot be lowered.
    """
    content = _checked(record)
    # TVM would silently apply tile sizes for other extents.
    wanted = [["TENSOR", tensor.dtype, list(tensor.shape)] for tensor in workload.tensors]
    if content[3] != wanted:
        raise KernelFault("compile", f"The record is for other tensors than {workload.name}'s.")
    return _lower(module, content, [tensor.name for tensor in workload.tensors])


class Lowerer:
    """The child process's side: takes records, returns kernels. Keeps the module it used last.

    Its TVM has no CUDA runtime, as on a machine without a GPU: otherwise it would compile every
    text with NVRTC, although the device compiles it again.
    """

    def __init__(self) -> None:
        import_tvm()
        import tvm_ffi

        if tvm_ffi.get_global_func(_CUDA_RUNTIME, allow_missing=True) is not None:
            tvm_ffi.registry.remove_global_func(_CUDA_RUNTIME)
        self._workload: Workload | None = None
        self._module: Any = None

    def version(self) -> str:
        """TVM's version."""
        return str(import_tvm().__version__)

    def lower(self, workload: Workload, record: str) -> Kernel:
        """The kernel of a MetaSchedule record (JSON text) of ``workload``.

        Raises:
            KernelFault: the record does not apply, or cannot be lowered.
        """
        if workload != self._workload:
            self._module = operator_of(workload).module(workload)
            self._workload = workload
        return lower_record(self._module, record, workload)

    def lower_stored(
        self, stored: str, record: str, tensors: Sequence[Tensor] | None = None
    ) -> Kernel:
        """The kernel of a record whose module is ``stored`` in its database.

        Args:
            stored: the entry of ``database_workload.json``, as JSON text.
            record: the MetaSchedule record, as JSON text.
            tensors: name the parameters, by position; None keeps the module's names.

        Raises:
            KernelFault: the module has other parameters, or the record cannot be lowered.
        """
        content = _checked(record)
        with refusing("The stored workload"):
            check_stored_workload(parse(stored))
        import_tvm()
        from tvm.s_tir.meta_schedule.database import Workload as StoredWorkload

        try:
            module = StoredWorkload.from_json(json.loads(stored)).mod
            parameters = parameters_of(module["main"])
        except Exception as error:
            raise KernelFault(
                "compile", f"TVM cannot read the stored workload: {first_line(error)}"
            ) from None
        if tensors is None:
            return _lower(module, content, None)
        wanted = [(tensor.shape, tensor.dtype) for tensor in tensors]
        if [(p.shape, p.dtype) for p in parameters] != wanted:
            raise KernelFault(
                "compile", "The stored workload has tensors of other shapes or types."
            )
        return _lower(module, content, [tensor.name for tensor in tensors])


def _checked(record: str) -> list[Any]:
    with refusing("The record"):
        return check_record(parse(record))


def _lower(module: Any, content: Sequence[Any], names: Sequence[str] | None) -> Kernel:
    trace, _, target, _ = content
    try:
        target = _with_host(import_tvm().target.Target(target))
    except Exception as error:
        raise KernelFault("compile", f"TVM has no such target: {first_line(error)}") from None
    return to_kernel(apply_trace(module, trace), target, names)


def _with_host(target: Any) -> Any:
    return target.with_host(import_tvm().target.Target("llvm")) if target.host is None else target
