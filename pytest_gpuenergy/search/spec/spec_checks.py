"""Checks of a kernel spec that go beyond the types of its fields."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Mapping

from pytest_gpuenergy.kernels import argument_names, argument_text, check_source, is_entry
from pytest_gpuenergy.search.source.triton_text import NOT_PYTHON, choosing_decorator
from pytest_gpuenergy.search.spec.kernel_spec import KernelSpec, TensorSpec
from pytest_gpuenergy.search.spec.reference import BUILTINS
from pytest_gpuenergy.search.spec.sizes import FUNCTIONS, Size, evaluate
from pytest_gpuenergy.search.spec.spec_workload import block_names, evaluated_scalar
from pytest_gpuenergy.search.spec.tensors import check_constant, inline_data, tensor_layout
from pytest_gpuenergy.support import FormError, InputError, shown
from pytest_gpuenergy.workloads import is_floating, is_known, largest, least, stored_as

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
_RESERVED = {*FUNCTIONS, *block_names(()), "np"}
"""Names with a meaning in expressions."""
_MAX_SIZE = 1 << 40
_MAX_TENSOR_BYTES = 1 << 36
_MAX_DIMENSIONS = 8
_MAX_THREADS = 1024
"""Threads of a block that CUDA allows."""


def check_spec(spec: KernelSpec) -> None:
    """Check everything that can be checked without running the kernel.

    Raises:
        FormError: something is wrong; the message is a clause.
        InputError: an expression cannot be computed, or the source is no text.
    """
    if not _NAME.fullmatch(spec.name):
        raise FormError(
            f"its name is {shown(spec.name)}: use at most 64 letters, digits, '-' and '_', "
            "starting with a letter or digit"
        )
    check_source(spec.source)
    if not (is_entry(spec.entry) if spec.language == "cuda" else spec.entry.isidentifier()):
        raise FormError(f"its entry {shown(spec.entry)} is not the name of a function")
    if spec.language == "triton" and (chooser := choosing_decorator(spec.source, spec.entry)):
        raise FormError(
            f"its entry {spec.entry} is decorated with triton.{chooser}, which chooses constants "
            "at each launch: remove it, and state them in launch (constants, num_warps, "
            "num_stages); the search tries others"
        )
    _check_names(spec)
    if not 1 <= len(spec.launch.grid) <= 3:
        raise FormError("launch.grid needs one to three sizes")
    if spec.language == "cuda":
        if not 1 <= len(spec.launch.block) <= 3 or any(size < 1 for size in spec.launch.block):
            raise FormError("launch.block needs one to three numbers of threads for CUDA")
        if math.prod(spec.launch.block) > _MAX_THREADS:
            raise FormError(
                f"launch.block has {math.prod(spec.launch.block)} threads, and a block has at most "
                f"{_MAX_THREADS}"
            )
    elif spec.launch.block or spec.launch.shared_bytes:
        raise FormError("launch.block and launch.shared_bytes are for CUDA only")
    for tensor in spec.tensors:
        _check_tensor(tensor, spec)
    if spec.tolerance is not None and not 0 < spec.tolerance < 1:
        raise FormError(f"its tolerance is {spec.tolerance:g} instead of a number between 0 and 1")
    _check_reference(spec)
    for sizes in spec.sizes:
        check_with(spec, sizes)


def _check_names(spec: KernelSpec) -> None:
    if not spec.sizes:
        raise FormError("it has no sizes: leave them out if there are none")
    first = spec.sizes[0]
    for number, sizes in enumerate(spec.sizes):
        if sizes.keys() != first.keys():
            raise FormError(
                f"sizes[{number}] has other names than sizes[0] ({', '.join(first) or 'none'})"
            )
        for name, value in sizes.items():
            if not 1 <= value <= _MAX_SIZE:
                raise FormError(f"sizes[{number}].{name} is {value} instead of 1 to 2**40")
    if len({tuple(sorted(sizes.items())) for sizes in spec.sizes}) < len(spec.sizes):
        raise FormError("two of its sizes are the same")
    arguments = [
        *(tensor.name for tensor in spec.tensors),
        *(scalar.name for scalar in spec.scalars),
    ]
    named = [*arguments, *first]
    for name in [*named, *spec.launch.constants]:
        if not name.isidentifier() or not name.isascii() or name in _RESERVED:
            raise FormError(f"it cannot use the name {shown(name)}")
    if twice := [name for name in named if named.count(name) > 1]:
        raise FormError(f"it has two things that are called {twice[0]}")
    if clash := [name for name in spec.launch.constants if name in named]:
        raise FormError(f"its constant {clash[0]} has the name of a size, tensor or scalar")
    if not any(tensor.is_written for tensor in spec.tensors):
        raise FormError("it has no tensor with the role output")
    passed = list(argument_names(spec.arguments))
    structs = [argument for argument in spec.arguments if not isinstance(argument, str)]
    if structs and spec.language == "triton":
        raise FormError(
            f"it has the struct {argument_text(structs[0])}, which a Triton function cannot take"
        )
    for name in passed:
        if name not in arguments:
            raise FormError(
                f"it has the argument {shown(name)}, but only {', '.join(arguments)} can be "
                "arguments"
            )
    for tensor in spec.tensors:
        if tensor.name not in passed:
            raise FormError(f"its tensor {tensor.name} is not among the arguments")


def _check_tensor(tensor: TensorSpec, spec: KernelSpec) -> None:
    name = tensor.name
    if not is_known(tensor.dtype):
        raise FormError(
            f"tensor {name} has dtype {shown(tensor.dtype)}: give one such as float32, bfloat16 "
            "or int32"
        )
    if len(tensor.shape) > _MAX_DIMENSIONS:
        raise FormError(f"tensor {name} has more than {_MAX_DIMENSIONS} dimensions")
    if tensor.strides is not None and len(tensor.strides) != len(tensor.shape):
        raise FormError(f"tensor {name} has {len(tensor.strides)} strides for its shape")
    if (tensor.bound, tensor.steps) != (None, None) and not tensor.is_written:
        raise FormError(f"tensor {name} is an input and has a bound or steps, which outputs have")
    if tensor.bound is not None and not 0 <= tensor.bound < 1:
        raise FormError(f"tensor {name} has bound {tensor.bound:g} instead of a number from 0 to 1")
    if tensor.steps is not None and (tensor.steps < 0 or is_floating(tensor.dtype)):
        raise FormError(f"tensor {name} has steps, of which only integers can have some, from 0 on")
    if tensor.role == "output":
        if tensor.data is not None or tensor.init not in ("randn", "zeros"):
            raise FormError(f"tensor {name} is an output: it can only have the init zeros")
        if tensor.init == "zeros" and spec.language != "cuda":
            raise FormError(f"tensor {name} is set to zero, which is possible for CUDA only")
        return
    floating = is_floating(tensor.dtype)
    if tensor.data is None and not floating and tensor.init in ("randn", "uniform"):
        raise FormError(f"tensor {name} is {tensor.dtype}: give it an init such as randint")
    if tensor.init in ("uniform", "randint") and not tensor.low < tensor.high:
        raise FormError(f"tensor {name} has low {tensor.low:g} and high {tensor.high:g}")
    if tensor.init == "randint" and not (tensor.low.is_integer() and tensor.high.is_integer()):
        raise FormError(f"tensor {name} has ends of randint that are no whole numbers")
    inside = least(tensor.dtype) <= tensor.low and tensor.high <= largest(tensor.dtype) + 1
    if tensor.init in ("uniform", "randint") and not inside:
        raise FormError(f"tensor {name} has a range that {tensor.dtype} cannot represent")


def _check_reference(spec: KernelSpec) -> None:
    outputs = [tensor.name for tensor in spec.tensors if tensor.is_written]
    if not spec.reference:
        return
    if set(spec.reference) != set(outputs):
        raise FormError(
            f"its reference has {', '.join(spec.reference)} instead of its outputs: "
            f"{', '.join(outputs)}"
        )
    inputs = {tensor.name for tensor in spec.tensors if tensor.is_read}
    scalars = {scalar.name for scalar in spec.scalars}
    available = {*inputs, *scalars, *spec.sizes[0], *spec.launch.constants, *BUILTINS, "np"}
    for name, text in spec.reference.items():
        try:
            tree = ast.parse(text.strip(), mode="eval")
        except NOT_PYTHON:
            raise FormError(f"the reference of {name} is not a Python expression") from None
        used = [node for node in ast.walk(tree) if isinstance(node, ast.Name)]
        bound = {node.id for node in used if isinstance(node.ctx, ast.Store)}
        bound |= {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
        if unknown := sorted({node.id for node in used} - bound - available):
            raise FormError(
                f"the reference of {name} uses {unknown[0]}, which is no input, scalar, size or "
                "constant"
            )


def check_with(spec: KernelSpec, sizes: Mapping[str, int]) -> None:
    """Check everything that depends on the sizes."""
    launch = spec.launch
    names = {**sizes, **launch.constants}
    threads = block_names(launch.block)
    amounts: list[tuple[str, Size, int]] = [
        *(("launch.grid", size, 1) for size in launch.grid),
        ("reduction_length", spec.reduction_length, 1),
        ("launch.shared_bytes", launch.shared_bytes, 0),
        ("flops", spec.flops, 0),
        ("bytes_moved", spec.bytes_moved or 0, 0),
    ]
    for what, amount, smallest in amounts:
        try:
            found = evaluate(amount, {**names, **threads})
        except InputError as error:
            raise InputError(f"{what}: {error}") from None
        if found < smallest:
            raise FormError(f"{what} is {found} instead of a number from {smallest}")
    for tensor in spec.tensors:
        layout = tensor_layout(tensor, names)
        elements = max(layout.span, math.prod(layout.shape))
        if elements * stored_as(tensor.dtype).itemsize > _MAX_TENSOR_BYTES:
            raise FormError(f"tensor {tensor.name} takes more than 64 GiB")
        if tensor.data is not None:
            inline_data(tensor, layout.shape)
        elif tensor.is_read:
            check_constant(tensor, layout.shape)
    for scalar in spec.scalars:
        evaluated_scalar(scalar, names)
