"""Lowers a record with TVM: to a scheduled module, and then to CUDA text and its launches.

TVM is imported inside the functions. A record may crash TVM, so this runs in a child process,
through `Lowerer`, except for records from this process's own search.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from pytest_gpuenergy.kernels import Dim3, Kernel, Launch
from pytest_gpuenergy.support import FormError, InputError, KernelFault, parse
from pytest_gpuenergy.tuners.tvm.emitted import check_emitted, cuda_headers
from pytest_gpuenergy.tuners.tvm.operators import tvm_operator
from pytest_gpuenergy.tuners.tvm.record_form import check_record
from pytest_gpuenergy.tuners.tvm.tvm_graph import check_stored_workload
from pytest_gpuenergy.tuners.tvm.tvm_requirements import import_tvm
from pytest_gpuenergy.workloads import Tensor, Workload

_DYNAMIC_SHARED = "tirx.use_dyn_shared_memory"


@dataclass(frozen=True)
class Buffer:
    """The name, shape and type of a buffer of a module."""

    name: str
    shape: tuple[int, ...]
    dtype: str


def to_kernel(module: Any, target: Any, names: Sequence[str] | None = None) -> Kernel:
    """Return the CUDA text and launches of a scheduled module, with every argument named.

    Args:
        module: a module whose only function is ``main`` and whose parameters are buffers.
        target: a CUDA target.
        names: the names of the parameters, in their order; None keeps the buffers' own names.

    Raises:
        KernelFault: the module cannot be lowered for a GPU.
    """
    try:
        return _to_kernel(module, target, names)
    except KernelFault:
        raise
    except Exception as error:
        raise KernelFault("compile", f"TVM cannot lower it: {first_line(error)}") from None


def first_line(error: BaseException) -> str:
    """Return the line of a TVM error that says what is wrong, without the backtrace."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    telling = [line for line in lines if "Error" in line or "Check failed" in line]
    text = (telling or lines or [type(error).__name__])[-1]
    return (text if len(text) <= 300 else f"{text[:297]}...").rstrip(".") + "."


@contextmanager
def refusing(what: str) -> Iterator[None]:
    """Turn the `FormError` of a check into a fault of the kernel.

    Raises:
        KernelFault: ``what`` cannot be used.
    """
    try:
        yield
    except FormError as error:
        raise KernelFault("compile", f"{what} cannot be used, because {error}.") from None


def _buffer(buffer: Any) -> Buffer:
    return Buffer(str(buffer.name), tuple(int(size) for size in buffer.shape), str(buffer.dtype))


def function_buffers(function: Any) -> list[Buffer]:
    """Return the parameters of a function of TVM, in their order."""
    return [_buffer(parameter) for parameter in function.params]


def _to_kernel(module: Any, target: Any, names: Sequence[str] | None) -> Kernel:
    tvm = import_tvm()
    from tvm import tirx
    from tvm.tirx.build import codegen_build, split_host_device_mods

    parameters = [p.name for p in function_buffers(module["main"])]
    if len(set(parameters)) != len(parameters):
        raise KernelFault("compile", f"Buffers share a name: {', '.join(parameters)}.")
    if target.kind.name != "cuda":
        raise KernelFault("compile", f"The record is for {target.kind.name}, not for CUDA.")
    # The steps of `tvm.tirx.build`, without code for the host.
    pipeline, _, finalize_device = tirx.get_default_tir_pipeline(target)
    lowered = pipeline(tirx.transform.BindTarget(target)(module))
    host, devices = split_host_device_mods(lowered)
    if len(devices) != 1:
        raise KernelFault("compile", "The record does not give a CUDA kernel.")
    ((device_target, device),) = devices.items()
    device = finalize_device()(device)
    source = codegen_build(device, device_target).inspect_source()
    renamed = dict(zip(parameters, names or parameters, strict=True))
    calls, spaces = _walk(host, tvm)
    workspaces = tuple(
        Tensor(space.name, space.shape, space.dtype, "workspace")
        for space in spaces
        if space.name not in renamed
    )
    launches = tuple(_launch(call, device, renamed, workspaces) for call in calls)
    with refusing("The text that TVM made of it"):
        check_emitted(str(source), cuda_headers(), [launch.entry for launch in launches])
    return Kernel(str(source), launches, workspaces=workspaces)


def _walk(host: Any, tvm: Any) -> tuple[list[Any], list[Buffer]]:
    """Return the kernel calls and buffer allocations in the host's module, in program order."""
    import tvm_ffi

    calls: list[Any] = []
    spaces: list[Buffer] = []

    def on_call(call: Any) -> None:
        if getattr(call.op, "name", "") == "tirx.call_ffi_kernel":
            calls.append(call)

    def on_allocation(node: Any) -> None:
        spaces.append(_buffer(node.buffer))

    for function in host.functions.values():
        tvm_ffi.structural_walk(
            function.body, ((tvm.ir.Call, on_call), (tvm.tirx.AllocBuffer, on_allocation))
        )
    return calls, spaces


def _launch(
    call: Any, device: Any, renamed: dict[str, str], workspaces: tuple[Tensor, ...]
) -> Launch:
    """Return the launch of a kernel call: its name, arguments in the entry's order, extents."""
    arguments = list(call.args)
    entry = str(arguments[0].value)
    keys = [str(key) for key in call.attrs.launch_params]
    split = len(arguments) - len(keys)
    extents = {key: int(e) for key, e in zip(keys, arguments[split:], strict=True)}
    known = {**renamed, **{space.name: space.name for space in workspaces}}
    names = []  # of buffers or variables
    for argument in arguments[1:split]:
        is_data = isinstance(argument, import_tvm().ir.Call)
        is_data = is_data and argument.op.name == "tirx.buffer_data"
        buffer = argument.args[0] if is_data else argument
        names.append(str(getattr(buffer, "name", getattr(buffer, "name_hint", buffer))))
    if unknown := [name for name in names if name not in known]:
        raise KernelFault(
            "compile", f"{entry} takes {unknown[0]}, which is not a buffer of fixed size."
        )
    functions = {str(f.attrs["global_symbol"]): f for f in device.functions.values()}
    if len(functions[entry].params) != len(names):
        raise KernelFault("compile", f"{entry} is called with the wrong number of arguments.")
    return Launch(
        entry,
        _dim3(extents, "blockIdx"),
        _dim3(extents, "threadIdx"),
        tuple(known[name] for name in names),
        extents.get(_DYNAMIC_SHARED, 0),
    )


def _dim3(extents: dict[str, int], axis: str) -> Dim3:
    x, y, z = (extents.get(f"{axis}.{d}", 1) for d in "xyz")
    return x, y, z


SHARED_BYTES = 49152
"""Static shared memory that a block has on every CUDA GPU (CUDA C++ Programming Guide)."""

_CUDA_RUNTIME = "ffi.Module.create.cuda"


def cuda_target(architecture: str) -> Any:
    """Return TVM's target for ``architecture``, such as ``sm_90``, without asking a GPU.

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
    """Return the module, scheduled according to the JSON ``trace``.

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


class Lowerer:
    """Takes records and returns kernels, in the child process.

    It keeps the module that it used last.

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

    def lower(self, workload: Workload, record: str) -> Kernel:
        """Return the kernel of a MetaSchedule record (JSON text) of ``workload``.

        Raises:
            KernelFault: the record is for other tensors, does not apply, or cannot be lowered.
        """
        if workload != self._workload:
            self._module = tvm_operator(workload).module(workload)
            self._workload = workload
        content = _checked(record)
        # TVM would silently apply tile sizes for other extents.
        wanted = [["TENSOR", tensor.dtype, list(tensor.shape)] for tensor in workload.tensors]
        if content[3] != wanted:
            raise KernelFault("compile", f"The record is for other tensors than {workload.name}'s.")
        return _lower(self._module, content, [tensor.name for tensor in workload.tensors])

    def lower_stored(
        self, stored: str, record: str, tensors: Sequence[Tensor] | None = None
    ) -> Kernel:
        """Return the kernel of a record whose module is ``stored`` in its database.

        Args:
            stored: the entry of ``database_workload.json``, as JSON text.
            record: the MetaSchedule record, as JSON text.
            tensors: tensors that name the parameters, by position; None keeps the module's names.

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
            parameters = function_buffers(module["main"])
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
