"""A state with one set of sizes, as the kernel that a device runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pytest_gpuenergy.devices import Device
from pytest_gpuenergy.kernels import (
    AnyKernel,
    Dim3,
    Kernel,
    Launch,
    Origin,
    TritonKernel,
    argument_names,
)
from pytest_gpuenergy.search.spec.kernel_spec import Constant, KernelSpec, State
from pytest_gpuenergy.search.spec.sizes import Size, ceil_div, evaluate
from pytest_gpuenergy.search.spec.spec_workload import block_names
from pytest_gpuenergy.search.spec.tensors import tensor_layout
from pytest_gpuenergy.support import InputError, KernelFault
from pytest_gpuenergy.workloads import stored_as

_CLEAR = "gpuenergy_clear"
_CLEAR_THREADS = 256
_CLEAR_SOURCE = f"""
template <long long count>
__global__ void {_CLEAR}(unsigned char* tensor) {{
  long long i = (long long)blockIdx.x * {_CLEAR_THREADS} + threadIdx.x;
  if (i < count) tensor[i] = 0;
}}
"""


def kernel_of(spec: KernelSpec, state: State, sizes: Mapping[str, int]) -> AnyKernel:
    """Return the kernel of a state with one set of sizes.

    Constants become macros before CUDA text, or ``tl.constexpr`` arguments of a Triton function.

    Raises:
        KernelFault: its launch cannot be made with these sizes (outcome ``constraints``).
    """
    try:
        return _kernel(spec, state, sizes)
    except InputError as error:
        raise KernelFault("constraints", str(error)) from None


def device_refusal(spec: KernelSpec, device: Device) -> str | None:
    """Return the reason why a device cannot run a spec's kernels, as a sentence; None if it can."""
    try:
        return device.refusal(_kernel(spec, spec.baseline, spec.sizes[0]))
    except InputError:
        return None  # the evaluation reports what is wrong with this launch


def _kernel(spec: KernelSpec, state: State, sizes: Mapping[str, int]) -> AnyKernel:
    launch = state.launch
    names = {**sizes, **launch.constants, **block_names(launch.block)}
    grid = _dim3([evaluate(size, names) for size in launch.grid])
    origin = Origin("search", details={"state": state.id})
    if state.language == "triton":
        return TritonKernel(
            state.source,
            spec.entry,
            grid,
            tuple(argument_names(spec.arguments)),
            launch.constants,
            launch.num_warps,
            launch.num_stages,
            origin=origin,
        )
    cleared = [
        tensor for tensor in spec.tensors if tensor.role == "output" and tensor.init == "zeros"
    ]
    main = Launch(
        spec.entry,
        grid,
        _dim3(launch.block),
        spec.arguments,
        evaluate(launch.shared_bytes, names),
    )
    launches = []
    for tensor in cleared:
        layout = tensor_layout(tensor, {**sizes, **spec.launch.constants})
        count = layout.span * stored_as(tensor.dtype).itemsize
        blocks = (ceil_div(count, _CLEAR_THREADS), 1, 1)
        launches.append(
            Launch(f"{_CLEAR}<{count}>", blocks, (_CLEAR_THREADS, 1, 1), (tensor.name,))
        )
    source = macros(launch.constants) + state.source
    if cleared:
        source += _CLEAR_SOURCE
    return Kernel(source, (*launches, main), origin=origin)


def macros(constants: Mapping[str, Constant]) -> str:
    """Return the macro definitions that precede CUDA text, one per line."""
    lines = []
    for name, value in constants.items():
        text = str(int(value)) if isinstance(value, bool | int) else repr(value)
        lines.append(f"#define {name} {f'({text})' if text.startswith('-') else text}\n")
    return "".join(lines)


def _dim3(sizes: Sequence[Size]) -> Dim3:
    x, y, z = (*map(int, sizes), 1, 1)[:3]
    return x, y, z
