"""Builds a scheduled module of TVM: CUDA text and its launches.

TVM is imported inside the functions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from pytest_gpuenergy.kernels import Dim3, Kernel, Launch
from pytest_gpuenergy.support import FormError, KernelFault
from pytest_gpuenergy.tvm.emitted import check_emitted, cuda_headers
from pytest_gpuenergy.tvm.requirements import import_tvm
from pytest_gpuenergy.workloads import Tensor

_DYNAMIC_SHARED = "tirx.use_dyn_shared_memory"


@dataclass(frozen=True)
class Buffer:
    """A buffer of a module, without its data."""

    name: str
    shape: tuple[int, ...]
    dtype: str


def to_kernel(module: Any, target: Any, names: Sequence[str] | None = None) -> Kernel:
    """CUDA text and launches of a scheduled module, with every argument named.

    Args:
        module: one function ``main`` whose parameters are buffers.
        target: a CUDA target.
        names: what to call the parameters, in their order; None keeps the buffers' own names.

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
    """The line of a TVM error that says what is wrong, without the backtrace."""
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


def parameters_of(function: Any) -> list[Buffer]:
    """The parameters of a function of TVM, in their order."""
    return [_buffer(parameter) for parameter in function.params]


def _to_kernel(module: Any, target: Any, names: Sequence[str] | None) -> Kernel:
    tvm = import_tvm()
    from tvm import tirx
    from tvm.tirx.build import codegen_build, split_host_device_mods

    parameters = [p.name for p in parameters_of(module["main"])]
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
    """The kernel calls and buffer allocations in the host's module, in program order."""
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
    """The launch of a typed kernel call: name, arguments in the entry's order, then extents."""
    arguments = list(call.args)
    entry = str(arguments[0].value)
    keys = [str(key) for key in call.attrs.launch_params]
    split = len(arguments) - len(keys)
    extents = {key: int(e) for key, e in zip(keys, arguments[split:], strict=True)}
    known = {**renamed, **{space.name: space.name for space in workspaces}}
    names = [_name_of(argument) for argument in arguments[1:split]]
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


def _name_of(argument: Any) -> str:
    """The name of the buffer, or of the variable, that a kernel call passes."""
    is_data = isinstance(argument, import_tvm().ir.Call) and argument.op.name == "tirx.buffer_data"
    buffer = argument.args[0] if is_data else argument
    return str(getattr(buffer, "name", getattr(buffer, "name_hint", buffer)))


def _dim3(extents: dict[str, int], axis: str) -> Dim3:
    x, y, z = (extents.get(f"{axis}.{d}", 1) for d in "xyz")
    return x, y, z
